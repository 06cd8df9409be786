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


def test_keys_and_values_of_heads_are_parted_where_they_are_dense_alone():
    name, config = "model.layers.0.self_attn.kv_b_proj.weight", {"qk_nope_head_dim": 1}
    config |= {"kv_lora_rank": 2, "num_attention_heads": 2}
    change = change_for("mlx-vlm", "hy_v4")
    joined = mx.arange(12.0).reshape(6, 2)
    found = change({name: joined}, config)
    heads = joined.reshape(2, 3, 2)
    keys = found.pop(f"language_model.{name}".replace("kv_b_proj", "embed_q"))
    assert keys.tolist() == heads[:, :1].swapaxes(1, 2).tolist()
    assert [it.tolist() for it in found.values()] == [heads[:, 1:].tolist()]
    packed = {name: joined, f"{name}_scale": ONE}
    assert change(packed, config) == packed


def test_florence_has_the_names_of_microsoft_s_own_code_and_what_has_them_keeps_them():
    change = change_for("mlx-vlm", "florence2")
    saved = {
        "model.vision_tower.blocks.0.0.spatial_block.conv1.weight": mx.zeros((1,)),
        "model.vision_tower.blocks.0.0.spatial_block.norm1.weight": mx.zeros((1,)),
        "model.vision_tower.blocks.0.0.channel_block.ffn.fc1.weight": mx.zeros((1,)),
        "model.multi_modal_projector.image_projection.weight": mx.zeros((3, 2)),
    }
    found = change(saved, {})
    assert {name: it.shape for name, it in found.items()} == {
        "vision_tower.blocks.0.0.spatial_block.conv1.fn.dw.weight": (1,),
        "vision_tower.blocks.0.0.spatial_block.window_attn.norm.weight": (1,),
        "vision_tower.blocks.0.0.channel_block.ffn.fn.net.fc1.weight": (1,),
        "image_projection": (2, 3),
    }
    assert {*change(found, {})} == {*found}


def test_other_libraries_are_left_alone():
    assert change_for("mlx-embeddings", "llava") is None
