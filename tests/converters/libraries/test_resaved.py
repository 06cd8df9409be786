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


def test_words_are_parted_where_the_vocabulary_ends():
    names = [f"model.transformer.wte.{it}embedding" for it in ("", "new_")]
    table = mx.arange(8.0)[:, None]
    config = {"text_config": {"vocab_size": 6}}
    change = change_for("mlx-vlm", "molmo2")
    saved = dict(zip(names, mx.split(table, 2), strict=True))
    published = dict(zip(names, mx.split(table, [6]), strict=True))
    for weights in (saved, published):
        found = change(weights, config)
        assert [found[it].tolist() for it in names] == [published[it].tolist() for it in names]


def test_other_libraries_are_left_alone():
    assert change_for("mlx-embeddings", "llava") is None
