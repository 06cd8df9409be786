"""NF4 is read dense, by the formula of bitsandbytes written out here."""

from __future__ import annotations

import json

import numpy as np
import pytest

from weighbridge.converters.quantization.formats.registry import read, write
from weighbridge.converters.quantization.scheme import Scheme
from weighbridge.errors import BadInputError, UnsupportedError

from ..conftest import Arrays
from .conftest import mlx, view_of

STATE = "up.weight.quant_state.bitsandbytes__nf4"
SECTION = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def nf4(*, nested, shape=(6, 64), size=32):
    """Return tensors as bitsandbytes stores them, and the values that they stand for."""
    random, count = np.random.default_rng(0), shape[0] * shape[1]
    codes, table = random.integers(0, 16, count), random.standard_normal(16).astype(np.float32)
    state = {"quant_type": "nf4", "blocksize": size, "dtype": "float16", "shape": list(shape)}
    scales = random.random(count // size).astype(np.float32)
    tensors = {
        "up.weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
        "up.weight.absmax": scales,
        "up.weight.quant_map": table,
        "up.bias": np.ones(6, np.float32),
    }
    if nested:
        inner = random.standard_normal(256).astype(np.float32)
        outer, coded = random.random(3).astype(np.float32), random.integers(0, 256, len(scales))
        state |= {"nested_blocksize": 4, "nested_dtype": "float32", "nested_offset": 0.04}
        tensors |= {
            "up.weight.absmax": coded.astype(np.uint8),
            "up.weight.nested_absmax": outer,
            "up.weight.nested_quant_map": inner,
        }
        scales = inner[coded].astype(np.float64) * outer[np.arange(len(coded)) // 4] + 0.04
    tensors[STATE] = np.frombuffer(json.dumps(state).encode(), np.uint8)
    values = table[codes].astype(np.float64) * np.repeat(scales.astype(np.float64), size)
    return tensors, values.reshape(shape)


def seen_as(tensors, **changes):
    return read(Arrays(tensors), {"quantization_config": SECTION | changes})


@pytest.mark.parametrize("nested", [False, True])
def test_the_weights_are_dense_at_their_values(nested, monkeypatch):
    from weighbridge.converters.quantization import mlx as blocks

    tensors, values = nf4(nested=nested)
    seen = seen_as(tensors)
    assert seen.section is None
    assert set(seen.tensors.headers) == {"up.weight", "up.bias"}
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), values.astype(np.float32))
    monkeypatch.setattr(blocks, "BLOCK", 100)
    np.testing.assert_array_equal(seen.tensors.read("up.weight"), values.astype(np.float32))
    assert "dense in float32, up first" in seen.notes[0]


def state(**changes):
    record = {"blocksize": 32, "shape": [6, 64], **changes}
    return np.frombuffer(json.dumps(record).encode(), np.uint8)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"up.weight": None}, "up.weight is missing"),
        ({"up.weight.absmax": None}, "up.weight.absmax is missing"),
        ({"up.weight.quant_map": None}, "up.weight.quant_map is missing"),
        ({"up.weight.nested_absmax": None}, "up.weight.nested_absmax is missing"),
        ({STATE: None}, "no tensor is called"),
        ({STATE: np.frombuffer(b"{", np.uint8)}, "quant_state.bitsandbytes__nf4: not JSON"),
        ({STATE: state(shape=[6, 60])}, r"up.weight is U8\[192, 1\], expected 180 bytes"),
        ({STATE: state(blocksize=0)}, r"shape \[6, 64\] in blocks of 0"),
        ({STATE: state()}, "its state says blocks of None, offset None"),
        ({"up.weight.quant_map": np.zeros(15, np.float32)}, "15 values, 12 scales; expected 16"),
        ({"up.weight.absmax": np.zeros(5, np.float32)}, "16 values, 5 scales; expected 16 and 12"),
    ],
)
def test_bad_input_is_one_line_that_names_the_tensor_and_the_value(changes, says):
    tensors = nf4(nested=True)[0] | changes
    with pytest.raises(BadInputError, match=says):
        seen_as({name: it for name, it in tensors.items() if it is not None})


def test_eight_bits_and_writing_are_refused_by_name():
    with pytest.raises(UnsupportedError, match="of 8 bits is not read"):
        seen_as({}, load_in_8bit=True)
    with pytest.raises(
        UnsupportedError, match="bitsandbytes is read, not written; written are metal"
    ):
        write(view_of(mlx(Scheme(4, 32)), Scheme(4, 32)), "bitsandbytes")
