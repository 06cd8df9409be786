"""Checkpoints as transformers saves them, in the layout that a class reads: published ones stay."""

from __future__ import annotations

import mlx.core as mx
import pytest

from weighbridge.converters.libraries.resaved import change_for

ONE = mx.zeros(1)


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("inner", ["", "vision_model."])
def test_towers_lie_where_mlx_vlm_has_them_wherever_they_were(prefix, inner):
    saved = {f"{prefix}vision_tower.{inner}encoder.norm.bias": ONE, "lm_head.weight": ONE}
    found = change_for("mlx-vlm", "llava")(saved, {})
    assert set(found) == {f"{prefix}vision_tower.vision_model.encoder.norm.bias", "lm_head.weight"}


@pytest.mark.parametrize("kind", ["lfm2_vl", "paligemma"])
def test_the_pooling_of_a_tower_is_left_out(kind):
    saved = {"model.vision_tower.head.probe": ONE, "model.language_model.head.weight": ONE}
    assert set(change_for("mlx-vlm", kind)(saved, {})) == {"model.language_model.head.weight"}


def test_other_libraries_are_left_alone():
    assert change_for("mlx-embeddings", "llava") is None
