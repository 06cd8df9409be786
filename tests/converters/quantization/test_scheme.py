"""Schemes are those of MLX, with its defaults."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx import nn

from weighbridge.converters.quantization import Scheme
from weighbridge.errors import UnsupportedError

from .conftest import AFFINE, FLOATS


@pytest.mark.parametrize("scheme", AFFINE + FLOATS, ids=str)
def test_mlx_takes_every_scheme(scheme):
    mx.eval(mx.quantize(mx.ones((2, 128)), **scheme.record))
    assert Scheme.of(scheme.record) == scheme


@pytest.mark.parametrize("settings", [(7, 64), (4, 16), (4, 64, "mxfp4"), (4, 32, "nf4")])
def test_what_mlx_refuses_is_no_scheme(settings):
    with pytest.raises(UnsupportedError, match="MLX has affine: bits 2, 3, 4, 5, 6, 8"):
        Scheme(*settings)
    with pytest.raises(ValueError, match=r"\[quantize|Invalid"):
        mx.eval(mx.quantize(mx.ones((2, 128)), settings[1], settings[0], *settings[2:]))


@pytest.mark.parametrize(
    "record", [{}, {"bits": 8}, {"group_size": 32}, {"mode": "mxfp4"}, {"mode": "nvfp4"}]
)
def test_what_a_record_lacks_is_filled_in_as_mlx_does(record):
    layer = nn.Linear(128, 8).to_quantized(**record)
    assert Scheme.of(record) == Scheme(layer.bits, layer.group_size, layer.mode)
