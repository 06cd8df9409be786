"""Quantized weights of a captured module, against torch on the values that the codes stand for."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as mlx_nn
from mlx import optimizers
from mlx.utils import tree_flatten
from peft import LoraConfig, LoraModel
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from weighbridge.converters.captures import AdapterSpec, capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.quantization import Blocks
from weighbridge.converters.quantization.scheme import Scheme
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError

VOCABULARY = 40


def realistic(module):
    """Give weights the gain that trained ones have, and make norms and biases matter."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.ndim < 2:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                into = parameter.shape[-2] if "c_" in name else parameter.shape[-1]
                parameter.normal_(0, 1.0 if "emb" in name or "wte" in name else 1.5 / into**0.5)
    return module.eval()


def llama(**settings):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=1,
        num_key_value_heads=1,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        **sizes,
        **settings,
    )
    return realistic(LlamaForCausalLM(config))


def gpt2():
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=64,
        n_head=2,
        n_layer=1,
        n_positions=16,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    return realistic(GPT2LMHeadModel(config))


def mixture():
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        num_experts=4,
        num_experts_per_tok=2,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
        experts_implementation="batched_mm",
    )
    return realistic(Qwen3MoeForCausalLM(config))


def ids():
    return torch.randint(1, VOCABULARY, (2, 6))


def tree(captured):
    return dict(tree_flatten(captured.parameters()))


def on_canonical_values(module, captured):
    """Return MODULE with the values that the codes of CAPTURED stand for."""
    module.load_state_dict(captured.torch_state_dict(), strict=True)
    return module


def both(build, **scheme):
    module = build()
    tokens = ids()
    captured = capture(module, inputs={"input_ids": tokens})
    report = captured.quantize(**scheme)
    return on_canonical_values(module, captured), captured, report, tokens


@pytest.mark.parametrize(
    "scheme",
    [
        {"bits": 4},
        {"bits": 8, "group_size": 32},
        {"bits": 3, "group_size": 32},
        {"mode": "mxfp4"},
        {"mode": "nvfp4"},
    ],
    ids=str,
)
def test_a_quantized_base_computes_with_what_its_codes_stand_for(scheme, assert_same):
    module, captured, _, tokens = both(llama, **scheme)
    assert_same(captured(input_ids=to_mlx(tokens))["logits"], module(tokens).logits, 1e-5)


@pytest.mark.parametrize(
    ("build", "quantized"),
    [
        (lambda: llama(tie_word_embeddings=True), 8),
        (gpt2, 6),  # its Conv1D lies the other way round, and its head is the embedding
        (mixture, 9),
    ],
    ids=["tied", "gpt2", "experts"],
)
def test_linear_layers_embeddings_and_experts_are_quantized(build, quantized, assert_same):
    module, captured, report, tokens = both(build, group_size=32)
    assert len(report.quantized) == quantized
    assert not report.dense
    assert_same(captured(input_ids=to_mlx(tokens))["logits"], module(tokens).logits, 1e-5)


@pytest.mark.parametrize(
    ("build", "operation", "count"),
    [(llama, "quantized_matmul", 8), (gpt2, "quantized_matmul", 5), (mixture, "gather_qmm", 2)],
    ids=["linear", "gpt2", "experts"],
)
def test_products_run_on_codes(build, operation, count, monkeypatch):
    _, captured, _, tokens = both(build, group_size=32)
    calls = []
    original = getattr(mx, operation)

    def counted(*args, **kwargs):
        calls.append(args[1].dtype)
        return original(*args, **kwargs)

    monkeypatch.setattr(mx, operation, counted)
    captured(input_ids=to_mlx(tokens))
    assert calls == [mx.uint32] * count


class Headed(nn.Module):
    """A base, with LoRA in it, and a head of its own."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.head = nn.Linear(VOCABULARY, 3)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.base(input_ids=input_ids).logits))


def trained_pair(build, targets, *, dora=False):
    """Return PEFT's model on canonical values, the capture with the same factors, and tokens."""
    module, tokens = Headed(build()).eval(), ids()
    captured = capture(module, inputs={"input_ids": tokens})
    captured.quantize(lambda name, _: name.startswith("base."), group_size=32)
    on_canonical_values(module, captured)
    config = LoraConfig(r=2, lora_alpha=4, target_modules=targets, use_dora=dora)
    theirs = LoraModel(module, config, "default")
    theirs.model.head.requires_grad_(True)
    updates, factors = {}, {}
    for name, layer in theirs.model.named_modules():
        if "default" in getattr(layer, "lora_A", {}):
            a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
            nn.init.normal_(b, 0, 0.2)
            parts = [a, b, *(each.weight for each in layer.lora_magnitude_vector.values())]
            low, high, *lengths = (part.detach().numpy() for part in parts)
            updates[f"{name}.weight"] = LowRank(low, high, 2.0, *lengths)
            keys = (f"{name}.lora_{letter}" for letter in "abm")
            factors |= dict(zip(keys, parts, strict=False))
    captured.set_adapters(updates, train=["head"])
    return theirs.model, captured, factors, tokens


@pytest.mark.parametrize(
    ("build", "targets", "dora"),
    [
        (llama, ["q_proj", "v_proj", "up_proj"], False),
        (llama, ["q_proj", "v_proj", "up_proj"], True),
        (mixture, ["q_proj", "o_proj"], False),
    ],
    ids=["lora", "dora", "experts"],
)
def test_gradients_beside_a_quantized_base_are_torchs(build, targets, dora, gradients_of):
    theirs, captured, factors, tokens = trained_pair(build, targets, dora=dora)
    weights = torch.randn(2, 6, 3)
    (theirs(tokens) * weights).sum().backward()
    _, found = gradients_of(
        captured, lambda out: (out * to_mlx(weights)).sum(), input_ids=to_mlx(tokens)
    )
    expected = {name: factor.grad.numpy().T for name, factor in factors.items()}
    expected |= {f"head.{n}": p.grad.numpy() for n, p in theirs.head.named_parameters()}
    assert found.keys() == expected.keys()
    scale = max(float(np.abs(gradient).max()) for gradient in expected.values())
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-5 * scale, rtol=0, err_msg=name)


def test_codes_are_byte_identical_after_training():
    captured = capture(Headed(llama()), inputs={"input_ids": ids()})
    captured.quantize(lambda name, _: name.startswith("base."), bits=4)
    before = {name: np.array(array) for name, array in tree(captured).items()}
    spec = AdapterSpec(2, 2.0)
    layer = "base.model.layers.0.self_attn.q_proj.weight"
    captured.insert_adapters({layer: spec}, train=["head"])
    optimizer = optimizers.AdamW(1e-2, weight_decay=0.1)
    step = mlx_nn.value_and_grad(captured, lambda x: (captured(input_ids=x) ** 2).mean())
    losses = []
    for _ in range(5):
        loss, gradients = step(to_mlx(ids()))
        optimizer.update(captured, gradients)
        losses.append(float(loss))
    captured.unfreeze()  # does not reach codes
    trainable = dict(tree_flatten(captured.trainable_parameters()))
    changed = {
        n for n, array in before.items() if array.tobytes() != np.array(tree(captured)[n]).tobytes()
    }
    assert losses[-1] < losses[0]
    assert changed == {"head.weight", "head.bias"}
    assert not any(name.endswith((".scales", ".biases")) for name in trainable)
    assert all(array.dtype != mx.uint32 for array in trainable.values())


def test_gradients_reach_inputs_through_a_quantized_layer(assert_same):
    module, x = nn.Linear(64, 5), torch.randn(3, 64, requires_grad=True)
    captured = capture(module, inputs={"input": x})
    captured.quantize()
    on_canonical_values(module, captured)(x).square().sum().backward()
    found = mx.grad(lambda value: (captured(input=value) ** 2).sum())(to_mlx(x))
    assert_same(found, x.grad, 1e-5)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.odd, self.last = nn.Linear(64, 50), nn.Linear(50, 64), nn.Linear(64, 2)
        self.conv = nn.Conv1d(4, 4, 3)
        self.scaled = nn.Parameter(torch.randn(64, 64))
        self.scales = nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        y = self.odd(torch.tanh(self.first(x)))
        return self.last(y @ (2 * self.scaled) + y @ self.scales) + self.conv(x).mean()


def test_what_stays_dense_is_reported_with_the_reason(assert_same):
    module, x = Odd(), torch.randn(2, 4, 64)
    captured = capture(module, inputs={"x": x})
    report = captured.quantize(
        lambda name, _: (
            {"bits": 8, "group_size": 32} if name == "first.weight" else name != "last.weight"
        )
    )
    assert {name: str(scheme) for name, scheme in report.quantized.items()} == {
        "first.weight": "8-bit affine, groups of 32",
        "scales": "4-bit affine, groups of 64",
    }
    unused = "no linear layer, embedding or expert computes with it"
    assert report.dense == {
        "odd.weight": "50 columns are no multiple of the group, 64",
        "last.weight": "the predicate left it out",
        "conv.weight": unused,
        "scaled": unused,
    }
    assert_same(captured(x=to_mlx(x)), on_canonical_values(module, captured)(x), 1e-5)


def test_names_are_those_of_mlx_and_blocks_come_back_as_they_went_in():
    module = nn.Sequential(nn.Linear(64, 6))
    captured = capture(module, inputs={"input": torch.randn(2, 64)})
    reference = mlx_nn.Linear(64, 6)
    reference.weight = to_mlx(module[0].weight)
    expected = reference.to_quantized(64, 4)
    captured.quantize()
    for part in ("weight", "scales", "biases"):
        assert mx.array_equal(tree(captured)[f"0.{part}"], expected[part])
    [(name, blocks)] = captured.blocks().items()
    other = capture(module, inputs={"input": torch.randn(2, 64)})
    other.set_blocks({name: blocks})
    assert all(mx.array_equal(array, tree(other)[key]) for key, array in tree(captured).items())


@pytest.mark.parametrize(
    ("name", "shape", "problem"),
    [
        ("0.wieght", (6, 64), "0.wieght: the module has no such parameter"),
        ("0.weight", (6, 128), r"0.weight: expected \[6, 64\], found \[6, 128\]"),
        ("1.weight", (6, 64), "1.weight: expected"),
    ],
)
def test_blocks_that_do_not_fit_are_refused_and_nothing_changes(name, shape, problem):
    module = nn.Sequential(nn.Linear(64, 6), nn.LayerNorm(6))
    captured = capture(module, inputs={"input": torch.randn(2, 64)})
    parts = {key: np.ones((shape[0], shape[1] // 64), "f4") for key in ("scales", "biases")}
    block = Blocks.of_codes(np.zeros(shape, np.uint8), parts, Scheme(4, 64))
    good = Blocks.of_codes(
        np.zeros((6, 64), np.uint8), {k: np.ones((6, 1), "f4") for k in parts}, Scheme(4, 64)
    )
    with pytest.raises(MismatchError, match=problem):
        captured.set_blocks({"0.weight": good, name: block})
    assert not captured.blocks()


def test_a_scheme_that_mlx_has_not_is_refused():
    captured = capture(nn.Linear(64, 6), inputs={"input": torch.randn(2, 64)})
    with pytest.raises(UnsupportedError, match="7-bit affine"):
        captured.quantize(bits=7)
    assert not captured.blocks()


def test_quantize_of_mlx_acts_on_a_capture(assert_same):
    module, x = (
        nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 6)),
        torch.randn(2, 64),
    )
    captured = capture(module, inputs={"input": x})
    mlx_nn.quantize(captured, bits=4)
    assert {name: block.scheme.bits for name, block in captured.blocks().items()} == {
        "0.weight": 4,
        "2.weight": 4,
    }
    assert_same(captured(input=to_mlx(x)), on_canonical_values(module, captured)(x), 1e-5)


def test_quantize_of_mlx_takes_schemes_by_path():
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 6))
    captured = capture(module, inputs={"input": torch.randn(2, 64)})
    mlx_nn.quantize(captured, class_predicate=lambda path, _: path == "1" and {"bits": 8})
    assert {n: str(b.scheme) for n, b in captured.blocks().items()} == {
        "1.weight": "8-bit affine, groups of 64"
    }


def test_quantize_of_mlx_refuses_what_it_cannot_do():
    captured = capture(nn.Sequential(nn.Linear(50, 6)), inputs={"input": torch.randn(2, 50)})
    with pytest.raises(
        UnsupportedError, match=r"0.weight: 50 columns are no multiple .*quantize\("
    ):
        mlx_nn.quantize(captured, bits=4)


def test_quantize_of_mlx_reaches_a_capture_that_is_one_layer():
    captured = capture(nn.Linear(64, 6), inputs={"input": torch.randn(2, 64)})
    mlx_nn.quantize(captured, bits=4)
    assert list(captured.blocks()) == ["weight"]


def test_a_quantized_capture_compiles_and_copies(assert_same):
    import copy

    module, captured, _, tokens = both(llama)
    twin = copy.deepcopy(captured)
    expected = module(tokens).logits
    assert_same(mx.compile(lambda x: twin(input_ids=x)["logits"])(to_mlx(tokens)), expected, 1e-5)
    twin.quantize(bits=8)
    assert {block.scheme.bits for block in captured.blocks().values()} == {4}
