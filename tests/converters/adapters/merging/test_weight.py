"""A merge is the float64 sum rounded once, and what is lost by rounding is measured."""

from __future__ import annotations

import sys

import ml_dtypes
import numpy as np
import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters import merge
from weighbridge.converters.adapters.merging.survival import judge, worst_of
from weighbridge.converters.adapters.merging.weight import ALONE
from weighbridge.converters.common.dtypes import unit_roundoff
from weighbridge.converters.quantization.rounding import round_once
from weighbridge.converters.values import LowRank, stack
from weighbridge.errors import MismatchError, UnsupportedError

DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float64", "float32", "float16", "bfloat16")
}


def pair(shape=(9, 6), rank=3, size=1.0, seed=0):
    generator = np.random.default_rng(seed)
    base = generator.normal(size=shape)
    a = generator.normal(size=(rank, shape[1])).astype(np.float32)
    b = (size * generator.normal(size=(shape[0], rank))).astype(np.float32)
    return base, LowRank(a, b, 0.7)


@pytest.mark.parametrize("name", DTYPES)
def test_the_sum_is_rounded_once(name):
    base, update = pair()
    base = base.astype(DTYPES[name])
    merged, survival = merge(base, update)
    expected = round_once(base.astype(np.float64) + update.delta(), DTYPES[name])
    assert merged.dtype == DTYPES[name]
    assert (merged == expected).all()
    assert survival.size == survival.changed == base.size


@given(st.integers(1, 7), st.integers(1, 200))
def test_blocks_of_rows_do_not_change_the_result(rows, block):
    base, update = pair((rows, 5), 2, seed=rows)
    module = sys.modules[merge.__module__]
    whole = merge(base.astype(np.float32), update)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK", block)
        parts = merge(base.astype(np.float32), update)
    assert (parts[0] == whole[0]).all()
    np.testing.assert_allclose(parts[1], whole[1], rtol=1e-9, atol=1e-12)


def test_the_inputs_are_left_as_they_are():
    base, update = pair()
    copies = base.copy(), update.a.copy(), update.b.copy()
    merge(base, update)
    assert all((x == y).all() for x, y in zip((base, update.a, update.b), copies, strict=True))


def test_the_figures_are_those_of_their_definition():
    base, update = pair(size=0.01)
    base = base.astype(ml_dtypes.bfloat16)
    merged, survival = merge(base, update)
    intended = update.delta().ravel()
    realised = (merged.astype(np.float64) - base.astype(np.float64)).ravel()
    norms = np.linalg.norm(intended) * np.linalg.norm(realised)
    assert survival.cosine == pytest.approx(intended @ realised / norms, rel=1e-12)
    error = np.linalg.norm(realised - intended) / np.linalg.norm(intended)
    assert survival.relative_error == pytest.approx(error, rel=1e-12)
    assert survival.changed == np.count_nonzero(merged != base)
    assert 0.1 < survival.relative_error < 1.1  # at this size bfloat16 loses much


def test_less_survives_in_narrower_dtypes_and_of_smaller_updates():
    def survival(name, size):
        base, update = pair((64, 48), size=size)
        return merge(base.astype(DTYPES[name]), update)[1]

    by_dtype = [survival(name, 0.02).relative_error for name in ("float32", "float16", "bfloat16")]
    by_size = [survival("bfloat16", size).cosine for size in (1.0, 0.01, 0.0002)]
    assert by_dtype == sorted(by_dtype)
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[-1] < 0.6


def test_an_update_too_small_for_the_dtype_survives_in_nothing():
    base = np.ones((4, 3), ml_dtypes.bfloat16)
    merged, survival = merge(base, LowRank(np.ones((1, 3)), np.full((4, 1), 1e-6)))
    assert (merged == base).all()
    assert survival[:3] == (0.0, 0.0, 1.0)
    assert survival[4:] == (0, 12)


@pytest.mark.parametrize("name", DTYPES)
def test_an_update_of_nothing_survives_whole_and_leaves_the_bytes(name):
    base, update = pair()
    base[0, :4] = np.nan, np.inf, -np.inf, -0.0
    base = base.astype(DTYPES[name])
    merged, survival = merge(base, LowRank(update.a, 0 * update.b))
    assert survival == (1.0, 1.0, 0.0, 0.0, 0, 54)
    assert merged.tobytes() == base.tobytes()


@pytest.mark.parametrize("name", DTYPES)
def test_rows_that_an_update_leaves_alone_keep_their_bytes(name):
    base, update = pair()
    update.b[3:6] = 0
    base[3:6, 1] = -0.0
    base = base.astype(DTYPES[name])
    merged, survival = merge(base, update)
    assert merged[3:6].tobytes() == base[3:6].tobytes()
    assert survival.changed == 36


def test_what_was_infinite_stays_so_and_out_of_the_figures():
    base, update = pair()
    base[2, 3], base[4, 4] = np.inf, np.nan
    merged, survival = merge(base.astype(np.float32), update)
    assert np.isinf(merged[2, 3])
    assert np.isnan(merged[4, 4])
    assert survival.gain == pytest.approx(1, abs=1e-6)
    assert survival.cosine == pytest.approx(1)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("block", [1, 30, 1 << 19])
def test_a_stack_of_matrices_is_merged_one_by_one(name, block, monkeypatch):
    monkeypatch.setattr(sys.modules[merge.__module__], "BLOCK", block)
    matrices = [pair(seed=seed) for seed in range(4)]
    bases = [base.astype(DTYPES[name]) for base, _ in matrices]
    whole, survival = merge(np.stack(bases), stack([update for _, update in matrices]))
    alone = [merge(base, update) for base, (_, update) in zip(bases, matrices, strict=True)]
    assert whole.tobytes() == np.stack([merged for merged, _ in alone]).tobytes()
    assert survival.size == sum(it.size for _, it in alone)
    assert survival.gain == pytest.approx(worst_of(it for _, it in alone).gain, abs=1e-12)


def test_of_a_stack_the_matrix_of_which_least_survives_is_told():
    """A large update of one expert must not hide that another's is rounded away."""
    pairs = [pair((24, 16), size=size, seed=seed) for seed, size in enumerate((0.5, 1e-5, 0.5))]
    bases = [base.astype(ml_dtypes.bfloat16) for base, _ in pairs]
    alone = [merge(base, update)[1] for base, (_, update) in zip(bases, pairs, strict=True)]
    _, survival = merge(np.stack(bases), stack([update for _, update in pairs]))
    assert [judge(it) for it in alone] == ["pass", "refuse", "pass"]
    np.testing.assert_allclose(survival[:4], alone[1][:4], rtol=1e-12)
    assert survival[4:] == tuple(np.sum([it[4:] for it in alone], axis=0))


@pytest.mark.parametrize("magnitude", [None, np.arange(1.0, 10.0)])
@pytest.mark.parametrize("width", [0, 1, 7, 1000])
def test_a_matrix_wider_than_one_product_gets_its_whole_update(magnitude, width, monkeypatch):
    """Real matrices are: a product is of a few columns, so that it needs one thread."""
    monkeypatch.setattr(sys.modules[merge.__module__], "ALONE", 9 * 3 * width)
    base, update = pair((9, 20))
    update = LowRank(update.a, update.b, update.scale, magnitude)
    merged, survival = merge(base, update)
    np.testing.assert_allclose(merged, update.applied_to(base), rtol=1e-13)
    assert survival.changed == base.size


def test_a_matrix_of_real_size_gets_its_whole_update():
    random, rank = np.random.default_rng(0), 64
    shape = 300, ALONE // 64 // 300 * 3 + 5  # of which four products make a block
    base = random.normal(size=shape)
    a, b = random.normal(size=(rank, shape[1])), random.normal(size=(shape[0], rank))
    update = LowRank(a, b, 0.5)
    np.testing.assert_allclose(merge(base, update)[0], update.applied_to(base), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_a_sum_in_32_bits_is_the_one_in_64_but_for_its_rounding(name):
    base, update = pair((64, 48))
    base = base.astype(DTYPES[name])
    wide, narrow = (merge(base, update, accumulate=it)[0] for it in ("float64", "float32"))
    error = np.abs(wide.astype(np.float64) - narrow.astype(np.float64))
    spacing = 2.0 * unit_roundoff(name) * np.abs(wide.astype(np.float64))
    assert (error <= spacing + 1e-6).all()
    assert np.mean(error == 0) > (0.5 if name == "float32" else 0.99)


@pytest.mark.parametrize("magnitude", [None, np.arange(1.0, 10.0, dtype=np.float32)])
@pytest.mark.parametrize("square", [True, False])
def test_the_merge_is_that_of_peft(magnitude, square):
    """The oracle is PEFT's own; it sums in float32."""
    base, update = pair((9, 9) if square else (9, 6), rank=9 if square else 3)
    base = base.astype(np.float32)
    update = LowRank(update.a, update.b, 2.0, magnitude)
    layer = torch.nn.Linear(base.shape[1], 9, bias=False)
    layer.weight.data = torch.from_numpy(base.copy())
    config = peft.LoraConfig(
        r=update.rank, lora_alpha=2 * update.rank, target_modules=["0"],
        use_dora=magnitude is not None,
    )  # fmt: skip
    model = peft.get_peft_model(torch.nn.Sequential(layer), config)
    tensors = {"lora_A.weight": update.a, "lora_B.weight": update.b}
    if magnitude is not None:
        tensors["lora_magnitude_vector"] = magnitude
    named = {f"base_model.model.0.{name}": torch.from_numpy(it) for name, it in tensors.items()}
    peft.set_peft_model_state_dict(model, named)
    expected = model.merge_and_unload()[0].weight.detach().numpy()
    merged, _ = merge(base, update)
    size = np.abs(expected) + np.abs(base) + 2 * np.abs(update.b) @ np.abs(update.a)
    assert (np.abs(merged - expected) <= 8 * 2.0**-24 * size).all()
    assert np.abs(merged - base).max() > 0.5


def test_dora_gives_every_row_its_magnitude():
    base, update = pair()
    magnitude = np.arange(1.0, 10.0)
    merged, survival = merge(base, LowRank(update.a, update.b, update.scale, magnitude))
    np.testing.assert_allclose(np.linalg.norm(merged, axis=1), magnitude, rtol=1e-12)
    directions = (base + update.delta()) / merged
    assert (np.ptp(directions, axis=1) < 1e-9).all()
    assert survival.cosine == pytest.approx(1)


REFUSED = {
    "integers": (np.zeros((9, 6), np.uint32), UnsupportedError, "cannot merge into uint32"),
    "shape": (np.zeros((6, 9)), MismatchError, r"base has shape \[6, 9\], the update \[9, 6\]"),
    "overflow": (np.full((9, 6), 65504, np.float16), UnsupportedError, "do not fit float16"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_merged_is_refused(case):
    base, error, message = REFUSED[case]
    update = LowRank(np.ones((1, 6)), np.ones((9, 1)), 100.0)
    with pytest.raises(error, match=message):
        merge(base, update)


def test_a_row_of_zeros_has_no_direction_for_dora():
    update = LowRank(np.zeros((1, 2)), np.zeros((2, 1)), 1.0, np.ones(2))
    with pytest.raises(UnsupportedError, match="do not fit float64"):
        merge(np.zeros((2, 2)), update)


def test_a_base_of_transposed_memory_is_merged_as_it_reads():
    base, update = pair()
    turned = np.asfortranarray(base)
    assert (merge(turned, update)[0] == merge(base, update)[0]).all()
