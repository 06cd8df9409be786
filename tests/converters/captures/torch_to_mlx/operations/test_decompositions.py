"""Operations without a handler, made of others by torch's own table."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch._export import utils
from torch.nn import functional

from weighbridge.converters.captures import capture, census
from weighbridge.converters.captures.torch_to_mlx.operations import decompositions
from weighbridge.converters.captures.torch_to_mlx.operations.registry import handlers

CASES = {
    "sinc": torch.sinc,
    "renorm": lambda x: torch.renorm(x, 2, 0, 1.0),
    "cross": lambda x: torch.linalg.cross(x[:, :3], x[:, 1:4]),
    "nansum": torch.nansum,
    "entropy": torch.special.entr,
    "cube of a sum": lambda x: torch.addr(x, x[0], x[1]),
    "tensordot": lambda x: torch.tensordot(x, x, 1),
    "scaled elu": functional.selu,
    "transformed back and viewed": lambda x: (
        torch.fft.irfft(torch.fft.rfft(x, dim=0), 4, dim=0).transpose(0, 1).reshape(2, 2, 4)
    ),
    "not numbers": lambda x: torch.nan_to_num(x / (x > 0)),
}


def test_an_operation_without_a_handler_is_made_of_others(agree):
    assert not {"aten.linalg_cross.default", "aten.col2im.default"} & set(handlers())
    agree({name: (function, (4, 4)) for name, function in CASES.items()}, rtol=4e-6)


def test_one_that_reads_values_is_named_by_the_census():
    class Places(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x).float()

    found = census(Places(), inputs={"x": torch.ones(3)})
    assert any("aten.nonzero.default" in name for name in found.unsupported)


class Focal(torch.nn.Module):
    """Weighs the loss of each row; its norm updates statistics, so that torch records it twice."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x, classes):
        each = functional.cross_entropy(self.norm(x), classes, reduction="none")
        return (1 - torch.exp(-each)) ** 2 * each


def test_losses_of_each_row_keep_their_shape_where_batches_vary():
    module = Focal()
    inputs = {"x": torch.randn(3, 4), "classes": torch.tensor([0, 3, 1])}
    captured = capture(module, inputs=inputs, dynamic={"x": {0: "n"}, "classes": {0: "n"}})
    x, classes = torch.randn(5, 4), torch.tensor([0, 3, 1, 2, 2])
    found = captured(x=mx.array(x.numpy()), classes=mx.array(classes.numpy()))
    np.testing.assert_allclose(found, module(x, classes).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")  # torch's own, of its own code
def test_torchs_composite_operations_are_made_once_a_trace(monkeypatch):
    made = []
    monkeypatch.setattr(utils, "_materialize_cpp_cia_ops", lambda: made.append(1))
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    found = [it.op for it in decompositions._traced(program, {}).graph.nodes]
    assert (found, made) == ([it.op for it in program.graph.nodes], [1])
