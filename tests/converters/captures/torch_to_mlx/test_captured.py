"""Whole modules: outputs, gradients, training, names and sizes as in torch."""

from __future__ import annotations

import gc
import weakref

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as mlx_nn
from mlx import optimizers
from mlx.utils import tree_flatten
from torch import nn
from transformers import BertConfig, BertModel, T5Config, T5EncoderModel, ViTConfig, ViTModel

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import MismatchError

TEXT = {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": {0: "batch", 1: "sequence"}}
SERIES = {"series": {0: "batch", 1: "time"}}


def perturbed(module):
    """Make norms and biases matter."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return module


def bert():
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 36}
    config = BertConfig(vocab_size=50, num_hidden_layers=2, max_position_embeddings=40, **sizes)
    return perturbed(BertModel(config)).eval()


def t5():
    config = T5Config(vocab_size=50, d_model=24, d_kv=6, d_ff=40, num_layers=2, num_heads=3)
    return perturbed(T5EncoderModel(config)).eval()


class Forecaster(nn.Module):
    """A one-dimensional convolution network for series of shape (batch, time, channels)."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv1d(3, 8, 5, padding=2)
        self.blocks = nn.Sequential(
            nn.BatchNorm1d(8),
            nn.GELU(approximate="tanh"),
            nn.Conv1d(8, 8, 3, padding="same", dilation=2, groups=2),
            nn.GroupNorm(2, 8),
            nn.Dropout(0.0),
            nn.SiLU(),
            nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1),
        )
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 2)

    def forward(self, series):
        x = self.blocks(self.stem(series.transpose(1, 2)))
        x = nn.functional.avg_pool1d(x, 2)
        return self.head(self.norm(x.transpose(1, 2)))


def tokens(batch, length, padding="right"):
    ids = torch.randint(1, 50, (batch, length))
    mask = torch.ones(batch, length, dtype=torch.int64)
    for row in range(batch):
        mask[row, : row % length] = 0
    mask = mask if padding == "left" else mask.flip(1)
    return {"input_ids": ids * mask, "attention_mask": mask}


def fed(inputs):
    return {name: to_mlx(tensor) for name, tensor in inputs.items()}


def values(module):
    return dict(tree_flatten(module.parameters()))


@pytest.fixture(scope="module")
def captured_bert():
    torch.manual_seed(0)
    module = bert()
    return module, capture(module, inputs=tokens(3, 7), dynamic=TEXT)


@pytest.fixture(scope="module")
def captured_t5():
    torch.manual_seed(0)
    module = t5()
    return module, capture(module, inputs=tokens(3, 7), dynamic=TEXT)


@pytest.mark.parametrize("shape", [(3, 7), (2, 11), (1, 5), (4, 1)], ids=str)
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("model", ["captured_bert", "captured_t5"])
def test_an_encoder_agrees_at_every_size_and_padding(model, padding, shape, request, assert_same):
    module, captured = request.getfixturevalue(model)
    inputs = tokens(*shape, padding)
    expected = module(**inputs)
    found = captured(**fed(inputs))
    assert found.keys() == expected.keys()
    for name in expected:
        assert_same(found[name], expected[name], 3e-6)


@pytest.mark.parametrize("model", ["captured_bert", "captured_t5"])
def test_gradients_of_an_encoder_agree(model, request, gradients_of):
    module, captured = request.getfixturevalue(model)
    inputs = tokens(3, 7, "left")
    weights = torch.randn_like(module(**inputs).last_hidden_state)
    module.zero_grad()
    (module(**inputs).last_hidden_state * weights).sum().backward()
    expected = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    _, found = gradients_of(
        captured, lambda out: (out["last_hidden_state"] * to_mlx(weights)).sum(), **fed(inputs)
    )
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    assert found.keys() >= expected.keys()
    for name, gradient in expected.items():
        np.testing.assert_allclose(to_torch(found[name]), gradient, atol=3e-6 * scale, err_msg=name)


def test_a_vision_encoder_agrees(assert_same):
    sizes = {"hidden_size": 24, "num_attention_heads": 3, "intermediate_size": 36}
    module = ViTModel(ViTConfig(num_hidden_layers=1, image_size=12, patch_size=4, **sizes)).eval()
    inputs = {"pixel_values": torch.randn(2, 3, 12, 12)}
    captured = capture(perturbed(module), inputs=inputs, dynamic={"pixel_values": {0: "batch"}})
    inputs = {"pixel_values": torch.randn(5, 3, 12, 12)}
    expected = module(**inputs).last_hidden_state
    assert_same(captured(**fed(inputs))["last_hidden_state"], expected, 3e-6)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_a_convolution_network_trains_as_in_torch(training):
    module = perturbed(Forecaster()).train(training)
    batches = [(torch.randn(4, 10, 3), torch.randn(4, 10, 2)) for _ in range(3)]
    captured = capture(module, inputs={"series": batches[0][0]}, dynamic=SERIES)
    optimizer = torch.optim.SGD(module.parameters(), 0.05)
    ours = optimizers.SGD(0.05)
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(module(x), y)
        loss.backward()
        optimizer.step()
        step = mlx_nn.value_and_grad(captured, lambda a, b: ((captured(series=a) - b) ** 2).mean())
        found, gradients = step(to_mlx(x), to_mlx(y))
        ours.update(captured, gradients)
        assert float(found) == pytest.approx(loss.item(), rel=3e-6)
    for name, expected in module.state_dict().items():
        np.testing.assert_allclose(
            to_torch(values(captured)[name]), expected, rtol=1e-6, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize("shape", [(4, 10), (1, 7), (2, 64)], ids=str)
def test_a_convolution_network_runs_at_other_lengths(shape, assert_same):
    module = perturbed(Forecaster()).eval()
    captured = capture(module, inputs={"series": torch.randn(3, 12, 3)}, dynamic=SERIES)
    series = torch.randn(*shape, 3)
    assert_same(captured(series=to_mlx(series)), module(series), 3e-6)


@pytest.mark.heavy
@pytest.mark.compiled
def test_a_compiled_step_updates_batch_statistics_and_agrees_with_an_eager_one():
    module = perturbed(Forecaster()).train()
    x, y = torch.randn(4, 10, 3), torch.randn(4, 10, 2)

    def run(compiled):
        captured = capture(module, inputs={"series": x})
        optimizer = optimizers.SGD(0.05)
        differentiate = mlx_nn.value_and_grad(
            captured, lambda a, b: ((captured(series=a) - b) ** 2).mean()
        )

        def step(a, b):
            loss, gradients = differentiate(a, b)
            optimizer.update(captured, gradients)
            return loss

        state = [captured.state, optimizer.state]
        step = mx.compile(step, inputs=state, outputs=state) if compiled else step
        losses = [float(step(to_mlx(x), to_mlx(y))) for _ in range(2)]
        return losses, values(captured)

    (plain, before), (fused, after) = run(False), run(True)
    assert fused == pytest.approx(plain, rel=1e-6)
    for name in before:
        np.testing.assert_allclose(before[name], after[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert before["blocks.0.num_batches_tracked"].item() == 2


def test_dropout_drops_the_recorded_share_and_scales_the_rest():
    module = nn.Sequential(nn.Dropout(0.25)).train()
    captured = capture(module, inputs={"input": torch.ones(2, 2)}, dynamic={"input": {0: "n"}})
    found = np.array(captured(input=mx.ones((20_000, 2))))
    assert np.unique(found).tolist() == pytest.approx([0, 4 / 3])
    assert found.mean() == pytest.approx(1, abs=0.02)
    assert not np.array_equal(found, np.array(captured(input=mx.ones((20_000, 2)))))


def test_parameters_have_the_names_and_layouts_of_torch(captured_bert):
    module, captured = captured_bert
    state = module.state_dict()
    assert list(values(captured)) == list(state)
    assert all(tuple(values(captured)[name].shape) == tuple(state[name].shape) for name in state)


def test_weights_go_home_strictly_and_bit_for_bit(captured_bert):
    module, captured = captured_bert
    home = bert()
    home.load_state_dict(captured.torch_state_dict(), strict=True)
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, home.state_dict()[name])


def test_a_numbered_module_with_gaps_loads_and_keeps_its_names():
    module = nn.Sequential(nn.ReLU(), nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2)))
    captured = capture(module, inputs={"input": torch.ones(2, 2)})
    assert list(values(captured)) == ["1.weight", "1.bias", "3.0.weight", "3.0.bias"]
    zeros = [(name, mx.zeros_like(array)) for name, array in values(captured).items()]
    captured.load_weights(zeros, strict=True)
    assert not np.array(captured(input=mx.ones((2, 2)))).any()


class Awkward(nn.Module):
    def __init__(self):
        super().__init__()
        self.update, self.trace = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.trace(self.update(x))


def test_children_called_like_methods_of_mlx_modules_are_kept():
    module = Awkward()
    captured = capture(module, inputs={"x": torch.ones(2, 2)})
    assert set(values(captured)) == set(module.state_dict())
    assert captured.update(captured.parameters()).trace({"x": mx.ones((2, 2))})[1].keys() == {
        "update",
        "trace",
    }


def test_bfloat16_stays_bfloat16(assert_same):
    module = nn.Linear(3, 4).bfloat16()
    captured = capture(module, inputs={"input": torch.ones(2, 3).bfloat16()})
    assert values(captured)["weight"].dtype == mx.bfloat16
    x = torch.randn(2, 3).bfloat16()
    assert_same(captured(input=to_mlx(x)), module(x), 1e-2)
    assert torch.equal(captured.torch_state_dict()["weight"], module.weight)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 3, padding_idx=2)
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("offset", torch.ones(7))
        self.register_buffer("hidden", torch.full((7,), 2.0), persistent=False)
        self.scale = nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, ids):
        return (self.head(self.embedding(ids)) + self.offset) * self.scale * self.hidden


def test_tied_weights_are_one_parameter_whose_gradients_add_up(gradients_of):
    module = Tied()
    ids = torch.tensor([[0, 2, 5], [5, 1, 2]])
    captured = capture(module, inputs={"ids": ids})
    module(ids).square().sum().backward()
    _, found = gradients_of(captured, lambda out: (out * out).sum(), ids=to_mlx(ids))
    assert list(found) == ["embedding.weight"]
    np.testing.assert_allclose(found["embedding.weight"], module.embedding.weight.grad, rtol=1e-5)
    home = Tied()
    home.load_state_dict(captured.torch_state_dict(), strict=True)
    assert torch.equal(home.head.weight, module.head.weight)


def test_buffers_and_untrained_parameters_stay_frozen_when_all_is_unfrozen():
    captured = capture(Tied(), inputs={"ids": torch.ones(2, 3, dtype=torch.int64)})
    captured.unfreeze()
    assert list(dict(tree_flatten(captured.trainable_parameters()))) == ["embedding.weight"]
    assert set(values(captured)) == {"embedding.weight", "offset", "scale"}


def test_buffers_of_submodules_stay_frozen_when_all_is_unfrozen():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    captured = capture(module, inputs={"input": torch.ones(2, 3)})
    captured.freeze()
    captured.unfreeze()
    trainable = dict(tree_flatten(captured.trainable_parameters()))
    assert set(trainable) == {name for name, _ in module.named_parameters()}


class Structured(nn.Module):
    def forward(self, a, b, flag=True):
        return {"sum": a + b, "both": (a, [b, a * 2]), "none": None, "flag": flag}


def test_a_module_returns_the_structure_that_it_returns_in_torch():
    a = torch.ones(2)
    captured = capture(Structured(), inputs={"b": a, "a": a, "flag": False})
    found = captured(a=mx.array([1.0, 2.0]), b=mx.array([10.0, 20.0]))
    assert found["sum"].tolist() == [11, 22]
    assert found["both"][1][1].tolist() == [2, 4]
    assert found["none"] is None
    assert found["flag"] is False


class Blocked(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.outer = nn.Linear(3, 3)
        self.block = block

    def forward(self, x):
        with self.block():
            y = self.inner(x)
        return self.outer(torch.ones_like(y) * y)


class Data(Blocked):
    def forward(self, x):
        return self.outer(self.inner(x).data)


@pytest.mark.parametrize(
    "module",
    [Blocked(torch.no_grad), Data(None), Blocked(torch.inference_mode)],
    ids=["no_grad", "data", "inference_mode"],
)
def test_no_gradient_leaves_a_block_or_data_that_has_none(module, gradients_of):
    with torch.no_grad():  # the caller's mode does not matter
        captured = capture(module, inputs={"x": torch.randn(2, 3)})
    x = torch.randn(2, 3)
    if module.block is torch.inference_mode:  # torch itself cannot save its tensors for a gradient
        module.block = torch.no_grad
    module(x).square().sum().backward()
    _, found = gradients_of(captured, lambda out: (out * out).sum(), x=to_mlx(x))
    np.testing.assert_allclose(
        found["outer.weight"], module.outer.weight.grad, rtol=1e-5, atol=1e-6
    )
    assert module.inner.weight.grad is None
    assert not np.array(found["inner.weight"]).any()


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x)
        return self.second(y.float()), y


def test_an_autocast_block_computes_in_its_dtype(assert_same):
    module = Mixed()
    x = torch.randn(2, 3)
    found, expected = capture(module, inputs={"x": x})(x=to_mlx(x)), module(x)
    assert_same(found[0], expected[0], 1e-2)
    assert_same(found[1], expected[1], 1e-2)


def test_float64_stays_float64_on_the_cpu(assert_same):
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    assert_same(capture(module, inputs={"input": x})(input=to_mlx(x)), module(x), 1e-14)


def test_the_torch_module_can_be_dropped():
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
    captured = capture(module, inputs={"input": torch.ones(2, 3)}, dynamic={"input": {0: "n"}})
    parameter = weakref.ref(module[0].weight)
    module = weakref.ref(module)
    gc.collect()
    assert module() is None
    assert parameter() is None
    assert captured(input=mx.ones((5, 3))).shape == (5, 4)


def test_a_fixed_size_refuses_another_one():
    captured = capture(nn.Linear(3, 2), inputs={"input": torch.ones(4, 3)})
    with pytest.raises(MismatchError, match=r"input: axis 0 has 5 elements, recorded with 4"):
        captured(input=mx.ones((5, 3)))


@pytest.mark.heavy
def test_minilm_agrees_with_its_real_weights(minilm_dir, assert_same):
    module = BertModel.from_pretrained(minilm_dir).eval()
    captured = capture(module, inputs=tokens(2, 9), dynamic=TEXT)
    for shape in [(4, 24), (3, 48)]:
        inputs = tokens(*shape)
        found = captured(**fed(inputs))["last_hidden_state"]
        assert_same(found, module(**inputs).last_hidden_state, 1e-5)
