"""The table of fields takes what transformers writes, and nothing that would fail further on."""

from __future__ import annotations

import json

import pytest

from weighbridge.converters.models.config_fields import problems
from weighbridge.converters.models.families import FAMILIES
from weighbridge.converters.models.signature import Signature
from weighbridge.errors import BadInputError

VALUES = (None, 0, 5, 2.5, [], [1], [1, 2], [1, 2, 3], {}, {"height": 4, "width": 5}, {"a": 1})
KEYS = ("image_size", "num_channels", "hidden_sizes", "conv_kernel", "conv_stride", "id2label")
KEYS += ("num_labels", "max_position_embeddings", "vocab_size", "hidden_size", "add_adapter")
SIZES = {"vocab_size": 9, "hidden_size": 4, "d_model": 4, "hidden_sizes": [4], "depths": [1]}
SIZES |= {"max_target_positions": 8, "max_source_positions": 8, "num_mel_bins": 3}
SIZES |= {"projection_dim": 4, "text_config": dict(SIZES), "vision_config": dict(SIZES)}


@pytest.mark.heavy
def test_no_config_that_transformers_writes_is_refused():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found, seen = {}, 0
    for kind, cls in CONFIG_MAPPING.items():
        try:
            text = cls().to_json_string(use_diff=False)
        except Exception:  # it has no defaults, or needs another package
            continue
        seen += 1
        found |= {kind: wrong} if (wrong := list(problems(json.loads(text)))) else {}
    assert found == {}
    assert seen > 300


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_a_signature_is_made_or_the_size_is_named(kind, key):
    for value in VALUES:
        config = SIZES | {key: value}
        if list(problems(config)):
            continue
        try:
            assert isinstance(FAMILIES[kind].signature(config), Signature)
        except BadInputError as error:
            assert str(error).startswith("config.json: ")  # noqa: PT017  # either will do
