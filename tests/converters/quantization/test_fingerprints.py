"""A recorded base is recognised, wherever its tensors lie, and another one is not."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.quantization import Dequantized
from weighbridge.converters.quantization.fingerprints import compare, fingerprints

from .conftest import LLAMA, Arrays, save

NAMES = ["model.layers.0.self_attn.q_proj.weight", "model.norm.weight"]


@pytest.fixture
def opened(tmp_path):
    save(tmp_path, LLAMA, group_size=32, bits=4)
    return open_checkpoint(tmp_path), json.loads((tmp_path / "config.json").read_text())


def arrays_of(checkpoint):
    return {name: checkpoint.read(name).copy() for name in checkpoint.headers}


def test_a_checkpoint_is_recognised_stored_or_dense_in_any_order(opened):
    raw, config = opened
    recorded = fingerprints(raw, NAMES)
    assert all(text.startswith("xxh3:") for text in recorded.values())
    shuffled = Arrays(dict(reversed(arrays_of(raw).items())))
    for checkpoint in (raw, Dequantized(raw, config), shuffled):
        assert compare(recorded, checkpoint) == {}
        assert fingerprints(checkpoint, NAMES) == recorded


@pytest.mark.parametrize("part", ["weight", "scales", "biases"])
def test_one_bit_of_any_part_tells_another_base(part, opened):
    raw, _ = opened
    recorded = fingerprints(raw, NAMES)
    arrays = arrays_of(raw)
    arrays[NAMES[0].replace("weight", part)].view(np.uint8)[0, 0] ^= 1
    [(name, problem)] = compare(recorded, Arrays(arrays)).items()
    assert name == NAMES[0]
    assert problem.startswith("recorded xxh3:")


def test_dtype_and_shape_count():
    wide = Arrays({"w": np.zeros((2, 3), np.float16)})
    for other in (np.zeros((3, 2), np.float16), np.zeros((2, 3), np.int16)):
        assert compare(fingerprints(wide, ["w"]), Arrays({"w": other}))


def test_what_is_missing_is_said(opened):
    recorded = fingerprints(opened[0], NAMES)
    assert compare(recorded, Arrays({})) == dict.fromkeys(NAMES, "missing")


def test_names_that_a_checkpoint_has_not_are_left_out(opened):
    assert fingerprints(opened[0], ["nothing"]) == {}


def test_a_saved_copy_has_the_fingerprints_of_what_mlx_loads(opened, tmp_path):
    raw, _ = opened
    mx.save_safetensors(str(tmp_path / "copy.safetensors"), mx.load(str(raw.files[0])))
    assert compare(fingerprints(raw, NAMES), open_checkpoint(tmp_path / "copy.safetensors")) == {}
