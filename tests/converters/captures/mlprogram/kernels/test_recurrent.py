"""Recurrent kernels, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.captures.mlprogram.evaluator import KERNELS
from weighbridge.errors import UnsupportedError

TIME, BATCH, IN, HIDDEN = 5, 2, 3, 4


def ifoz(tensor):
    """Reorder torch's gates (input, forget, cell, output) to MIL's (input, forget, output, cell)."""
    i, f, z, o = tensor.chunk(4)
    return torch.cat([i, f, o, z])


def lstm_weights(layer, suffix=""):
    bias = getattr(layer, f"bias_ih_l0{suffix}") + getattr(layer, f"bias_hh_l0{suffix}")
    names = ("weight_ih", "weight_hh")
    ih, hh = (ifoz(getattr(layer, f"{name}_l0{suffix}")) for name in names)
    return ih, hh, ifoz(bias)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(TIME, BATCH, IN)


@torch.no_grad()
@pytest.mark.parametrize("whole", [True, False])
def test_lstm_equals_torch(whole, x):
    layer, h, c = torch.nn.LSTM(IN, HIDDEN), *torch.randn(2, 1, BATCH, HIDDEN)
    expected, (h_last, c_last) = layer(x, (h, c))
    ih, hh, bias = lstm_weights(layer)
    inputs = {"x": x, "initial_h": h[0], "initial_c": c[0], "weight_ih": ih, "weight_hh": hh}
    y, h_n, c_n = KERNELS["lstm"]({**inputs, "bias": bias, "output_sequence": whole})
    torch.testing.assert_close(y, expected if whole else expected[-1:])
    torch.testing.assert_close(h_n, h_last[0])
    torch.testing.assert_close(c_n, c_last[0])


@torch.no_grad()
def test_bidirectional_lstm_equals_torch(x):
    layer, h, c = torch.nn.LSTM(IN, HIDDEN, bidirectional=True), *torch.randn(2, 2, BATCH, HIDDEN)
    expected, (h_last, _) = layer(x, (h, c))
    (ih, hh, bias), (ih_back, hh_back, bias_back) = (
        lstm_weights(layer, suffix) for suffix in ("", "_reverse")
    )
    inputs = {
        "x": x, "initial_h": torch.cat(list(h), -1), "initial_c": torch.cat(list(c), -1),
        "weight_ih": ih, "weight_hh": hh, "bias": bias, "weight_ih_back": ih_back,
        "weight_hh_back": hh_back, "bias_back": bias_back, "direction": "bidirectional",
        "output_sequence": True,
    }  # fmt: skip
    y, h_n, _ = KERNELS["lstm"](inputs)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(h_n, torch.cat(list(h_last), -1))


@torch.no_grad()
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_rnn_equals_torch_on_the_inputs_in_that_order(activation, direction, x):
    layer, h = torch.nn.RNN(IN, HIDDEN, nonlinearity=activation), torch.randn(1, BATCH, HIDDEN)
    expected, h_last = layer(x.flip(0) if direction == "reverse" else x, h)
    inputs = {
        "x": x, "initial_h": h[0], "weight_ih": layer.weight_ih_l0, "weight_hh": layer.weight_hh_l0,
        "bias": layer.bias_ih_l0 + layer.bias_hh_l0, "direction": direction,
        "activation": activation, "output_sequence": True,
    }  # fmt: skip
    y, h_n = KERNELS["rnn"](inputs)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(h_n, h_last[0])


def test_gru_applies_the_reset_gate_before_the_recurrent_product():
    """Against the formula of coremltools' documentation, written out in numpy for one step."""
    random = np.random.default_rng(0)
    w, u, b = (random.standard_normal((3 * HIDDEN, n)) for n in (IN, HIDDEN, 1))
    x, h = random.standard_normal(IN), random.standard_normal(HIDDEN)
    sigmoid = lambda z: 1 / (1 + np.exp(-z))  # noqa: E731
    (w_r, w_o, w_z), (u_r, u_o, u_z), (b_r, b_o, b_z) = (np.split(m, 3) for m in (w, u, b[:, 0]))
    reset, update = sigmoid(w_r @ x + u_r @ h + b_r), sigmoid(w_z @ x + u_z @ h + b_z)
    expected = (1 - update) * np.tanh(w_o @ x + u_o @ (reset * h) + b_o) + update * h
    arrays = {"x": x[None, None], "initial_h": h[None], "weight_ih": w, "weight_hh": u,
              "bias": b[:, 0]}  # fmt: skip
    _, h_n = KERNELS["gru"]({name: torch.from_numpy(array) for name, array in arrays.items()})
    np.testing.assert_allclose(h_n[0], expected)


def test_gru_with_reset_after_is_refused_by_name():
    zeros = {"x": torch.zeros(1, 1, IN), "initial_h": torch.zeros(1, HIDDEN),
             "weight_ih": torch.zeros(12, IN), "weight_hh": torch.zeros(12, HIDDEN)}  # fmt: skip
    with pytest.raises(UnsupportedError, match="reset_after"):
        KERNELS["gru"]({**zeros, "reset_after": True})


@torch.no_grad()
def test_lstm_clips_the_cell_and_adds_peepholes(x):
    torch.manual_seed(1)
    ih, hh, peephole = torch.randn(16, IN), torch.randn(16, HIDDEN), torch.randn(12)
    h = c = torch.zeros(BATCH, HIDDEN)
    inputs = {"x": x, "initial_h": h, "initial_c": c, "weight_ih": ih, "weight_hh": hh,
              "peephole": peephole, "clip": 0.5}  # fmt: skip
    p_i, p_f, p_o = peephole.chunk(3)
    for step in x:
        i, f, o, z = (step @ ih.T + h @ hh.T).chunk(4, -1)
        c = torch.sigmoid(f + c * p_f) * c + torch.sigmoid(i + c * p_i) * torch.tanh(z)
        c = c.clamp(-0.5, 0.5)
        h = torch.sigmoid(o + c * p_o) * torch.tanh(c)
    _, h_n, c_n = KERNELS["lstm"](inputs)
    torch.testing.assert_close(h_n, h)
    torch.testing.assert_close(c_n, c)
