"""Kernels that run over time: LSTM, GRU and the plain recurrent network.

In direction ``reverse`` the outputs stay in the order of computation, last input first; only the
backward half of a bidirectional LSTM is put back into the order of time. So coremltools' own tests.
"""

# ruff: noqa: PLR0913, PLR0917  (a kernel has the inputs of its MIL operation)
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from .....errors import UnsupportedError
from .kernel import Function

Activation = Callable[[Tensor], Tensor]


def hard_sigmoid(x: Tensor) -> Tensor:
    """Return ``min(max(0.2 x + 0.5, 0), 1)``."""
    return (0.2 * x + 0.5).clamp(0, 1)


# Inside a recurrent op the parameters of an activation are its defaults: scaled_tanh is tanh.
ACTIVATIONS: Final[Mapping[str, Activation]] = {
    "hard_sigmoid": hard_sigmoid,
    "linear": lambda x: x,
    "relu": torch.relu,
    "scaled_tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "sigmoid_hard": hard_sigmoid,
    "softsign": F.softsign,
    "tanh": torch.tanh,
}


class Cell(NamedTuple):
    """What an LSTM needs beside its state; gates are in the order input, forget, output, cell."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor | None
    peephole: Tensor | None
    activations: tuple[Activation, ...]  # of gates, candidate and output
    clip: float


def lstm_step(cell: Cell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden and cell state after one step (Gers and Schmidhuber 2000 with peepholes)."""
    gates = F.linear(x, cell.weight_ih, cell.bias) + F.linear(h, cell.weight_hh)
    i, f, o, z = gates.chunk(4, -1)
    peep = [0.0, 0.0, 0.0] if cell.peephole is None else list(cell.peephole.chunk(3))
    gate, candidate, output = cell.activations
    c = gate(f + c * peep[1]) * c + gate(i + c * peep[0]) * candidate(z)
    c = c.clamp(-cell.clip, cell.clip)
    return gate(o + c * peep[2]) * output(c), c


def lstm_pass(cell: Cell, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run over time; return all hidden states, the last one and the last cell state."""
    outputs = []
    for step in x:
        h, c = lstm_step(cell, step, h, c)
        outputs.append(h)
    return torch.stack(outputs), h, c


def lstm(
    x: Tensor,
    initial_h: Tensor,
    initial_c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    peephole: Tensor | None = None,
    weight_ih_back: Tensor | None = None,
    weight_hh_back: Tensor | None = None,
    bias_back: Tensor | None = None,
    peephole_back: Tensor | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
    clip: float = float("inf"),
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM over (time, batch, in); states of two directions lie side by side."""
    names = (recurrent_activation, cell_activation, activation)
    functions = tuple(ACTIVATIONS[name] for name in names)
    cells = [Cell(weight_ih, weight_hh, bias, peephole, functions, clip)]
    if weight_ih_back is not None and weight_hh_back is not None:
        cells += [Cell(weight_ih_back, weight_hh_back, bias_back, peephole_back, functions, clip)]
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    hs, cs = (initial.chunk(len(backwards), -1) for initial in (initial_h, initial_c))
    runs = []
    for cell, back, h, c in zip(cells, backwards, hs, cs, strict=True):
        y, h_last, c_last = lstm_pass(cell, x.flip(0) if back else x, h, c)
        runs.append((y.flip(0) if direction == "bidirectional" and back else y, h_last, c_last))
    y, h, c = (torch.cat(parts, -1) for parts in zip(*runs, strict=True))
    return y if output_sequence else h.unsqueeze(0), h, c


def run(
    steps: Tensor, h: Tensor, following: Callable[[Tensor, Tensor], Tensor], output_sequence: bool
) -> tuple[Tensor, Tensor]:
    """Return all states that follow H over STEPS, or the last one alone, and the last one."""
    outputs = [h := following(step, h) for step in steps]
    return torch.stack(outputs) if output_sequence else h.unsqueeze(0), h


def gru_step(
    x: Tensor, h: Tensor, weight: Tensor, bias: Tensor, gate: Activation, output: Activation
) -> Tensor:
    """Return the hidden state after one step; gates are in the order reset, output, update.

    X holds the input's share of the gates. The reset gate is applied before the product with the
    recurrent weight (Cho et al. 2014), unlike PyTorch's.
    """
    (x_r, x_o, x_z), (w_r, w_o, w_z) = x.chunk(3, -1), weight.chunk(3)
    b_r, b_o, b_z = bias.chunk(3)
    reset = gate(x_r + F.linear(h, w_r, b_r))
    update = gate(x_z + F.linear(h, w_z, b_z))
    return (1 - update) * output(x_o + F.linear(reset * h, w_o, b_o)) + update * h


def gru(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    activation: str = "tanh",
    reset_after: bool = False,
    input_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run a GRU over (time, batch, in)."""
    if reset_after:
        raise UnsupportedError("gru with reset_after: coremltools' own test of it fails")
    gate, output = ACTIVATIONS[recurrent_activation], ACTIVATIONS[activation]
    recurrent_bias = weight_hh.new_zeros(weight_hh.shape[0]) if bias is None else bias
    steps = F.linear(x.flip(0) if direction == "reverse" else x, weight_ih, input_bias)

    def following(step: Tensor, h: Tensor) -> Tensor:
        return gru_step(step, h, weight_hh, recurrent_bias, gate, output)

    return run(steps, initial_h, following, output_sequence)


def rnn(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: str = "forward",
    output_sequence: bool = False,
    activation: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """Run ``h = activation(W x + U h + b)`` over (time, batch, in)."""
    steps = F.linear(x.flip(0) if direction == "reverse" else x, weight_ih, bias)

    def following(step: Tensor, h: Tensor) -> Tensor:
        return ACTIVATIONS[activation](step + F.linear(h, weight_hh))

    return run(steps, initial_h, following, output_sequence)


KERNELS: Final[Mapping[str, Function]] = {"gru": gru, "lstm": lstm, "rnn": rnn}
