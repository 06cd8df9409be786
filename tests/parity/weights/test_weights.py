"""The tensors of a model, wherever it keeps them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

import weighbridge
from weighbridge.converters.adapters import Adapter, merge
from weighbridge.converters.models import Model, Signature
from weighbridge.converters.values import LowRank
from weighbridge.parity.weights.sketches.sketch import ArrayWeights
from weighbridge.parity.weights.weights import (
    MergedWeights,
    base_weights,
    model_hashes,
    own_copy,
    storage_dtype,
    weights_of,
)

UPDATE = LowRank(np.ones((1, 3)), np.ones((2, 1)), scale=0.25)
STORAGES = {
    "narrow matrices": ({"w": np.zeros((9, 9), np.float16), "n": np.zeros(9)}, "float16"),
    "narrow norms": ({"w": np.zeros((9, 9), np.float32), "n": np.zeros(9, np.float16)}, "float32"),
    "integers only": ({"ids": np.zeros(9, np.int64)}, "float32"),
}


@pytest.mark.parametrize(("arrays", "dtype"), STORAGES.values(), ids=STORAGES)
def test_storage_is_what_most_elements_have(arrays, dtype):
    assert storage_dtype(ArrayWeights(arrays)) == dtype


def test_a_live_update_is_merged_and_rounded_once():
    weights = MergedWeights(ArrayWeights({"w": np.ones((2, 3), np.float16)}), {"w": UPDATE})
    assert weights.read("w").dtype == np.float16
    assert weights.read("w").tolist() == [[1.25] * 3] * 2


def test_a_million_merged_weights_are_those_of_a_merge_bit_by_bit():
    random, shape = np.random.default_rng(0), (1024, 1100)
    base = random.normal(size=shape).astype(ml_dtypes.bfloat16)
    update = LowRank(random.normal(size=(2, shape[1])), random.normal(size=(shape[0], 2)), 0.01)
    found = MergedWeights(ArrayWeights({"w": base}), {"w": update}).read("w")
    assert found.tobytes() == merge(base, update)[0].tobytes()


def test_a_live_module_is_read_by_its_state():
    module = torch.nn.Linear(3, 2)
    adapter = Adapter(Path("adapter"), "peft", {"weight": UPDATE}, {})
    model = Model("m", "torch", None, {}, factory=module, declared=Signature((), ()))
    plain, merged = weights_of(model), weights_of(model.with_adapter(adapter))
    assert plain.headers.keys() == {"weight", "bias"}
    assert np.allclose(merged.read("weight") - plain.read("weight"), 0.25)
    assert np.array_equal(
        base_weights(model.with_adapter(adapter)).read("weight"), plain.read("weight")
    )


def test_updates_of_all_experts_are_merged_expert_by_expert():
    random = np.random.default_rng(0)
    base = random.normal(size=(3, 5, 4)).astype(np.float32)
    update = LowRank(random.normal(size=(3, 2, 4)), random.normal(size=(3, 5, 2)), 0.5)
    found = MergedWeights(ArrayWeights({"w": base}), {"w": update}).read("w")
    wanted = [base[e] + 0.5 * update.b[e] @ update.a[e] for e in range(3)]
    assert np.array_equal(found, np.stack(wanted).astype(np.float32))


def test_whole_tensors_of_an_adapter_stand_in_for_the_base_s():
    module = torch.nn.Linear(3, 2)
    bias = np.array([4, 5], np.float16)
    adapter = Adapter(Path("adapter"), "peft", {"weight": UPDATE}, {}, saved={"bias": bias})
    model = Model("m", "torch", None, {}, factory=module, declared=Signature((), ()))
    for weights in (
        weights_of(model.with_adapter(adapter)),
        base_weights(model.with_adapter(adapter)),
    ):
        assert weights.headers["bias"].dtype == "F16"
        assert weights.read("bias").tolist() == [4, 5]


def test_a_copy_can_be_cast_alone():
    model = Model("m", "torch", None, {}, factory=torch.nn.Linear(3, 2))
    own_copy(model).factory.half()
    assert model.factory.weight.dtype is torch.float32


def test_hashes_follow_the_files(tiny_bert_dir):
    hashes = model_hashes(weighbridge.open(tiny_bert_dir))
    assert hashes.keys() == {"model.safetensors", "config.json"}
    assert all(len(it) == len("xxh3:") + 32 for it in hashes.values())
