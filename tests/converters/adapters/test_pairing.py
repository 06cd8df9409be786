"""Halves find each other in any order, and none is left out without a word."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters import read_adapter
from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.checkpoints.formats.safetensors import encode_header
from weighbridge.errors import BadInputError, MismatchError

MODULES = [f"layers.{n}.{kind}" for n in range(6) for kind in ("q_proj", "v_proj")]
SHAPES = {".lora_a": (5, 2), ".lora_b": (2, 7)}
CONFIG = {"fine_tune_type": "lora", "lora_parameters": {"rank": 2, "scale": 3.0}}
HALVES = [module + leaf for module in MODULES for leaf in SHAPES]


def value(place: int) -> np.ndarray:
    """Return a tensor that can be told from every other."""
    shape = SHAPES[HALVES[place][-7:]]
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 100 * place


def save(folder, order, tensors=None, config=CONFIG):
    """Write the tensors so that both the header and the bytes have the given order."""
    tensors = tensors or {name: value(place) for place, name in enumerate(HALVES)}
    layout = {name: Header("F32", tensors[name].shape) for name in order}
    data = b"".join(tensors[name].tobytes() for name in order)
    folder.mkdir(exist_ok=True)
    (folder / "adapters.safetensors").write_bytes(encode_header(layout, {}) + data)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@given(st.permutations(HALVES))
def test_any_order_of_the_tensors_gives_the_same_twelve_pairs(tmp_path_factory, order):
    adapter = read_adapter(save(tmp_path_factory.mktemp("a"), order))
    assert list(adapter.updates) == [f"{module}.weight" for module in sorted(MODULES)]
    for module in MODULES:
        update = adapter.updates[f"{module}.weight"]
        place = HALVES.index(f"{module}.lora_a")
        assert (update.a == value(place).T).all()
        assert (update.b == value(place + 1).T).all()
        assert update.scale == 3.0


@given(st.sets(st.sampled_from(HALVES), min_size=1, max_size=len(HALVES) - 1))
def test_every_missing_half_is_told_and_nothing_else(tmp_path_factory, lost):
    rest = [name for name in HALVES if name not in lost]
    orphans = [  # a module without either half is unknown here; `fit` knows it
        name for name in HALVES if name in lost and name[:-1] + "ba"[name.endswith("b")] in rest
    ]
    folder = save(tmp_path_factory.mktemp("a"), rest)
    if not orphans:
        assert len(read_adapter(folder).updates) == len(rest) // 2
        return
    with pytest.raises(MismatchError) as caught:
        read_adapter(folder)
    assert sorted(caught.value.problems) == sorted(f"{name} is missing" for name in orphans)


def tensors(**changes):
    whole = {"q.lora_a": np.zeros((5, 2), "f4"), "q.lora_b": np.zeros((2, 7), "f4")}
    return {name: array for name, array in (whole | changes).items() if array is not None}


PROBLEMS = {
    "ranks of the halves": (
        tensors(**{"q.lora_b": np.zeros((3, 7), "f4")}),
        "q: the halves have ranks 2 and 3 (F32[5, 2], F32[3, 7])",
    ),
    "rank of the config": (
        tensors(**{"q.lora_a": np.zeros((5, 3), "f4"), "q.lora_b": np.zeros((3, 7), "f4")}),
        "q: rank 3, but adapter_config.json says 2",
    ),
    "experts": (
        tensors(**{"q.lora_a": np.zeros((4, 5, 2), "f4")}),
        (
            "q: F32[4, 5, 2] and F32[2, 7] are not of 3 axes; only linear layers, embeddings and"
            " experts are read"
        ),
    ),
    "counts of experts": (
        tensors(**{"q.lora_a": np.zeros((4, 2, 5), "f4"), "q.lora_b": np.zeros((3, 7, 2), "f4")}),
        "q: the halves are of 4 and 3 experts",
    ),
    "integers": (
        tensors(**{"q.lora_a": np.zeros((5, 2), "i4")}),
        "q: not floating point (I32[5, 2], F32[2, 7])",
    ),
    "unknown": (
        tensors(**{"q.lora_c": np.zeros(7, "f4")}),
        "q.lora_c is no part of an adapter",
    ),
    "NaN": (
        tensors(**{"q.lora_b": np.array([[np.nan] * 7, [np.inf] + [0] * 6], "f4")}),
        "q: 7 NaN and 1 infinite of 14 numbers (b)",
    ),
    "unexpected magnitude": (
        tensors(**{"q.m": np.zeros(7, "f4")}),
        "q: has DoRA magnitudes, but adapter_config.json says LoRA",
    ),
}


@pytest.mark.parametrize("case", PROBLEMS)
def test_what_does_not_go_together_is_told(case, tmp_path):
    arrays, expected = PROBLEMS[case]
    safetensors.numpy.save_file(arrays, tmp_path / "adapters.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(MismatchError) as caught:
        read_adapter(tmp_path)
    assert expected in caught.value.problems
    assert str(tmp_path) in str(caught.value)


def test_problems_of_several_modules_are_told_together(tmp_path):
    arrays = {
        "k.lora_a": np.zeros((5, 2), "f4"),
        "q.lora_b": np.zeros((2, 7), "f4"),
        "x.lora": np.zeros(1, "f4"),
    }
    safetensors.numpy.save_file(arrays, tmp_path / "adapters.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(MismatchError) as caught:
        read_adapter(tmp_path)
    assert set(caught.value.problems) == {
        "x.lora is no part of an adapter",
        "k.lora_b is missing",
        "q.lora_a is missing",
    }


DORA = CONFIG | {"fine_tune_type": "dora"}
MAGNITUDES = {
    "missing": (tensors(), "q.m is missing"),
    "of another size": (tensors(**{"q.m": np.zeros(5, "f4")}), "q: magnitudes F32[5], expected"),
}


@pytest.mark.parametrize("case", MAGNITUDES)
def test_magnitudes_belong_to_dora(case, tmp_path):
    arrays, expected = MAGNITUDES[case]
    safetensors.numpy.save_file(arrays, tmp_path / "adapters.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(DORA))
    with pytest.raises(MismatchError) as caught:
        read_adapter(tmp_path)
    assert [problem.startswith(expected) for problem in caught.value.problems] == [True]


def test_a_file_without_tensors_is_told(tmp_path):
    safetensors.numpy.save_file({}, tmp_path / "adapters.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(BadInputError, match="holds no tensors"):
        read_adapter(tmp_path)
