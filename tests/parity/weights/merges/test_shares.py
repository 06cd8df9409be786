"""What a share of an update is called, where only sketches of the base are known."""

from __future__ import annotations

import pytest

from weighbridge.parity.weights.merges.shares import share_by_sketches


@pytest.mark.parametrize(
    ("share", "noise", "kind"),
    [
        (1.0, 1e-3, "merged"),
        (0.0, 1e-3, "unmerged"),
        (0.5, 1e-3, "misscaled"),
        (2.0, 1e-3, "misscaled"),
        (1.0, 1.0, "inconclusive"),
    ],
)
def test_a_share_known_from_sketches_is_right_only_near_one(share, noise, kind):
    found, _, right = share_by_sketches("layer.weight", share, noise)
    assert (found, right) == (kind, kind == "merged")
