"""Operations without a handler, made of others by torch's own table."""

from __future__ import annotations

import torch
from torch.nn import functional

from weighbridge.converters.captures import census
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
