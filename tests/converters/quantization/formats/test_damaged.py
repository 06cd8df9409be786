"""Damaged tensors and configs of every format end in an error of ours, or are read after all."""

from __future__ import annotations

import contextlib
import json
from copy import deepcopy
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.quantization import Blocks, Dequantized, Scheme
from weighbridge.converters.quantization.formats.registry import METHODS, read, write
from weighbridge.errors import WeighbridgeError

from ..conftest import Arrays
from .conftest import arrays, mlx, view_of

VALUES = [None, 0, 1, -1, 3, 16, 10**30, True, "4", "", [], [0, 1], [64, 64], {}, {"a": 1}, 0.5]
DTYPES = [np.uint8, np.int8, np.int32, np.uint32, np.int64, np.float16, np.float32]
DTYPES += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu]


@cache
def whole(method):
    """Return the tensors and the config of a weight in the format METHOD."""
    if method == "bitsandbytes":
        return nf4()
    shape = (2, 32, 64) if method == "mxfp4" else (32, 64)
    scheme = {"mxfp4": Scheme(4, 32, "mxfp4"), "fp8": Scheme(8, 32, "mxfp8")}.get(method)
    scheme = scheme or Scheme(2 if method == "bitnet" else 4, 32)
    parts = mlx(scheme, shape)
    if method == "bitnet":
        scales = np.ones((32, 2), np.float16)
        stored = {"scales": scales, "biases": -scales}
        parts = Blocks.of_codes(np.arange(2048).reshape(32, 64) % 3, stored, scheme).parts
    written = write(view_of(parts, scheme), method)
    return arrays(written.tensors), dict(written.section)


def nf4():
    state = json.dumps({"blocksize": 64, "shape": [32, 64]}).encode()
    tensors = {
        "up.weight": np.zeros((1024, 1), np.uint8),
        "up.weight.absmax": np.ones(32, np.float32),
        "up.weight.quant_map": np.ones(16, np.float32),
        "up.weight.quant_state.bitsandbytes__nf4": np.frombuffer(state, np.uint8),
    }
    return tensors, {"quant_method": "bitsandbytes"}


def settings(section):
    """Return every setting of SECTION, groups of it included, by where it stands."""
    for key, value in section.items():
        yield (section, key)
        if isinstance(value, dict):
            yield from settings(value)


@st.composite
def damaged(draw):
    method = draw(st.sampled_from(sorted(METHODS)))
    tensors, section = whole(method)
    tensors, section = dict(tensors), json.loads(json.dumps(section))
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()):
            where, key = draw(st.sampled_from(list(settings(section))))
            value = deepcopy(draw(st.sampled_from(VALUES)))
            where[key] = value if key != "quant_method" else method
        elif tensors:
            name = draw(st.sampled_from(sorted(tensors)))
            shape = draw(st.lists(st.sampled_from([0, 1, 2, 8, 32, 64]), max_size=3))
            dtype = draw(st.sampled_from(DTYPES))
            tensors[name] = np.ones(shape, dtype)
            if draw(st.booleans()):
                del tensors[name]
    return tensors, section


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow", "ignore:divide by zero")
@given(damaged())
def test_damage_is_an_error_of_ours_or_none(case):
    tensors, section = case
    with contextlib.suppress(WeighbridgeError):
        seen = read(Arrays(tensors), {"quantization_config": section})
        Dequantized(seen.tensors, {"quantization": seen.section} if seen.section else {})
        for name in seen.tensors.headers:
            seen.tensors.read(name)
