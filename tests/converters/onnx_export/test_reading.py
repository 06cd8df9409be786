"""Codes read back under names, and in parts, that the exported module does not have."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.onnx_export.reading import under_other_names
from weighbridge.converters.quantization import Blocks, Scheme, quantize


def coded(random, shape, scheme=Scheme(4, 32)):
    """Return a weight of SHAPE on codes."""
    return Blocks(quantize(random.standard_normal(shape).astype("f4"), scheme, "float16"), scheme)


def of_experts(arrays):
    """Return stacks of experts, gate and up joined, as matrices of each; other weights as they are."""
    found = {name: it for name, it in arrays.items() if name != "experts"}
    for number, expert in enumerate(arrays["experts"]):
        gate, up = np.split(expert, 2)
        found |= {f"{number}.gate": gate, f"{number}.up": up}
    return found


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_experts_that_are_cut_apart_have_the_codes_of_their_own_rows(count, rows, seed):
    random = np.random.default_rng(seed)
    blocks = {"other": coded(random, (3, 64)), "experts": coded(random, (count, 2 * rows, 64))}
    dense = {"norm": np.ones(4, np.float32), **{name: it.dense() for name, it in blocks.items()}}
    found = under_other_names(blocks, dense, of_experts(dense), of_experts)
    parts = {name: of_experts({"experts": it}) for name, it in blocks["experts"].parts.items()}
    assert found.keys() == {"other", *parts["weight"]}
    for name in parts["weight"]:
        assert all(np.array_equal(found[name].parts[it], parts[it][name]) for it in parts)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: {"w": it["w"].T},
        lambda it: {"w": it["w"][:, ::-1]},
        lambda it: {"w": it["w"][:, :32]},
        lambda it: {"w": np.concatenate([it["w"], it["plain"]])},
        lambda it: {"w": np.concatenate([it["w"], it["fine"]])},
        lambda it: {"w": it["w"][0]},
    ],
    ids=[
        "turned",
        "columns turned",
        "cut",
        "joined with dense",
        "joined with other codes",
        "a row",
    ],
)
def test_a_weight_whose_rows_are_no_whole_rows_of_one_scheme_stays_dense(change):
    random = np.random.default_rng(0)
    blocks = {"w": coded(random, (2, 64)), "fine": coded(random, (2, 64), Scheme(8, 32))}
    dense = {"plain": np.ones((2, 64), np.float32), **{n: it.dense() for n, it in blocks.items()}}
    assert under_other_names(blocks, dense, change(dense), change) == {}
