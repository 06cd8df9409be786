"""Merges of other tools are told from merges of another share, in whole or in part, in 16 bits too."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.values import LowRank
from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketches

BF16 = ml_dtypes.bfloat16
HALVES = [np.float16, BF16]


def made(shape, size, dtype, *, rank=8, scale=0.7, lead=()):
    """Return a base in DTYPE, and an update whose numbers are SIZE times as large as the base's."""
    random = np.random.default_rng(0)
    base = (0.03 * random.standard_normal((*lead, *shape))).astype(dtype)
    a = 0.1 * random.standard_normal((*lead, rank, shape[1]))
    b = random.standard_normal((*lead, shape[0], rank))
    b *= 0.03 * size / (scale * b @ a).std()
    return base, LowRank(a.astype(np.float32), b.astype(np.float32), scale)


def judge(candidate, reference, updates):
    weights = ArrayWeights(reference)
    about = {"reference_arrays": weights.read, "updates": updates}
    return {it.name: it for it in explain(sketches(weights), ArrayWeights(candidate), **about)}


def once(base, update, share=1.0):
    return (base.astype(np.float64) + share * update.delta()).astype(base.dtype)


def by_peft(base, update):
    """Merge as PEFT does on a processor: the product in float32, the update and the sum rounded."""
    return base + (update.b @ update.a * np.float32(update.scale)).astype(base.dtype)


def in_its_dtype(base, update):
    """Merge as PEFT does on a GPU: the product is rounded, and what it is scaled to is again."""
    return base + (update.b @ update.a).astype(base.dtype) * base.dtype.type(update.scale)


def by_mlx(base, update):
    """Merge as mlx-lm does: the factors are rounded."""
    own = base.dtype
    a, b = (it.astype(own).astype(np.float32) for it in (update.a, update.b * update.scale))
    return base + (b @ a).astype(own)


WAYS = {"once": once, "PEFT": by_peft, "in its dtype": in_its_dtype, "mlx-lm": by_mlx}


@pytest.mark.parametrize("size", [1e-1, 1e-3, 1e-4])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("way", WAYS)
def test_merges_of_every_tool_are_merges(way, dtype, size):
    base, update = made((256, 96), size, dtype)
    found = judge({"w": WAYS[way](base, update)}, {"w": base}, {"w": update})["w"]
    assert (found.kind, found.ok) == ("merged", True), found


@pytest.mark.parametrize("share", [1.05, 0.95])
@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("dtype", HALVES)
def test_a_scale_off_by_little_is_no_merge_however_small_the_update(dtype, size, share):
    base, update = made((256, 96), size, dtype)
    found = judge({"w": once(base, update, share)}, {"w": base}, {"w": update})["w"]
    assert not found.ok, found
    if found.kind == "misscaled":
        assert f"{share}"[:3] in found.detail


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("share", [0, 2])
@pytest.mark.parametrize("dtype", HALVES)
def test_one_row_with_another_share_is_named_in_a_very_tall_merge(dtype, share, turned):
    base, update = made((3000, 64), 0.01, dtype)
    whole = once(base, update)
    whole[1234] = once(base, update, share)[1234]
    if turned:
        base, whole, update = base.T.copy(), whole.T.copy(), update.transposed()
    found = judge({"w": whole}, {"w": base}, {"w": update})["w"]
    assert (found.kind, found.ok) == ("misscaled", False), found
    assert f"{'columns' if turned else 'rows'} 1234" in found.detail
    assert ("less" if share < 1 else "more") in found.detail


@pytest.mark.parametrize("dtype", HALVES)
def test_one_matrix_of_many_without_its_update_is_named(dtype):
    base, update = made((24, 32), 0.01, dtype, lead=(150,))
    whole = once(base, update)
    whole[77] = base[77]
    found = judge({"w": whole}, {"w": base}, {"w": update})["w"]
    assert not found.ok
    assert "all of matrix 77" in found.detail


@pytest.mark.parametrize("dtype", HALVES)
def test_one_number_off_by_a_unit_in_the_last_place_or_two_is_no_merge(dtype):
    base, update = made((64, 48), 0.1, dtype)
    whole = by_peft(base, update)
    at = np.unravel_index(np.argmax(np.abs(whole)), whole.shape)
    whole[at] = whole[at] * dtype(1 + 4 * np.finfo(np.float16).eps if dtype == np.float16 else 1.02)
    assert not judge({"w": whole}, {"w": base}, {"w": update})["w"].ok


@pytest.mark.parametrize("way", ["PEFT", "mlx-lm"])
@pytest.mark.parametrize("fused", ["stacked", "joined"])
def test_parts_merged_one_by_one_and_put_together_at_once_are_explained(way, fused):
    base, update = made((64, 48), 0.05, BF16, lead=(4,))
    parts = {f"layers.1.experts.{i}.up": it for i, it in enumerate(base)}
    updates = {name: update.part(i) for i, name in enumerate(parts)}
    merged = [WAYS[way](it, updates[name]) for name, it in parts.items()]
    join = np.stack if fused == "stacked" else np.concatenate
    found = judge({"layers.1.up": join(merged)}, parts, updates)["layers.1.up"]
    assert (found.kind, found.ok, found.parts) == (fused, True, tuple(parts))
    merged[2] = parts["layers.1.experts.2.up"]
    assert not judge({"layers.1.up": join(merged)}, parts, updates)["layers.1.up"].ok


def joined_experts(merged, order=("gate", "up"), also=None):
    """Return gate and up of each expert side by side in ORDER, in one ALSO exchanged, stacked."""
    orders = [order[::-1] if number == also else order for number in range(len(merged) // 2)]
    return np.stack(
        [np.concatenate([merged[f"e.{i}.{it}"] for it in own]) for i, own in enumerate(orders)]
    )


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_experts_whose_gate_and_up_lie_in_one_stack_are_merges_of_every_tool(way, turned):
    base, update = made((64, 48), 0.05, BF16, lead=(6,))
    parts = {f"e.{i // 2}.{('gate', 'up')[i % 2]}": it for i, it in enumerate(base)}
    updates = {name: update.part(i) for i, name in enumerate(parts)}
    merged = {name: WAYS[way](it, updates[name]) for name, it in parts.items()}

    def judged(stack):
        stack = stack.transpose(0, 2, 1).copy() if turned else stack
        return judge({"e.both": stack}, parts, updates)["e.both"]

    found = judged(joined_experts(merged))
    assert (found.kind, found.ok, found.parts) == ("joined", True, tuple(parts)), found
    assert "e.1.up where e.1.gate is due" in judged(joined_experts(merged, also=1)).detail
    found = judged(joined_experts(merged | {"e.2.up": parts["e.2.up"]}))
    assert (found.ok, "e.2.up without its update" in found.detail) == (False, True), found


@pytest.mark.parametrize("cut", [False, True])
def test_gate_and_up_exchanged_in_one_expert_of_a_stack_are_told_without_an_update(cut):
    base, _ = made((64, 48), 0.05, BF16, lead=(6,))
    parts = {f"e.{i // 2}.{('gate', 'up')[i % 2]}": it for i, it in enumerate(base)}
    for also, right in ((None, True), (1, False)):
        stack = joined_experts(parts, also=also)
        stack = stack.reshape(-1, 48) if cut else stack
        assert judge({"e.both": stack}, parts, {})["e.both"].ok == right


def test_a_merge_without_one_row_is_compared_with_base_and_update():
    base, update = made((64, 48), 0.05, BF16)
    whole = by_peft(base, update)
    found = judge({"merged": whole[:-1]}, {"w": base}, {"w": update})["merged"]
    assert found.detail == "rows 0-62 of 64 of w; updates merged"
    whole[5] = 0
    words = judge({"w": whole}, {"w": base}, {"w": update})["w"].detail
    assert "rows 5 (1 of 64) are zeros, the others agree; updates merged" in words


def test_a_row_whose_small_update_is_lost_is_named():
    base, update = made((64, 48), 0.005, BF16)
    whole = by_peft(base, update)
    whole[5] = base[5]
    found = judge({"w": whole}, {"w": base}, {"w": update})["w"]
    assert not found.ok
    assert "w + another update than was due" in found.detail
    assert "in rows 5 (1 of 64)" in found.detail
