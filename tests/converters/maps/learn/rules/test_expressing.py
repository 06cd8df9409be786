"""Sizes become expressions of the config where it is known which; else they stay numbers."""

from __future__ import annotations

import mlx.core as mx
import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps.learn.rules.expressing import Speaker
from weighbridge.converters.maps.learn.rules.writing import write
from weighbridge.converters.maps.learn.trace.recording import record


def sizes(sanitize_of, headers, config):
    """Return the definitions of the last rule that is learned."""
    text = str(write(record(sanitize_of(config), headers), config, sanitize_of)[0])
    return text.rpartition("where ")[2]


def heads_first(config):
    """Split as MLA does: heads, and two parts in each."""

    def sanitize(w):
        a = w["kv_b"].reshape(config["heads"], config["nope"] + config["v"], -1)
        return {"k": a[:, : config["nope"]].swapaxes(1, 2), "v": a[:, config["nope"] :]}

    return sanitize


def test_keys_of_one_value_are_told_apart_by_asking_the_class_again():
    config = {"heads": 32, "kv_heads": 32, "nope": 32, "v": 32}
    headers = {"kv_b": Header("F32", (32 * 64, 5))}
    assert sizes(heads_first, headers, config) == "a = heads, k = nope, v = v"


def test_a_size_that_no_key_foretells_stays_a_number():
    def halves(config):
        return lambda w: dict(zip("gu", mx.split(w["a"], 2), strict=True))

    headers = {"a": Header("F32", (48, 5))}
    assert sizes(halves, headers, {"one": 24, "other": 24}) == "g = u = 24"
    assert sizes(halves, headers, {"width": 24}) == "g = u = width"


def test_a_product_is_said_only_if_the_class_follows_it():
    def parts(config):
        def sanitize(w):
            size = config["num_heads"] * config["head_dim"]
            return {"q": w["a"][:size], "k": w["a"][size:]}

        return sanitize

    headers = {"a": Header("F32", (50, 3))}
    config = {"num_heads": 4, "head_dim": 10}
    assert sizes(parts, headers, config) == "q = num_heads * head_dim"


@pytest.mark.parametrize(
    ("config", "names", "count"),
    [
        ({"num_hidden_layers": 3, "num_experts": 3}, ["layers.0.w"], "num_hidden_layers"),
        ({"n_layer": 3, "n_head": 3}, ["h.0.w"], "n_layer"),
        (
            {"num_hidden_layers": 3, "vision_config": {"num_hidden_layers": 3}},
            ["vision_tower.layers.0.w"],
            "vision_config.num_hidden_layers",
        ),
        (
            {"num_layers": 3, "vision_config": {"num_layers": 3}},
            ["text.layers.0.w"],
            "num_layers",
        ),
    ],
)
def test_a_count_is_a_key_with_the_word_before_the_index(config, names, count):
    found = Speaker(config).count(3, "layers" if "layers" in names[0] else "h", names)
    assert (found and str(found)) == count
