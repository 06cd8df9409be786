"""Weights seen block by block."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.adapters.merging.affected import blocks


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 700_000), (2, 3, 5), (2, 0)])
def test_blocks_cover_every_number_once(shape):
    count = np.zeros(shape, int)
    for index in blocks(shape):
        count[index] += 1
    assert (count == 1).all()
