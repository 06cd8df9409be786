"""Core ML's constants: the numbers that coremltools materialises of them."""

from __future__ import annotations

import numpy as np
import pytest
from coremltools.converters.mil.mil import Builder as mb  # noqa: N813  (as its own documentation has it)
from coremltools.converters.mil.mil import types

from tests.converters.quantization.conftest import AFFINE, DTYPES, FLOATS, parts_of, weights
from weighbridge.converters.quantization import Blocks, Scheme
from weighbridge.converters.quantization.constants.coreml import shift, table
from weighbridge.errors import UnsupportedError

KINDS = {4: types.np_uint4_dtype, 8: np.uint8}


def blocks_of(scheme, dtype="float16"):
    return Blocks(parts_of(weights((4, 256), dtype), scheme), scheme)


def materialised(make):
    """Return the value of the op that MAKE adds to a program."""
    import coremltools as ct

    found = []

    @mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
    def program(x):
        found.append(make().op.materialized_val_inference())
        return mb.identity(x=x)

    return found[0]


def in_steps(values, blocks):
    scales = np.abs(blocks.parts["scales"].astype(np.float64))
    return np.abs(values - blocks.values()) / np.repeat(scales, blocks.scheme.group_size, axis=1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", AFFINE, ids=str)
def test_offsets_are_as_far_off_as_is_told(scheme, dtype):
    blocks = blocks_of(scheme, dtype)
    found = shift(blocks)
    assert (found.scale > 0).all()
    gap = in_steps(found.values(), blocks)
    assert gap.max() == pytest.approx(found.error, rel=1e-6, abs=1e-12)
    kind = KINDS[found.bits]
    value = materialised(
        lambda: mb.constexpr_blockwise_shift_scale(
            data=found.data.astype(kind),
            scale=found.scale.astype(np.float32),
            offset=found.offset.astype(kind),
        )
    )
    np.testing.assert_allclose(value, found.values(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bits", [2, 3])
def test_tables_of_few_bits_hold_what_float16_does(bits):
    blocks = blocks_of(Scheme(bits, 64))
    found = table(blocks)
    assert in_steps(found.values(), blocks).max() == pytest.approx(found.error, rel=1e-9)
    assert found.error < 0.01
    rows, groups, entries = found.lut.shape
    value = materialised(
        lambda: mb.constexpr_lut_to_dense(
            indices=found.indices.astype(types.np_uint4_dtype if bits == 3 else np.uint8).astype(
                types.np_uint2_dtype if bits == 2 else types.np_uint3_dtype
            ),
            lut=found.lut.reshape(rows, groups, entries, 1),
        )
    )
    assert np.array_equal(value, found.values())


@pytest.mark.parametrize("scheme", FLOATS, ids=str)
def test_tables_of_tiny_floats_are_exact(scheme):
    blocks = blocks_of(scheme, "float32")
    found = table(blocks)
    assert found.error == 0
    assert np.array_equal(found.values(), blocks.values())
    kind = np.uint8 if scheme.bits == 8 else types.np_uint4_dtype

    def make():
        dense = mb.constexpr_lut_to_dense(
            indices=found.indices.astype(kind), lut=found.lut.astype(np.float32)[..., None]
        )
        return mb.constexpr_blockwise_shift_scale(data=dense, scale=found.scale.astype(np.float32))

    assert np.array_equal(materialised(make), blocks.values())


def test_a_zero_outside_the_codes_is_refused():
    parts = {"scales": np.full((1, 1), 0.01, "f4"), "biases": np.ones((1, 1), "f4")}
    blocks = Blocks.of_codes(np.zeros((1, 64), np.uint8), parts, Scheme(4, 64))
    with pytest.raises(UnsupportedError, match="0 to 15"):
        shift(blocks)


def test_tables_of_many_bits_are_refused():
    with pytest.raises(UnsupportedError, match="larger"):
        table(blocks_of(Scheme(4, 64)))
