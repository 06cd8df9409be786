"""What a translation records, and that it is undone exactly."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.configs import to_torch
from weighbridge.converters.configs.translation import difference, undone

names = st.sampled_from(["a", "b", "rope_theta", "text_config", "vision_config", "x.y"])
plain = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
)
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner)
)
configs = st.dictionaries(names, values, max_size=5)


@given(configs, configs)
def test_what_was_recorded_is_undone_exactly_after_a_trip_through_json(before, after):
    translation = difference(before, after)
    recorded = json.loads(json.dumps(translation.recorded()))
    assert undone(json.loads(json.dumps(after)), recorded) == json.loads(json.dumps(before))


@given(configs, configs)
def test_every_key_is_recorded_once(before, after):
    found = difference(before, after)
    groups = [set(found.added), set(found.changed), set(found.removed)]
    assert sum(map(len, groups)) == len(set.union(*groups))


def test_parts_are_recorded_key_by_key():
    before = {"text_config": {"a": 1, "b": 2}, "other": {"a": 1}}
    after = {"text_config": {"a": 3, "c": 4}, "other": {"a": 2}}
    found = difference(before, after)
    assert found.added == {"text_config.c": 4}
    assert found.changed == {"text_config.a": (1, 3), "other": ({"a": 1}, {"a": 2})}
    assert found.removed == {"text_config.b": 2}


def test_what_was_edited_since_then_stays():
    recorded = {"added": {"rope_theta": 1e6}, "changed": {"a": [1, 2]}, "removed": {"b": 3}}
    edited = {"rope_theta": 5e5, "a": 7, "b": 8}
    assert to_torch(edited, recorded).config == edited


def test_the_config_that_is_given_stays():
    config = {"text_config": {"a": 1}}
    recorded = {"added": {"text_config.a": 1}, "changed": {}, "removed": {"b": []}}
    result = to_torch(config, recorded)
    result.config["b"].append(1)
    assert config == {"text_config": {"a": 1}}
    assert recorded["removed"] == {"b": []}


def test_the_quantization_that_mlx_lm_writes_goes():
    packed = {"group_size": 64, "bits": 4, "mode": "affine"}
    config = {"model_type": "llama", "quantization": packed, "quantization_config": dict(packed)}
    result = to_torch(config)
    assert result.config == {"model_type": "llama"}
    assert set(result.removed) == {"quantization", "quantization_config"}


def test_a_quantization_that_transformers_knows_stays():
    config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    assert to_torch(config).config == config
