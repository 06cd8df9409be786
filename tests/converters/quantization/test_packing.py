"""Codes of every width are one stream of bits, and come back from it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.quantization.packing import pack, unpack

BITS = (2, 3, 4, 5, 6, 8)


@st.composite
def coded(draw):
    bits = draw(st.sampled_from(BITS))
    lead = draw(st.sampled_from([(), (3,), (2, 3), (0,)]))
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    columns = 32 * draw(st.integers(1, 4))
    return random.integers(0, 1 << bits, (*lead, columns)).astype(np.uint8), bits


@given(coded())
def test_unpacking_undoes_packing(case):
    codes, bits = case
    words = pack(codes, bits)
    assert words.dtype == np.uint32
    np.testing.assert_array_equal(unpack(words, bits), codes)


@given(st.sampled_from(BITS), st.integers(0, 1000))
def test_packing_undoes_unpacking(bits, seed):
    words = np.random.default_rng(seed).integers(0, 1 << 32, (2, 3, 2 * bits), np.uint32)
    np.testing.assert_array_equal(pack(unpack(words, bits), bits), words)


@given(coded())
def test_how_the_codes_lie_in_memory_does_not_matter(case):
    codes, bits = case
    turned = np.asfortranarray(codes).astype(np.int64, order="K")
    np.testing.assert_array_equal(pack(turned, bits), pack(codes, bits))


@given(coded())
def test_the_words_are_one_stream_of_bits(case):
    codes, bits = case
    stream = np.unpackbits(codes[..., None], axis=-1, bitorder="little", count=bits)
    expected = np.packbits(
        stream.reshape(*codes.shape[:-1], codes.shape[-1] * bits), axis=-1, bitorder="little"
    )
    np.testing.assert_array_equal(pack(codes, bits).view(np.uint8), expected)


def test_codes_that_do_not_fill_words_are_refused():
    with pytest.raises(ValueError, match="16 codes of 3 bits do not fill whole words"):
        pack(np.zeros((2, 16), np.uint8), 3)


@pytest.mark.parametrize("columns", [4, 12, 20])
def test_bytes_fill_words_by_fours(columns):
    codes = np.arange(2 * columns, dtype=np.uint8).reshape(2, columns) * np.uint8(5)
    words = pack(codes, 8)
    assert words.shape == (2, columns // 4)
    np.testing.assert_array_equal(unpack(words, 8), codes)
    assert not np.shares_memory(words, codes)
