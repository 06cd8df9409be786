"""Whole tensors of an adapter are rounded once to the dtype of the base, and measured."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.converters.adapters.merging import modules_to_save as whole
from weighbridge.converters.adapters.merging.modules_to_save import ModulesToSave, cast_once
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.quantization.rounding import round_once
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.adapters.survival import measure

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
TRAINED = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in ("float64", "float32", "float16", "bfloat16")}  # fmt: skip


class Base:
    """A checkpoint in memory."""

    path, files, ignored, metadata = None, (), (), {}

    def __init__(self, arrays):
        self._arrays = arrays
        self.headers = {name: Header(CODE[it.dtype], it.shape) for name, it in arrays.items()}

    def read(self, name):
        return self._arrays[name]


def pair(dtype=BFLOAT16, trained="float32", shape=(30, 7)):
    random = np.random.default_rng(0)
    base = random.normal(size=shape)
    return base.astype(dtype), (base + random.normal(size=shape)).astype(TRAINED[trained])


@pytest.mark.parametrize("trained", TRAINED)
@pytest.mark.parametrize("block", [1, 64, 1 << 19])
def test_it_is_rounded_once_and_measured_whatever_the_blocks(trained, block, monkeypatch):
    monkeypatch.setattr(whole, "BLOCK", block)
    base, array = pair(trained=trained)
    made, survival = cast_once(base, array)
    assert made.tobytes() == round_once(array.astype(np.float64), BFLOAT16).tobytes()
    if block > 1:  # the median spacing is of a sample of each block
        np.testing.assert_allclose(survival, measure(base, array, made), rtol=1e-12)


def test_a_tensor_in_memory_of_another_order_is_taken_as_it_reads():
    base, array = pair()
    made, survival = cast_once(np.asfortranarray(base), np.asfortranarray(array))
    assert (made == cast_once(base, array)[0]).all()
    assert survival == cast_once(base, array)[1]


@pytest.mark.parametrize("number", [3.4e38, np.inf, np.nan])
def test_numbers_that_the_base_cannot_have_are_refused_by_name(number):
    base, array = pair()
    array[2, 3] = number
    tensors = ModulesToSave(
        Base({"a": base, "b": base, "c": base}), {"a": array, "b": base, "c": array}
    )
    with pytest.raises(UnsupportedError, match=r"a \(bfloat16\), c \(bfloat16\); merge into"):
        tensors.cast_to_base()


def test_what_was_infinite_in_the_base_may_stay_so():
    base, array = pair()
    base[2, 3] = array[2, 3] = -np.inf
    made, survival = cast_once(base, array)
    assert np.isneginf(made[2, 3])
    assert survival.gain == pytest.approx(1, abs=0.01)


def test_integers_are_taken_only_if_none_changes():
    base = np.arange(4, dtype=np.int32)
    made, survival = cast_once(base, np.array([0, 1, 2, 9]))
    assert made.dtype == base.dtype
    assert (made.tolist(), survival.changed) == ([0, 1, 2, 9], 1)
    with pytest.raises(UnsupportedError):
        cast_once(base, np.array([0, 1, 2, 2**40]))


def test_live_it_has_its_own_dtype_and_settled_the_base_s():
    base, array = pair()
    tensors = ModulesToSave(Base({"a": base, "b": base}), {"a": array})
    cast, survival = tensors.cast_to_base()
    assert [tensors.headers[name].dtype for name in "ab"] == ["F32", "BF16"]
    assert [cast.headers[name].dtype for name in "ab"] == ["BF16", "BF16"]
    assert tensors.read("a").tobytes() == array.tobytes()
    assert list(survival) == ["a"]
