"""Recurrent layers and cells, against torch."""

from itertools import cycle

import mlx.core as mx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx import nn as mlx_nn
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.converters.captures.torch_to_mlx.operations.recurrent import cells, loops
from weighbridge.converters.captures.torch_to_mlx.operations.registry import handlers
from weighbridge.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
FORMS = {
    "LSTM": (nn.LSTM, {}),
    "LSTM, projected": (nn.LSTM, {"proj_size": 3}),
    "LSTM, projected, no bias, both ways, two layers": (
        nn.LSTM,
        {"proj_size": 2, "bias": False, "bidirectional": True, "num_layers": 2},
    ),
    "GRU": (nn.GRU, {"batch_first": True}),
    "GRU, no bias, both ways, two layers": (
        nn.GRU,
        {"bias": False, "bidirectional": True, "num_layers": 2},
    ),
    "RNN of relus": (nn.RNN, {"nonlinearity": "relu", "bidirectional": True}),
    "RNN, no bias": (nn.RNN, {"bias": False}),
    "LSTM, all dropped between layers": (nn.LSTM, {"num_layers": 2, "dropout": 1.0}),
}
HIDDEN = 5


class Layer(nn.Module):
    """A recurrent layer with weights of realistic gain, from a state or from zero."""

    def __init__(self, kind, with_state, options):
        super().__init__()
        self.layer = kind(4, HIDDEN, **options)
        self.pair = kind is nn.LSTM
        self.with_state = with_state
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=1.5 / parameter.shape[-1] ** 0.5)

    def forward(self, x, hidden, cell):
        start = (hidden, cell) if self.pair else hidden
        output, state = self.layer(x, start if self.with_state else None)
        return (output, *state) if self.pair else (output, state)


def drawn(module, batch, time):
    layer = module.layer
    count = layer.num_layers * (1 + layer.bidirectional)
    shape = (batch, time, 4) if layer.batch_first else (time, batch, 4)
    return {
        "x": torch.randn(shape),
        "hidden": torch.randn(count, batch, layer.proj_size or HIDDEN),
        "cell": torch.randn(count, batch, HIDDEN),
    }


def given_to(module, tensors):
    """Return what MODULE uses of TENSORS."""
    needed = ["x", *["hidden"] * module.with_state, *["cell"] * (module.pair and module.with_state)]
    return {name: tensors[name] for name in needed}


def weight(output):
    """Return what every number of OUTPUT counts in the loss: between -1 and 1, no two the same."""
    return np.linspace(-1, 1, np.prod(output.shape), dtype=np.float32).reshape(output.shape)


def torch_gradients(module, tensors):
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    module.zero_grad()
    outputs = module(**leaves)
    sum((output * torch.from_numpy(weight(output))).sum() for output in outputs).backward()
    own = given_to(module, leaves)
    return outputs, {
        **{name: leaf.grad for name, leaf in own.items()},
        **{name: p.grad for name, p in module.named_parameters() if p.grad is not None},
    }


def our_gradients(captured, arrays, compiled):
    def loss(inputs):
        outputs = captured(**inputs)
        return sum((output * mx.array(weight(output))).sum() for output in outputs), outputs

    def step(inputs):
        def of_both(parameters, inputs):
            captured.update(parameters)
            return loss(inputs)

        both = mx.value_and_grad(of_both, argnums=(0, 1))
        (_, outputs), found = both(captured.trainable_parameters(), inputs)
        return outputs, found

    state = captured.state
    run = mx.compile(step, inputs=state, outputs=state) if compiled else step
    outputs, (parameters, inputs) = run(arrays)
    return outputs, {**inputs, **dict(mlx_nn.utils.tree_flatten(parameters))}


@pytest.mark.parametrize(
    ("name", "with_state"), list(zip(FORMS, cycle([True, False]), strict=False))
)
def test_layers_agree_at_several_lengths(assert_same, name, with_state):
    check_lengths(assert_same, Layer(FORMS[name][0], with_state, FORMS[name][1]), compiled=False)


@pytest.mark.compiled
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_compiled_layers_agree_at_several_lengths(assert_same, kind):
    check_lengths(assert_same, Layer(kind, False, {}), compiled=True)


def check_lengths(assert_same, module, compiled):
    axes = {0: "batch", 1: "time"} if module.layer.batch_first else {0: "time", 1: "batch"}
    captured = capture(
        module,
        inputs=drawn(module, 2, 3),
        dynamic={"x": axes, "hidden": {1: "batch"}, "cell": {1: "batch"}},
    )
    for batch, time in ((2, 7), (3, 1)):
        tensors = drawn(module, batch, time)
        expected, gradients = torch_gradients(module, tensors)
        arrays = {key: to_mlx(tensor) for key, tensor in tensors.items()}
        found, ours = our_gradients(captured, arrays, compiled)
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, 2e-6)
        for key, gradient in gradients.items():
            assert_same(ours[key], gradient, 1e-5)


def test_long_sequences_stay_as_exact(assert_same):
    module = Layer(nn.LSTM, False, {})
    captured = capture(module, inputs=drawn(module, 2, 4), dynamic={"x": {0: "time"}})
    tensors = drawn(module, 2, 200)
    expected, gradients = torch_gradients(module, tensors)
    found, ours = our_gradients(captured, {k: to_mlx(v) for k, v in tensors.items()}, False)
    assert_same(found[0], expected[0], 1e-5)
    for key, gradient in gradients.items():
        assert_same(ours[key], gradient, 1e-5)


def test_cells(agree):
    def cell(kind, function, rows, states=1):
        weights = [torch.randn(rows * 3, size) for size in (4, 3)]
        biases = [torch.randn(rows * 3) for _ in range(2)]
        start = [torch.randn(2, 3) for _ in range(states)]
        return function, torch.randn(2, 4), *start, *weights, *biases

    agree(
        {
            "lstm": cell("lstm", lambda x, h, c, *w: torch.lstm_cell(x, [h, c], *w), 4, 2),
            "gru": cell("gru", torch.gru_cell, 3),
            "tanh": cell("tanh", torch.rnn_tanh_cell, 1),
            "relu": cell("relu", torch.rnn_relu_cell, 1),
            "no bias": cell("gru", lambda x, h, w, u, *_: torch.gru_cell(x, h, w, u), 3),
        }
    )


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_modules_of_cells_in_a_loop_of_the_users_own(assert_same, kind):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = kind(4, 5)

        def forward(self, x):
            state = None
            for step in range(x.shape[1]):
                state = self.cell(x[:, step], state)
            return state

    module, x = Loop(), torch.randn(2, 3, 4)
    found, expected = capture(module, inputs={"x": x})(x=to_mlx(x)), module(x)
    pairs = zip(found, expected, strict=True) if kind is nn.LSTMCell else [(found, expected)]
    for one, other in pairs:
        assert_same(one, other, 2e-6)


def test_dropout_between_layers_keeps_the_expected_share_and_draws_anew(drawn):
    layer = nn.RNN(1, 400, num_layers=2, dropout=0.25, nonlinearity="relu", bias=False)
    with torch.no_grad():
        layer.weight_ih_l0.fill_(1)
        layer.weight_ih_l1.copy_(torch.eye(400))
        layer.weight_hh_l0.zero_(), layer.weight_hh_l1.zero_()

    def dropped(x):
        return torch.func.functional_call(layer, dict(layer.named_parameters()), x)[0]

    found = drawn(dropped, torch.ones(5, 2, 1))
    assert set(np.unique(found.round(5))) == {0, np.float32(1.33333)}
    assert 0.7 < (found > 0).mean() < 0.8


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(["lstm", "gru", "rnn_tanh", "rnn_relu"]),
    sizes=st.tuples(*[st.integers(1, 6)] * 4),
    layers=st.integers(1, 3),
    flags=st.tuples(*[st.booleans()] * 3),
)
def test_any_shape_gives_what_torch_gives(kind, sizes, layers, flags):
    time, batch, features, hidden = sizes
    biases, both, batch_first = flags
    states = [torch.randn(layers * (1 + both), batch, hidden) for _ in range(1 + (kind == "lstm"))]
    rows = {"lstm": 4, "gru": 3}.get(kind, 1) * hidden
    params = []
    for layer in range(layers):
        entering = hidden * (1 + both) if layer else features
        for _ in range(1 + both):
            params += [torch.randn(rows, entering) / 2, torch.randn(rows, hidden) / 2]
            params += [torch.randn(rows), torch.randn(rows)] if biases else []
    x = torch.randn((batch, time, features) if batch_first else (time, batch, features))
    form = [biases, layers, 0.0, False, both, batch_first]
    expected = getattr(torch, kind)(x, states if len(states) > 1 else states[0], params, *form)
    names = ["has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first"]
    found = handlers()[f"aten.{kind}.input"].function(
        input_=to_mlx(x),
        hx=[to_mlx(s) for s in states] if len(states) > 1 else to_mlx(states[0]),
        params=[to_mlx(p) for p in params],
        **dict(zip(names, form, strict=True)),
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.array(one), other.numpy(), rtol=1e-5, atol=2e-6)


def test_narrow_dtypes_keep_theirs():
    module = nn.GRU(4, 5).bfloat16()
    x = torch.randn(6, 2, 4).bfloat16()
    found, _ = capture(module, inputs={"input": x})(input=to_mlx(x))
    assert found.dtype == mx.bfloat16
    expected = module.float()(x.float())[0]
    assert abs(np.array(found.astype(mx.float32)) - expected.detach().numpy()).max() < 0.05


def test_a_gradient_of_a_gradient_is_refused():
    run = loops.loop_of(loops.Loop(cells.TANH, backwards=False))

    def total(x):
        return run(x, [mx.ones((1, 2))], [mx.ones((2, 2))], [])[0].sum()

    with pytest.raises(UnsupportedError, match="gradient of a gradient"):
        mx.grad(lambda x: mx.grad(total)(x).sum())(mx.ones((3, 1, 2)))
