"""An adapter that would be lost is refused with the ways out of it, best first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weighbridge.errors import MismatchError
from weighbridge.tests.support.quantized_bases import (
    QUIET,
    merged,
)


def test_an_adapter_that_4_bits_erase_is_refused_with_the_remedies(base, small, tmp_path):
    with pytest.raises(MismatchError) as refused:
        merged(base, small, tmp_path / "merged")
    text = str(refused.value)
    assert "in 4 of 4 layers" in text
    assert len(refused.value.problems) == 4
    places = [
        text.index(way) for way in ("1. keep the adapter live", "2. merge into", "3. --promote")
    ]
    assert places == sorted(places)
    assert "keep 4 of 4 layers at more bits (4 at 8-bit affine, groups of 64" in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_tells_the_same_and_writes_nothing(base, small, tmp_path):
    found = merged(base, small, tmp_path / "merged", replace(QUIET, dry_run=True))
    text = "\n".join(found.plan)
    assert found.target is None
    assert "3. --promote" in text
    assert list(tmp_path.iterdir()) == []
