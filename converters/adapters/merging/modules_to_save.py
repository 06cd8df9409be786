"""``modules_to_save`` tensors of an adapter in the place of the base's: as trained, or as written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from ....errors import UnsupportedError
from ...checkpoints import Checkpoint
from ...checkpoints.derived import Overlay
from ...common.dtypes import CODE, FLOATS, NUMPY
from ...quantization.rounding import round_once
from ...values import Array
from .survival import Sums, Survival

BLOCK: Final = 1 << 19  # elements rounded at a time, each in a handful of float64 temporaries


class CastToBase(NamedTuple):
    """``modules_to_save`` tensors as a merge writes them.

    Attributes:
        checkpoint: the base, with them in its own dtypes.
        survival: how much is left of what each of them changes, by name.
    """

    checkpoint: Checkpoint
    survival: dict[str, Survival]


class ModulesToSave(Overlay):
    """CHECKPOINT with the ``modules_to_save`` tensors of an adapter in it, in the dtypes that they were trained in.

    Attributes:
        base: CHECKPOINT itself.
    """

    def __init__(self, checkpoint: Checkpoint, arrays: Mapping[str, Array]) -> None:
        super().__init__(checkpoint, arrays)
        self.base, self._whole = checkpoint, arrays

    def cast_to_base(self) -> CastToBase:
        """Return the tensors rounded once to the dtypes of the base, and what is left of them.

        Raises:
            UnsupportedError: numbers do not fit the dtype of the base; all such tensors are named.
        """
        made: dict[str, Array] = {}
        survival: dict[str, Survival] = {}
        wrong: dict[str, str] = {}
        for name, array in sorted(self._whole.items()):
            try:
                made[name], survival[name] = cast_once(self.base.read(name), array)
            except UnsupportedError:
                wrong[name] = NUMPY[self.base.headers[name].dtype].name
        if wrong:
            named = ", ".join(f"{name} ({dtype})" for name, dtype in wrong.items())
            raise UnsupportedError(
                f"modules_to_save tensors of the adapter do not fit the dtype of the base: {named};"
                " merge into a base of a wider dtype"
            )
        return CastToBase(Overlay(self.base, made), survival)


def cast_once(base: Array, whole: Array) -> tuple[Array, Survival]:
    """Return WHOLE rounded once to the dtype of BASE, whose place it takes, and what is left of it.

    Raises:
        UnsupportedError: numbers do not fit, where those of BASE did.

    >>> base = np.ones(2, np.float16)
    >>> made, survival = cast_once(base, np.array([1.5, 1 + 2**-20]))
    >>> made.tolist(), survival.changed
    ([1.5, 1.0], 1)
    """
    if CODE.get(base.dtype) not in FLOATS:
        return _unrounded(base, whole)
    made, sums = np.empty(base.shape, base.dtype), Sums()
    flat = [array.reshape(-1) for array in (base, whole, made)]
    for start in range(0, base.size, BLOCK):
        old, new, out = (array[start : start + BLOCK] for array in flat)
        before, wanted = old.astype(np.float64), new.astype(np.float64)
        out[:] = round_once(wanted, base.dtype)
        _add(sums, before, wanted, out)
    return made, sums.survival()


def _add(sums: Sums, before: Array, wanted: Array, made: Array) -> None:
    """Measure a block; what was infinite or NaN in the base too stays out."""
    real = made.astype(np.float64)
    known, fits = np.isfinite(before), np.isfinite(real)
    if ((known | np.isfinite(wanted)) & ~fits).any():
        raise UnsupportedError(f"values do not fit {made.dtype}")
    both = known & fits
    intended, realised = (np.zeros(real.shape) for _ in range(2))
    np.subtract(wanted, before, out=intended, where=both)
    np.subtract(real, before, out=realised, where=both)
    sums.add(intended, realised)
    sums.see(made)


def _unrounded(base: Array, whole: Array) -> tuple[Array, Survival]:
    """Return WHOLE in the dtype of BASE, integers or truths, of which none may change."""
    made = whole.astype(base.dtype)
    if not np.array_equal(made.astype(whole.dtype), whole):
        raise UnsupportedError(f"values do not fit {base.dtype}")
    changed = int(np.count_nonzero(made != base))
    return made, Survival(1.0, 1.0, 0.0, 0.0, changed, base.size)
