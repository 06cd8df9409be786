"""Adapters: which modules are meant, and what they start with."""

from __future__ import annotations

import numpy as np
import pytest
from transformers import GPT2Config, GPT2LMHeadModel

from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.trainers.adapters import (
    initial_updates,
    linear_shapes,
    parameters_of,
    probe_values,
    select,
    select_parameters,
    updates_of,
)
from weighbridge.trainers.tasks import build_task

NAMES = ["layer.0.attention.query", "layer.0.attention.key", "layer.1.attention.query", "queryless"]
MEANT = {
    ("query",): [0, 2],
    ("attention.key",): [1],
    ("layer.0.*",): [0, 1],
    ("queryless", "key"): [1, 3],
}


@pytest.mark.parametrize(("patterns", "rows"), MEANT.items())
def test_a_pattern_means_whole_path_endings(patterns, rows):
    assert select(NAMES, patterns, "modules", "checkpoint") == [NAMES[row] for row in rows]


def test_patterns_without_a_match_are_refused_together_with_the_nearest():
    with pytest.raises(MismatchError, match="qury: did you mean query") as caught:
        select(NAMES, ["qury", "query", "zzz"], "modules", "checkpoint")
    assert len(caught.value.problems) == 2


def test_where_nothing_is_near_the_names_are_listed_once_for_all_layers():
    with pytest.raises(MismatchError, match=r"^freeze: no parameters have these names") as caught:
        select_parameters([f"layer.{it}.norm.weight" for it in range(30)], ["zzz"], "freeze")
    assert [*caught.value.problems] == ["*zzz*: there are layer.*.norm.weight"]


def test_a_pattern_that_lies_deeper_is_offered_as_it_would_be_found():
    with pytest.raises(MismatchError, match=r"attention\.\*: did you mean \*\.attention\.\*\?"):
        select(NAMES, ["attention.*"], "modules", "checkpoint")


def test_dora_of_modules_that_hold_their_weights_turned_is_refused_by_name(decoder_config):
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 64, "n_positions": 16}
    module = GPT2LMHeadModel(GPT2Config(**sizes))
    config = decoder_config(adapter={"rank": 2, "targets": ["c_attn"], "dora": True})
    with pytest.raises(UnsupportedError, match=r"Conv1D of transformers, as .*c_attn is"):
        build_task(config, module)


def test_an_adapter_of_a_tied_head_is_refused_by_name(decoder_config):
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 64, "n_positions": 16}
    module = GPT2LMHeadModel(GPT2Config(**sizes))
    config = decoder_config(adapter={"rank": 2, "targets": ["lm_head"]})
    with pytest.raises(UnsupportedError, match=r"lm_head is that of transformer.wte too"):
        build_task(config, module)


def test_first_values_are_the_update_of_zero_and_do_not_depend_on_neighbours():
    shapes = {"a.weight": (5, 16), "b.weight": (3, 9)}
    both = initial_updates(shapes, rank=2, scale=1.5, seed=1)
    alone = initial_updates({"b.weight": (3, 9)}, rank=2, scale=1.5, seed=1)
    other = initial_updates(shapes, rank=2, scale=1.5, seed=2)
    assert not both["a.weight"].delta().any()
    assert np.array_equal(both["b.weight"].a, alone["b.weight"].a)
    assert not np.array_equal(both["a.weight"].a, other["a.weight"].a)
    assert 0.1 < np.abs(both["a.weight"].a).max() <= 16**-0.5
    assert both["a.weight"].a.dtype == np.float32


def test_parameters_and_updates_are_two_forms_of_the_same():
    generator = np.random.default_rng(0)
    a, b = generator.normal(size=(2, 7)), generator.normal(size=(5, 2))
    updates = {"x.y.weight": LowRank(a, b, 0.5)}
    parameters = parameters_of(updates, "model.")
    assert {name: value.shape for name, value in parameters.items()} == {
        "model.x.y.lora_a": (7, 2),
        "model.x.y.lora_b": (2, 5),
    }
    [(name, back)] = updates_of(parameters, 0.5, "model.").items()
    assert name == "x.y.weight"
    assert np.array_equal(back.delta(), updates[name].delta())


def test_only_a_zero_half_is_probed():
    values = {"x.lora_a": np.ones(3), "x.lora_b": np.zeros(3), "y.lora_b": np.ones(3)}
    probed = probe_values(values, 0)
    assert [name for name in values if probed[name] is not values[name]] == ["x.lora_b"]
    assert 0 < np.abs(probed["x.lora_b"]).max() < 0.1


def test_linear_modules_are_found_by_path(series_task):
    assert linear_shapes(series_task().module) == {"hidden": (7, 30), "head": (3, 7)}
