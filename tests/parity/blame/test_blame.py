"""Every injected fault is named: its site exactly, its kind with evidence."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.runtimes.base import Trace
from weighbridge.parity.blame.blame import WHOLE_MODEL, Fault, Recordings, blame, culprit, forced
from weighbridge.parity.blame.evidence import INPUT
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.weights.reference_index import Explanation

HIDDEN, HEADS, LENGTH = 48, 3, 24


def first_tensor(value: Any) -> torch.Tensor | None:
    value = (
        value
        if isinstance(value, torch.Tensor)
        else next(iter(value.values() if isinstance(value, dict) else value), None)
    )
    return value if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def with_first(value: Any, tensor: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor
    if isinstance(value, tuple):
        return tensor, *value[1:]
    value[next(iter(value))] = tensor
    return value


class TraceRunner:
    """Hooks on every submodule that record and correct outputs and first inputs."""

    runtime = "torch"

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        self.dtype = next(module.parameters()).dtype

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self.trace(inputs).outputs

    def describe(self) -> dict[str, str]:
        return {"runtime": self.runtime}

    def trace(
        self, inputs: Mapping[str, np.ndarray], corrections: Mapping[str, Any] | None = None
    ) -> Trace:
        fixed, sites = corrections or {}, {}

        def correct(site: str, value: Any) -> Any:
            tensor = first_tensor(value)
            if tensor is None:
                return None
            sites[site] = tensor.detach().numpy().copy()
            if site not in fixed:
                return None
            return with_first(value, torch.from_numpy(fixed[site]).to(tensor.dtype))

        for path, child in self.module.named_modules():
            if path:
                child.register_forward_pre_hook(
                    lambda _, args, path=path: correct(path + INPUT, args)
                )
                child.register_forward_hook(lambda _, __, out, path=path: correct(path, out))
        with torch.no_grad():
            out = self.module(**{name: self._tensor(array) for name, array in inputs.items()})
        for child in self.module.modules():
            child._forward_hooks.clear()
            child._forward_pre_hooks.clear()
        tensor = first_tensor(out)
        assert tensor is not None
        return Trace({"out": tensor.numpy()}, sites)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


def perturb(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    for name, parameter in module.named_parameters():
        if parameter.ndim == 1:
            noise = torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.data = noise + ("norm" in name.lower() and name.endswith("weight"))
        else:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.15
    return module


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=60, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=HEADS,
        intermediate_size=80, max_position_embeddings=40, layer_norm_eps=1e-12,
        attn_implementation="eager",
    )  # fmt: skip
    return perturb(BertModel(config, add_pooling_layer=False)).eval()


@pytest.fixture(scope="module")
def probes() -> list[Probe]:
    random = np.random.default_rng(0)
    ids = random.integers(0, 60, (4, LENGTH))
    lengths = np.array([LENGTH, LENGTH, LENGTH - 7, LENGTH - 3])
    mask = (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)
    return [Probe("text", {"input_ids": ids, "attention_mask": mask})]


Rows = list[dict[str, np.ndarray]]


def record(module: nn.Module, probes: list[Probe]) -> tuple[Rows, Rows]:
    exact = TraceRunner(copy.deepcopy(module).double())
    reference = [exact.trace(probe.inputs).sites for probe in probes]
    own = TraceRunner(module)
    return reference, [
        own.trace(probe.inputs, forced(sites)).sites
        for probe, sites in zip(probes, reference, strict=True)
    ]


@pytest.fixture(scope="module")
def recordings(encoder: nn.Module, probes: list[Probe]) -> tuple[Rows, Rows]:
    return record(encoder, probes)


def layer(module: Any, index: int = 1) -> Any:
    return module.encoder.layer[index]


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    module.forward = forward.__get__(module)  # type: ignore[method-assign]


def tanh_gelu(module: Any) -> None:
    layer(module).intermediate.intermediate_act_fn = nn.GELU("tanh")


def relu_everywhere(module: Any) -> None:
    for index in (0, 1):
        layer(module, index).intermediate.intermediate_act_fn = nn.ReLU()


def epsilon_once(module: Any) -> None:
    layer(module).output.LayerNorm.eps = 1e-5


def epsilon_everywhere(module: Any) -> None:
    for child in module.modules():
        if isinstance(child, nn.LayerNorm):
            child.eps = 1e-5


def transpose_square(module: Any) -> None:
    linear = layer(module).attention.output.dense
    linear.weight.data = linear.weight.data.T.clone()


def swap_heads(module: Any) -> None:
    linear = layer(module).attention.self.query
    order = [*range(16, 32), *range(16), *range(32, HIDDEN)]
    linear.weight.data, linear.bias.data = linear.weight.data[order], linear.bias.data[order]


def zero_bias(module: Any) -> None:
    layer(module).intermediate.dense.bias.data.zero_()


def zero_key_bias(module: Any) -> None:
    layer(module).attention.self.key.bias.data.zero_()


def scale_norm(module: Any) -> None:
    norm = layer(module, 0).output.LayerNorm
    norm.weight.data *= 1.01
    norm.bias.data *= 1.01


def attention_scale(module: Any) -> None:
    layer(module).attention.self.scaling *= 1.01


def residual(module: Any) -> None:
    def forward(self: Any, hidden: torch.Tensor, entered: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden)) + 0.999 * entered)

    replace_forward(layer(module).output, forward)


def positions_beyond(module: Any) -> None:
    module.embeddings.position_embeddings.weight.data[10:] = 0


def change_mask(module: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    core = layer(module).attention.self
    plain = core.forward

    def forward(hidden: torch.Tensor, attention_mask: torch.Tensor, **kwargs: Any) -> Any:
        return plain(hidden, attention_mask=change(attention_mask), **kwargs)

    core.forward = forward


def drop_mask(module: Any) -> None:
    change_mask(module, torch.zeros_like)


def shorten_mask(module: Any) -> None:
    def shorten(mask: torch.Tensor) -> torch.Tensor:
        lowest = torch.full_like(mask[..., :1], torch.finfo(mask.dtype).min)
        return torch.cat([mask, lowest], dim=-1)[..., 1:]

    change_mask(module, shorten)


def overflow(module: Any) -> None:
    layer(module).output.dense.bias.data[3] = float("inf")


def narrow_once(module: Any) -> None:
    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias).bfloat16().float()

    replace_forward(layer(module).output.dense, forward)


def narrow(module: Any, dtype: torch.dtype) -> None:
    for parameter in module.parameters():
        parameter.data = parameter.data.to(dtype).to(parameter.dtype)


def narrow_all(module: Any) -> None:
    narrow(module, torch.bfloat16)


def narrow_more(module: Any) -> None:
    narrow(module, torch.float16)


def nothing(module: Any) -> None:
    pass


LAYER = "encoder.layer.1"
NORMS = {
    "embeddings.LayerNorm",
    *(f"encoder.layer.{i}.{place}output.LayerNorm" for i in (0, 1) for place in ("", "attention.")),
}
FAULTS: dict[str, tuple[Callable[[Any], None], set[str], str, str]] = {
    "gelu by tanh": (
        tanh_gelu, {f"{LAYER}.intermediate.intermediate_act_fn"}, "activation", "gelu (tanh)",
    ),
    "relu twice": (
        relu_everywhere,
        {f"encoder.layer.{i}.intermediate.intermediate_act_fn" for i in (0, 1)},
        "activation",
        "is relu of",
    ),
    "epsilon": (epsilon_once, {f"{LAYER}.output.LayerNorm"}, "epsilon", "eps 1e-05, the reference has 1e-12"),
    "epsilon in all": (epsilon_everywhere, NORMS, "epsilon", "eps 1e-05"),
    "transposed": (transpose_square, {f"{LAYER}.attention.output.dense"}, "transposed", "transposed"),
    "heads": (
        swap_heads, {f"{LAYER}.attention.self.query"}, "permuted",
        "blocks of 16 channels moved: 0 <- 1, 1 <- 0",
    ),
    "bias": (zero_bias, {f"{LAYER}.intermediate.dense"}, "bias", "same vector at every token"),
    "key bias": (zero_key_bias, {f"{LAYER}.attention.self.key"}, "bias", "same vector"),
    "scale": (scale_norm, {"encoder.layer.0.output.LayerNorm"}, "scale", "1.01 times"),
    "attention scale": (attention_scale, {f"{LAYER}.attention.self"}, "attention", "1.01"),
    "residual": (residual, {f"{LAYER}.output"}, "branch", "factor 0.999"),
    "mask dropped": (drop_mask, {f"{LAYER}.attention.self"}, "mask", "to padding too"),
    "mask short": (shorten_mask, {f"{LAYER}.attention.self"}, "mask", "one short"),
    "not finite": (overflow, {f"{LAYER}.output.dense"}, "non-finite", "unexpected infinity"),
    "bfloat16 once": (narrow_once, {f"{LAYER}.output.dense"}, "cast", "bfloat16 numbers"),
    "bfloat16 weights": (narrow_all, {WHOLE_MODEL}, "cast", "rounded to bfloat16"),
    "float16 weights": (narrow_more, {WHOLE_MODEL}, "cast", "rounded to float16"),
    "positions": (
        positions_beyond, {"embeddings.position_embeddings"}, "position", "wrong from 10",
    ),
    "control": (nothing, set(), "", ""),
}  # fmt: skip


def faults_of(
    change: Callable[[Any], None], encoder: nn.Module, probes: list[Probe], recordings: Any
) -> list[Fault]:
    candidate = copy.deepcopy(encoder)
    change(candidate)
    return blame(Recordings(probes, *recordings), TraceRunner(candidate))


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named(name: str, encoder: nn.Module, probes: Any, recordings: Any) -> None:
    change, sites, kind, evidence = FAULTS[name]
    faults = faults_of(change, encoder, probes, recordings)
    assert {fault.site for fault in faults} == sites
    for fault in faults:
        assert fault.kind == kind, fault
        assert evidence in fault.evidence, fault


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).tanh())


class Skipped(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_layers_that_are_skipped_are_named_and_not_the_whole_model() -> None:
    right = perturb(nn.Sequential(*[Layer() for _ in range(5)], nn.Linear(8, 8)))
    skipping = nn.Sequential(*[Skipped() for _ in range(5)], nn.Linear(8, 8))
    skipping.load_state_dict(right.state_dict())
    runs = [Probe("rows", {"input": np.random.default_rng(0).normal(size=(6, 8)).astype("f4")})]
    faults = blame(Recordings(runs, *record(right, runs)), TraceRunner(skipping))
    assert {it.site for it in faults} == set("01234")


class OutputsOnly(TraceRunner):
    """A runner that sees what a site returns and not what it receives."""

    def trace(self, inputs: Any, corrections: Any = None) -> Trace:
        kept = {site: it for site, it in (corrections or {}).items() if INPUT not in site}
        trace = super().trace(inputs, kept)
        return Trace(trace.outputs, {s: it for s, it in trace.sites.items() if INPUT not in s})


def test_branch_is_seen_through_a_norm_where_inputs_are_not_recorded(
    encoder: nn.Module, probes: Any, recordings: Any
) -> None:
    candidate = copy.deepcopy(encoder)
    residual(candidate)
    (fault,) = blame(Recordings(probes, *recordings), OutputsOnly(candidate))
    assert (fault.site, fault.kind) == (f"{LAYER}.output", "branch")
    assert "factor 0.999" in fault.evidence


def test_wrong_weight_speaks_for_its_site(encoder: nn.Module, probes: Any, recordings: Any) -> None:
    candidate = copy.deepcopy(encoder)
    zero_bias(candidate)
    name = f"{LAYER}.intermediate.dense"
    known = [
        Explanation(f"{name}.weight", f"{name}.weight", "equal", "", ok=True),
        Explanation(f"{name}.bias", f"{name}.bias", "unmerged", "never merged", ok=False),
    ]
    (fault,) = blame(Recordings(probes, *recordings), TraceRunner(candidate), explanations=known)
    assert (fault.site, fault.kind) == (name, "merge missing")
    assert "never merged" in fault.evidence


def test_two_faults_are_both_named(encoder: nn.Module, probes: Any, recordings: Any) -> None:
    def both(module: Any) -> None:
        tanh_gelu(module)
        attention_scale(module)

    faults = faults_of(both, encoder, probes, recordings)
    assert {fault.kind for fault in faults} == {"activation", "attention"}
    assert [fault.ratio for fault in faults] == sorted((f.ratio for f in faults), reverse=True)


def test_site_of_another_shape_is_a_fault(encoder: nn.Module, probes: Any, recordings: Any) -> None:
    class Cut(TraceRunner):
        def trace(self, inputs: Any, corrections: Any = None) -> Trace:
            trace = super().trace(inputs, corrections)
            site = f"{LAYER}.intermediate.dense"
            return Trace(trace.outputs, trace.sites | {site: trace.sites[site][..., 1:]})

    (fault,) = blame(Recordings(probes, *recordings), Cut(encoder))
    assert fault.kind == "shape"


def test_what_reaches_a_top_level_module_is_the_models_own() -> None:
    assert culprit("encoder" + INPUT) == WHOLE_MODEL
