"""Shards, offsets and index are what Hugging Face would make of the same tensors."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.checkpoints.shards import arrange, fingerprint, index_text
from weighbridge.converters.common.dtypes import NUMPY

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 60))
def test_tensors_are_split_as_hugging_face_splits_them(lengths, limit):
    tensors = {
        f"t{place}": torch.zeros(size, dtype=torch.uint8) for place, size in enumerate(lengths)
    }
    layout = {name: Header("U8", tuple(tensor.shape)) for name, tensor in tensors.items()}
    shards = arrange(layout, {}, limit, "model")
    if max(lengths) > limit:  # it puts such a tensor aside, here the order is kept
        assert all(
            len(shard.places) == 1 or sum(p.header.nbytes for p in shard.places.values()) <= limit
            for shard in shards
        )
        return
    oracle = split_torch_state_dict_into_shards(
        tensors, max_shard_size=limit, filename_pattern="model{suffix}.safetensors"
    )
    assert {s.file: list(s.places) for s in shards} == oracle.filename_to_tensors
    index = json.loads(index_text(shards))
    assert index == {"metadata": oracle.metadata, "weight_map": oracle.tensor_to_filename} or (
        len(shards) == 1
    )


@given(
    st.lists(st.tuples(st.sampled_from(sorted(NUMPY)), st.integers(0, 5)), min_size=1, max_size=9)
)
def test_every_tensor_is_aligned_to_its_dtype_and_none_overlap(tensors):
    layout = {f"t{n}": Header(code, (size,)) for n, (code, size) in enumerate(tensors)}
    (shard,) = arrange(layout, {"format": "mlx"}, 10**9, "model")
    end = len(shard.header)
    for place in shard.places.values():
        assert place.begin % NUMPY[place.header.dtype].itemsize == 0
        assert place.begin == end
        end = place.end
    assert shard.size == end
    assert set(shard.places) == set(layout)


def test_tensors_of_one_dtype_lie_in_the_order_of_the_layout():
    layout = {name: Header("F32", (2,)) for name in "cab"}
    (shard,) = arrange(layout, {}, 100, "model")
    assert list(shard.places) == ["c", "a", "b"]


def test_the_index_is_text_as_hugging_face_writes_it():
    shards = arrange({"é": Header("F32", (2,)), "a": Header("F32", (2,))}, {}, 8, "model")
    assert index_text(shards) == (
        '{\n  "metadata": {\n    "total_size": 16\n  },\n  "weight_map": {\n'
        '    "a": "model-00002-of-00002.safetensors",\n'
        '    "é": "model-00001-of-00002.safetensors"\n  }\n}\n'
    )


CHANGES = {
    "name": ({"x": Header("F32", (2, 3))}, {}, 100),
    "dtype": ({"w": Header("I32", (2, 3))}, {}, 100),
    "shape": ({"w": Header("F32", (3, 2))}, {}, 100),
    "metadata": ({"w": Header("F32", (2, 3))}, {"format": "pt"}, 100),
    "one more": ({"w": Header("F32", (2, 3)), "x": Header("F32", ())}, {}, 100),
    "sharded": ({"w": Header("F32", (2, 3)), "x": Header("F32", ())}, {}, 24),
}


def test_the_fingerprint_tells_layouts_apart():
    base = fingerprint(arrange({"w": Header("F32", (2, 3))}, {}, 100, "model"))
    others = {fingerprint(arrange(*change, "model")) for change in CHANGES.values()}
    assert len(others | {base}) == len(CHANGES) + 1
    assert fingerprint(arrange({"w": Header("F32", (2, 3))}, {}, 100, "model")) == base


@pytest.mark.parametrize("limit", [1, 10**9])
def test_an_empty_layout_is_one_empty_file(limit):
    (shard,) = arrange({}, {}, limit, "model")
    assert (shard.file, dict(shard.places)) == ("model.safetensors", {})
    assert np.frombuffer(shard.header[:8], "<u8")[0] == len(shard.header) - 8
