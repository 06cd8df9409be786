"""What a class leaves out is made anew, equal to another tensor, or lost; subtrees are one rule."""

from __future__ import annotations

import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps.learn.drops import drop_rules

EMBEDDING = Header("BF16", (8, 4))


def lines(dropped, kept=(), config=None):
    headers = dict.fromkeys((*dropped, *kept), EMBEDDING)
    return [str(rule) for rule in drop_rules(dropped, headers, config or {}).values()]


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "h.3.attn.masked_bias",
        "gpt_neox.layers.2.attention.bias",
        "embeddings.position_ids",
        "bn1.num_batches_tracked",
    ],
)
def test_buffers_of_the_config_are_made_anew(name):
    assert lines([name]) == [f"{name} -> recomputed"]


def test_a_bias_that_is_a_vector_is_no_mask():
    headers = {"h.0.attn.bias": Header("F32", (4,))}
    assert [str(r) for r in drop_rules(list(headers), headers, {}).values()] == [
        "h.0.attn.bias -> original"
    ]


@pytest.mark.parametrize("config", [{}, {"tie_word_embeddings": True}, {"text_config": {}}])
def test_a_head_equals_the_embedding_where_the_config_does_not_say_otherwise(config):
    kept = ["model.embed_tokens.weight", "model.norm.weight"]
    assert lines(["lm_head.weight"], kept, config) == [
        "lm_head.weight == model.embed_tokens.weight"
    ]


@pytest.mark.parametrize(
    "config", [{"tie_word_embeddings": False}, {"text_config": {"tie_word_embeddings": False}}]
)
def test_a_head_is_lost_where_the_config_does_not_tie_it(config):
    kept = ["model.embed_tokens.weight"]
    assert lines(["lm_head.weight"], kept, config) == ["lm_head.weight -> original"]


def test_the_largest_subtree_of_which_nothing_is_kept_is_one_rule():
    dropped = ["m.vision.a.w", "m.vision.b.w", "m.text.extra.w"]
    assert lines(dropped, ["m.text.w"]) == [
        "m.vision.{**} -> original",
        "m.text.extra.w -> original",
    ]
