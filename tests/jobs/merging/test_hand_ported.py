"""Adapters of a hand-written port, as ``.npz`` with nested names in any order: all or nothing is merged."""

from __future__ import annotations

import pytest
from safetensors.numpy import load_file

from weighbridge.tests.support.adapters import hand_ported


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the directory of a T5 encoder with six layers, 24 projections."""
    return hand_ported.write_base(tmp_path_factory.mktemp("base") / "t5")


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("names", hand_ported.NAMES)
def test_24_of_24_are_merged_in_any_order(seed, names, base, tmp_path):
    assert hand_ported.merged(base, names, seed, tmp_path) == 24


def test_a_half_that_is_missing_is_named_and_nothing_is_written(base, tmp_path):
    tensors, _ = hand_ported.adapter(load_file(base / "model.safetensors"), "mlx", 0)
    del tensors["encoder.layers.3.attention.query_proj.lora_b"]
    result = hand_ported.merge(base, tensors, tmp_path)
    assert result.exit_code != 0
    assert "encoder.layers.3.attention.query_proj" in result.output
    assert not (tmp_path / "out").exists()
