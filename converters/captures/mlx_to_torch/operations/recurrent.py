"""Recurrent layers of MLX by torch's; MLX gives every step, of the cell too."""

from __future__ import annotations

import torch
from torch import Tensor

from .layers import given
from .registry import Call, primitive, training


def _zeros(x: Tensor, hidden: Tensor) -> Tensor:
    return x.new_zeros(x.shape[0], hidden.shape[-1])


def _biases(weight: Tensor, *biases: Tensor | None) -> list[Tensor]:
    return [weight.new_zeros(weight.shape[0]) if it is None else it for it in biases]


@primitive("LSTM")
def _lstm(call: Call) -> tuple[Tensor, Tensor | None]:
    x, wx, wh, *arrays = call.inputs
    bias, *states = given(arrays, call.arguments)
    flat = x.ndim == 2  # one series without a batch
    x = x[None] if flat else x
    start = [_zeros(x, wh) if it is None else it[None] if flat else it for it in states]
    weights = [wx, wh, *_biases(wx, bias, None)]
    cells = None
    if call.used[1]:
        made, cells = _steps(x, start, weights)
    else:
        made = _run(x, start, weights)[0]
    return (made[0], None if cells is None else cells[0]) if flat else (made, cells)


def _run(x: Tensor, start: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    states = [it[None] for it in start]
    made: tuple[Tensor, Tensor, Tensor] = torch.lstm(
        x, states, weights, True, 1, 0.0, False, False, True
    )
    return made


def _steps(x: Tensor, start: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return hidden states and cells of every step, which torch.lstm does not give."""
    hidden, cell = start
    wx, wh, bias, _ = weights
    gates = torch.nn.functional.linear(x, wx, bias)
    made = []
    for gate in gates.unbind(1):
        i, f, g, o = (gate + hidden @ wh.mT).chunk(4, -1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        made.append((hidden, cell))
    hiddens, cells = zip(*made, strict=True)
    return torch.stack(hiddens, 1), torch.stack(cells, 1)


@primitive("GRU")
def _gru(call: Call) -> Tensor:
    x, wx, wh, *arrays = call.inputs
    bias, last, hidden = given(arrays, call.arguments)
    if not training() and x.ndim == 3 and last is not None and bias is not None:
        return _gru_steps(torch.nn.functional.linear(x, wx, bias), wh, last, hidden)
    both = _biases(wx, bias, None)
    if last is not None:
        both[1] = torch.cat([both[1][: -last.shape[0]], last])
    return _single("gru", (x, hidden), [wx, wh, *both])


def _gru_steps(gates: Tensor, wh: Tensor, last: Tensor, hidden: Tensor | None) -> Tensor:
    """Run the steps one by one, as an exporter would, with MLX's own bias and none made from it."""
    hidden = _zeros(gates, wh) if hidden is None else hidden
    made = []
    for gate in gates.unbind(1):
        parts = torch.nn.functional.linear(hidden, wh).chunk(3, -1)
        r, z, n = gate.chunk(3, -1)
        r, z = torch.sigmoid(r + parts[0]), torch.sigmoid(z + parts[1])
        n = torch.tanh(n + r * (parts[2] + last))
        hidden = (1 - z) * n + z * hidden
        made.append(hidden)
    return torch.stack(made, 1)


@primitive("RNN")
def _rnn(call: Call) -> Tensor:
    x, wx, wh, *arrays = call.inputs
    bias, hidden = given(arrays, call.arguments)
    return _single("rnn_tanh", (x, hidden), [wx, wh, *_biases(wx, bias, None)])


def _single(name: str, states: tuple[Tensor, Tensor | None], weights: list[Tensor]) -> Tensor:
    """Return what torch's layer NAME, of one state, makes of the series."""
    x, hidden = states
    flat = x.ndim == 2
    if flat:
        x, hidden = x[None], None if hidden is None else hidden[None]
    start = _zeros(x, weights[1]) if hidden is None else hidden
    made: Tensor = getattr(torch, name)(x, start[None], weights, True, 1, 0.0, False, False, True)[
        0
    ]
    return made[0] if flat else made
