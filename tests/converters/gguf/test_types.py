"""Types of ggml: rounded once, and never further than said."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weighbridge.converters.gguf.types import (
    ALWAYS_FLOAT32,
    TYPES,
    allowed,
    code,
    decode,
    encode,
    is_known,
    nbytes,
    overflows,
)

ROWS = arrays.arrays(
    np.float32, (3, 64), elements=st.floats(-60000, 60000, width=32, allow_subnormal=True)
)


@pytest.mark.parametrize("kind", TYPES)
@given(rows=ROWS)
def test_what_is_written_lies_within_what_is_allowed(kind, rows):
    data = encode(rows, kind)
    assert data.nbytes == nbytes(rows.shape, kind)
    gap = np.abs(decode(data, kind).astype(np.float64) - rows)
    assert np.all(gap <= allowed(rows, kind))


@given(rows=ROWS)
def test_bfloat16_is_rounded_to_the_nearest(rows):
    want = rows.astype(ml_dtypes.bfloat16)
    assert np.array_equal(decode(encode(rows, "BF16"), "BF16"), want.astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sixteen_bits_are_kept(dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    rows = bits.view(dtype).reshape(-1, 64)
    finite = np.isfinite(rows.astype(np.float32)).all(axis=1)
    kind = "F16" if dtype is np.float16 else "BF16"
    back = encode(rows[finite], kind).view(np.uint16)
    assert np.array_equal(back.reshape(-1), bits.reshape(-1, 64)[finite].reshape(-1))


@pytest.mark.parametrize(
    ("number", "kind", "found"),
    [
        (65504.0, "F16", False),
        (65536.0, "F16", True),
        (1e30, "BF16", False),
        (np.inf, "F32", True),
        (np.nan, "Q8_0", True),
        (9e6, "Q8_0", True),
    ],
)
def test_numbers_that_a_type_does_not_have_are_seen(number, kind, found):
    assert overflows(np.array([[0.0, number]], np.float32), kind) is found


def test_codes_are_the_librarys():
    assert {kind: code(kind) for kind in TYPES} == {
        "F32": 0,
        "F16": 1,
        "BF16": int(gguf.GGMLQuantizationType.BF16),
        "Q8_0": 8,
    }
    names = {
        f"MOSTLY_{kind}" if kind != "F32" else "ALL_F32": number for kind, number in TYPES.items()
    }
    assert all(gguf.LlamaFileType[name] == number for name, number in names.items())


def test_integers_are_not_numbers_of_a_weight():
    assert not is_known("I8")
    assert all(is_known(kind) for kind in ("Q4_K", "Q6_K", "IQ4_XS", *TYPES))


def test_the_kinds_that_stay_in_float32_are_the_librarys():
    assert set(gguf.MODEL_TENSOR.__members__) >= ALWAYS_FLOAT32
