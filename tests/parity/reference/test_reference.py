"""The reference computes in float64, and proves it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from weighbridge.converters.adapters import Adapter, merge
from weighbridge.converters.common.arrays import to_torch
from weighbridge.converters.common.dtypes import dtype_of
from weighbridge.converters.models import Model, Port, Signature
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes.torch import build_module
from weighbridge.converters.values import LowRank
from weighbridge.errors import UnsupportedError
from weighbridge.parity.check.distances import distance
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.float64 import RoundedConstants, TrueFloat64
from weighbridge.parity.reference.reference import (
    float32_module,
    float64_module,
    float64_outputs,
    float64_sites,
    forced_sites,
    module_outputs,
    round_weights,
    scalars_of,
    stored_as,
)
from weighbridge.parity.reference.unused import unused_weights
from weighbridge.tests.support.atlas.tiny import make

SIGNATURE = Signature(
    (Port("x", "float32", ("batch", 6), "hidden"),),
    (Port("y", "float32", ("batch", 6), "hidden"),),
)
PROBE = Probe("p", {"x": np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)})
REQUESTS = {
    "float()": lambda x: x.float(),
    "half()": lambda x: x.half(),
    "to(dtype)": lambda x: x.to(torch.float32),
    "to(dtype=)": lambda x: x.to(dtype=torch.bfloat16),
    "type(dtype)": lambda x: x.type(torch.float32),
    "softmax(dtype=)": lambda x: torch.softmax(x, -1, dtype=torch.float32),
    "sum(dtype=)": lambda x: x.sum(-1, dtype=torch.float32),
    "ones": lambda x: x * torch.ones(6, dtype=torch.float32),
    "tensor": lambda x: x * torch.tensor(0.1),
    "arange": lambda x: x * torch.arange(6).float() / 7,
    "full": lambda x: x + torch.full((6,), 0.1),
    "mask": lambda x: x.masked_fill(x > 9, torch.finfo(x.dtype).min),
}


class Calls(nn.Module):
    """Applies a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Norm(nn.Module):
    """Computes in float32 whatever it is given, as libraries do."""

    def forward(self, x):
        wide = x.to(torch.float32)
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Planted(nn.Module):
    """Keeps a float32 tensor out of reach of any dtype request."""

    def __init__(self):
        super().__init__()
        self.hidden = torch.full((6,), 0.1)

    def forward(self, x):
        return x * self.hidden


def model_of(module):
    return Model("m", "torch", None, {}, factory=module, declared=SIGNATURE)


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_every_request_for_less_is_answered_with_float64(request_):
    (row,) = float64_outputs(Calls(request_), SIGNATURE, [PROBE])
    assert row["y"].dtype == np.float64


def test_hard_coded_float32_inside_a_module_does_not_round():
    (row,) = float64_outputs(Norm(), SIGNATURE, [PROBE])
    x = PROBE.inputs["x"].astype(np.float64)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    assert distance(row["y"], expected).worst < 1e-14
    assert (
        distance(module_outputs(Norm(), SIGNATURE, [PROBE], "float64")[0]["y"], expected).whole
        > 1e-9
    )


def test_the_census_finds_a_planted_float32():
    with pytest.raises(UnsupportedError, match=r"aten\.mul\.Tensor: float32"):
        float64_outputs(Planted(), SIGNATURE, [PROBE])


def test_the_mode_leaves_no_trace():
    with pytest.raises(UnsupportedError):
        float64_outputs(Planted(), SIGNATURE, [PROBE])
    assert torch.get_default_dtype() is torch.float32
    assert torch.ones(1).float().dtype is torch.float32


def test_rotary_frequencies_are_computed_in_float64():
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=40,
        hidden_size=24,
        intermediate_size=30,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    torch.manual_seed(0)
    narrow = LlamaModel(config).eval()
    with TrueFloat64():
        wide = LlamaModel(config).eval().double()
    wide.load_state_dict(narrow.state_dict())
    doubled = copy.deepcopy(narrow).double()
    assert not torch.equal(wide.rotary_emb.inv_freq, doubled.rotary_emb.inv_freq)
    ports = (Port("input_ids", "int64", ("batch", "sequence"), "token_ids"),)
    signature = Signature(ports, (Port("last_hidden_state", "float32", ("b", "s", 24), ""),))
    probe = Probe("p", {"input_ids": np.arange(30).reshape(1, 30)})
    truth = float64_outputs(wide, signature, [probe])[0]["last_hidden_state"]
    own = module_outputs(narrow, signature, [probe], "float32")[0]["last_hidden_state"]
    assert 1e-8 < distance(own, truth).whole < 1e-6


def test_a_factory_module_is_not_changed_by_being_measured():
    module = nn.Linear(6, 6)
    float64_module(model_of(module))
    assert module.weight.dtype is torch.float32


def test_weights_round_as_a_target_that_stores_them_narrow():
    module = nn.Linear(6, 6)
    expected = module.weight.detach().to(torch.bfloat16).float()
    rounded = round_weights(copy.deepcopy(module), "bfloat16", {"weight"})
    assert torch.equal(rounded.weight, expected)
    assert torch.equal(rounded.bias, module.bias)


def test_forced_sites_start_from_the_references_inputs():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 6))
    wrapped = Calls(None)
    wrapped.body, wrapped.function = module, module
    probes = [PROBE]
    reference = float64_sites(copy.deepcopy(wrapped).double(), SIGNATURE, probes)
    moved = copy.deepcopy(wrapped)
    moved.body[0].weight.data += 1
    forced = forced_sites(moved, SIGNATURE, probes, reference)
    assert distance(forced[0]["body.0"], reference[0]["body.0"]).whole > 0.1
    assert distance(forced[0]["body.2"], reference[0]["body.2"]).whole < 1e-6
    assert np.array_equal(reference[0]["body.1|in"], reference[0]["body.0"])


def test_constants_round_as_in_a_float16_program_and_sentinels_stay():
    def module(x):
        return (x * 0.1 + 1e-12).clamp(min=torch.finfo(torch.float32).min)

    with RoundedConstants():
        (row,) = float64_outputs(Calls(module), SIGNATURE, [PROBE])
    expected = PROBE.inputs["x"].astype(np.float64) * np.float64(np.float16(0.1)) + 2.0**-24
    assert np.array_equal(row["y"], expected)


def test_weights_that_no_output_needs_are_named(tiny_bert_dir):
    import weighbridge

    model = weighbridge.open(tiny_bert_dir)
    ids = np.arange(8).reshape(1, 8)
    probe = Probe("p", {"input_ids": ids, "attention_mask": np.ones_like(ids)})
    unused = unused_weights(build_module(model), model.signature, probe)
    assert {"pooler.dense.weight", "pooler.dense.bias"} <= set(unused)
    assert not any(name.startswith("encoder.") for name in unused)


class Chosen(nn.Module):
    """Two experts of a layer, of which an input meets the first, and a part that nothing runs."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Module()])
        self.layers[0].experts = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(2))
        self.layers[0].idle = nn.Linear(6, 6, bias=False)
        for module in (self, *self.layers[0].experts, self.layers[0].idle):
            module.register_buffer("bound", torch.ones(()))

    def forward(self, x):
        return self.layers[0].experts[0](x) * self.bound


def test_an_expert_that_was_not_chosen_is_needed_all_the_same():
    unused = unused_weights(Chosen().eval(), SIGNATURE, PROBE)
    assert unused == ["layers.0.idle.weight", "layers.0.idle.bound"]


def test_an_adapter_is_folded_once_and_then_rounded(monkeypatch):
    from weighbridge.parity.reference import reference

    random = np.random.default_rng(1)
    update = LowRank(random.normal(size=(2, 6)), random.normal(size=(6, 2)), scale=0.5)
    module = nn.Linear(6, 6)
    expected = module.weight.detach().double() + torch.from_numpy(update.delta())
    reference.fold(module, {"weight": update})
    assert torch.equal(module.weight, expected.float())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("compute", ["float64", "float32"])
def test_a_million_weights_are_those_of_a_merge_bit_by_bit(dtype, compute, tmp_path):
    """In so many there are some that two roundings, as torch does from float64, get wrong."""
    random, shape = np.random.default_rng(0), (1024, 1100)
    base = random.normal(size=shape).astype(dtype_of(dtype))
    a, b = random.normal(size=(2, shape[1])), random.normal(size=(shape[0], 2))
    update = LowRank(a, b, scale=0.01)
    save_file({"weight": to_torch(base)}, tmp_path / "model.safetensors")
    model = Model(
        "m", "torch", tmp_path, {}, factory=nn.Linear(*shape[::-1], bias=False),
        declared=SIGNATURE, adapter=Adapter(tmp_path, "peft", {"weight": update}, {}),
    )  # fmt: skip
    found = stored_as(model, compute, dtype).weight
    wanted = to_torch(merge(base, update)[0]).to(found.dtype)
    assert torch.equal(found, wanted)


def test_experts_are_folded_one_by_one():
    from weighbridge.parity.reference import reference

    module = nn.Module()
    module.experts = nn.Module()
    module.experts.down = nn.Parameter(torch.randn(3, 5, 4))
    random = np.random.default_rng(1)
    update = LowRank(random.normal(size=(3, 2, 4)), random.normal(size=(3, 5, 2)), scale=0.5)
    expected = [
        part.detach().double() + torch.from_numpy(update.part(index).delta())
        for index, part in enumerate(module.experts.down)
    ]
    reference.fold(module, {"experts.down": update})
    assert torch.equal(module.experts.down, torch.stack(expected).float())


@pytest.mark.parametrize(("kind", "count"), [("llama", 0), ("gemma3_text", 1)])
def test_scalars_are_looked_for_before_a_model_is_run_with_them_rounded(tmp_path, kind, count):
    model = open_model(make(kind, tmp_path / kind).folder)
    assert len(scalars_of(float32_module(model))) == count
