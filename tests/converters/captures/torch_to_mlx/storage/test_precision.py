"""Captures in 16 bits err as torch itself does in 16 bits, measured against torch in float64."""

from __future__ import annotations

import copy

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as mlx_nn
from mlx import optimizers
from mlx.utils import tree_flatten
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
)

from tests.support.gain import realistic
from weighbridge.converters.captures import AdapterSpec, capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.converters.runtimes.torch import cast
from weighbridge.errors import BadInputError

SIXTEEN = {"bfloat16": torch.bfloat16, "float16": torch.float16}
MOST = 2  # times torch's own error


def bert():
    sizes = {"hidden_size": 48, "num_attention_heads": 3, "intermediate_size": 64}
    config = BertConfig(vocab_size=50, num_hidden_layers=1, max_position_embeddings=40, **sizes)
    return realistic(BertModel(config)), {"input_ids": torch.randint(0, 50, (3, 9))}


def llama():
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "intermediate_size": 64}
    config = LlamaConfig(vocab_size=50, num_hidden_layers=1, use_cache=False, **sizes)
    return realistic(LlamaForCausalLM(config)), {"input_ids": torch.randint(0, 50, (3, 9))}


def t5():
    config = T5Config(vocab_size=50, d_model=48, d_kv=12, d_ff=64, num_layers=1, num_heads=4)
    return realistic(T5EncoderModel(config)), {"input_ids": torch.randint(0, 50, (3, 9))}


def convolutions():
    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.Conv2d(16, 16, 3, groups=2, stride=2),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.LogSoftmax(-1),
    )
    return realistic(module), {"input": torch.randn(4, 3, 12, 12)}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 16, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.lstm(x)[0])


def recurrent():
    return realistic(Recurrent()), {"x": torch.randn(3, 7, 8)}


MODELS = [bert, llama, t5, convolutions, recurrent]


def main(output):
    return next(iter(output.values())) if isinstance(output, dict) else output


def inputs_in(dtype, inputs):
    return {n: t.to(dtype) if t.is_floating_point() else t for n, t in inputs.items()}


def run_torch(module, dtype, inputs, weights):
    """Return output and gradients by name, of a copy of MODULE in DTYPE."""
    module = cast(copy.deepcopy(module), str(dtype).removeprefix("torch."))
    output = main(module(**inputs_in(dtype, inputs)))
    (output.double() * weights).sum().backward()
    return output.detach(), {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


def run_mlx(captured, inputs, weights):
    arrays = {name: to_mlx(tensor) for name, tensor in inputs.items()}
    weights = to_mlx(weights.float())

    def loss():
        return (main(captured(**arrays)).astype(mx.float32) * weights).sum()

    _, gradients = mlx_nn.value_and_grad(captured, loss)()
    return main(captured(**arrays)), dict(tree_flatten(gradients))


def distance(one, other):
    """Return the root of the summed squares of the differences, all tensors together."""
    return sum(float((one[n].double() - other[n].double()).square().sum()) for n in other) ** 0.5


@pytest.mark.parametrize("name", SIXTEEN)
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_outputs_and_gradients_err_as_torch_in_the_same_dtype(model, name):
    dtype = SIXTEEN[name]
    module, inputs = model()
    weights = torch.randn_like(main(module(**inputs))).double()
    exact, exact_gradients = run_torch(module, torch.float64, inputs, weights)
    theirs, their_gradients = run_torch(module, dtype, inputs, weights)
    narrow = cast(copy.deepcopy(module), name)
    captured = capture(narrow, inputs=inputs_in(dtype, inputs))
    found, gradients = run_mlx(captured, inputs_in(dtype, inputs), weights)
    assert found.dtype == getattr(mx, name)
    allowed = MOST * distance({"": theirs}, {"": exact})
    assert distance({"": to_torch(found)}, {"": exact}) <= allowed
    ours = {n: to_torch(gradients[n]) for n in exact_gradients}
    assert {tensor.dtype for tensor in ours.values()} == {dtype}
    allowed = MOST * distance(their_gradients, exact_gradients)
    assert distance(ours, exact_gradients) <= allowed


def narrow_linear():
    module = realistic(nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)))
    narrow = cast(copy.deepcopy(module), "bfloat16")
    captured = capture(narrow, inputs={"input": torch.randn(4, 8).bfloat16()})
    return module, captured


def test_parameters_may_be_wider_than_the_graph_and_are_cast_as_they_are_read():
    _, captured = narrow_linear()
    x = mx.random.normal((4, 8)).astype(mx.bfloat16)
    before = captured(input=x)
    captured.set_dtype(mx.float32)
    assert mx.array_equal(captured(input=x), before)
    gradients = mlx_nn.value_and_grad(captured, lambda: captured(input=x).sum())()[1]
    assert {g.dtype for _, g in tree_flatten(gradients)} == {mx.float32}


def test_float32_masters_see_updates_that_16_bits_round_away():
    x = mx.ones((4, 8), mx.bfloat16)
    moved = {}
    for name in ("bfloat16", "float32"):
        _, captured = narrow_linear()
        captured.set_dtype(getattr(mx, name))
        before = dict(tree_flatten(captured.parameters()))["0.weight"]
        optimizer = optimizers.SGD(1e-6)
        step = mlx_nn.value_and_grad(
            captured, lambda c=captured: c(input=x).astype(mx.float32).sum()
        )
        for _ in range(3):
            optimizer.update(captured, step()[1])
        after = dict(tree_flatten(captured.parameters()))["0.weight"]
        large = mx.abs(before) > 0.1
        moved[name] = int((large & (after != before)).sum())
    assert moved["bfloat16"] == 0
    assert moved["float32"] > 0


def test_masters_are_the_weights_of_the_float32_module_not_rounded_ones(assert_same):
    module, inputs = convolutions()
    captured = capture(module, inputs=inputs, compute="bfloat16")
    for name, array in tree_flatten(captured.parameters()):
        assert torch.equal(to_torch(array), module.state_dict()[name])
    narrow = cast(copy.deepcopy(module), "bfloat16")
    expected = narrow(**inputs_in(torch.bfloat16, inputs))
    found = captured(**{name: to_mlx(tensor) for name, tensor in inputs.items()})
    assert_same(found, expected, 0.02)
    assert next(module.parameters()).dtype == torch.float32
    state = captured.torch_state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.drop = nn.Embedding(9, 9), nn.Dropout(0.5)
        self.head, self.other = nn.Linear(9, 9, bias=False), nn.Linear(9, 9, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.other(self.head(self.drop(self.embedding(ids))))


def test_masters_keep_ties_and_both_modes():
    module, ids = Tied().eval(), torch.tensor([[1, 2]])
    captured = capture(module, inputs={"ids": ids}, compute="float16")
    assert set(dict(tree_flatten(captured.parameters()))) == {"embedding.weight", "other.weight"}
    state = captured.torch_state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in module.state_dict().items())
    found = {mode: np.array(captured.train(mode)(ids=to_mlx(ids))) for mode in (True, False)}
    assert {array.dtype for array in found.values()} == {np.dtype(np.float16)}
    assert not np.array_equal(found[True], found[False])


@pytest.mark.parametrize("compute", ["float64", "int8", "bf16"])
def test_an_unknown_dtype_to_compute_in_is_refused(compute):
    with pytest.raises(BadInputError, match="float32, float16, bfloat16"):
        capture(Tied(), inputs={"ids": torch.tensor([[1, 2]])}, compute=compute)


def test_the_census_of_dtypes_counts_parameters_and_operations():
    _, captured = narrow_linear()
    captured.insert_adapters({"0.weight": AdapterSpec(2)}, train=["2"])
    found = captured.dtypes()
    assert found.trainable == {"float32": 2, "bfloat16": 2}
    assert found.frozen == {"bfloat16": 6, "int64": 1}
    assert found.operations["bfloat16"]["aten.linear.default"] == 2
    captured.set_dtype(mx.float32)
    assert captured.dtypes().frozen == {"float32": 6, "int64": 1}
    assert captured.dtypes().operations == found.operations
