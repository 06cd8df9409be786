"""Do two adapters change the same weights by the same amounts? Asked of their numbers, nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checkpoints import Checkpoint
from ..values import Array, LowRank

COLUMNS = 4  # random inputs that an update acts on
CLOSE = 1e-6  # relative: a scale multiplied into float32 factors is rounded once


def disagreements(
    wanted: Mapping[str, LowRank], found: Mapping[str, LowRank], seed: int = 0
) -> list[str]:
    """Return how FOUND differs from WANTED, both by the base's own names; empty if it does not.

    What each update does to random inputs is compared, expert by expert, rows and columns of
    embeddings included, so nothing depends on which of them a probe happens to reach. An update that
    only FOUND has may be there if it is zero: a stack of experts has one for each.
    """
    random = np.random.default_rng(seed)
    problems = [f"{name} has no update any more" for name in sorted(wanted.keys() - found.keys())]
    for name in sorted(found):
        update = found[name]
        inputs = random.standard_normal((update.shape[-1], COLUMNS))
        problems += _differs(name, wanted.get(name), update, inputs)
    return problems


def other_arrays(wanted: Mapping[str, Array], found: Mapping[str, Array]) -> list[str]:
    """Return which ``modules_to_save`` tensors of WANTED are not the same numbers in FOUND, or only in FOUND."""
    return [
        f"{name}: the modules_to_save tensor differs"
        for name in sorted(wanted.keys() | found.keys())
        if not _same(wanted.get(name), found.get(name))
    ]


def _differs(
    name: str, wanted: LowRank | None, found: LowRank, inputs: NDArray[np.float64]
) -> Iterator[str]:
    theirs = _effect(found, inputs)
    if wanted is None:
        if np.any(theirs):
            yield f"{name} has an update that the source has not"
        return
    ours = _effect(wanted, inputs)
    if ours.shape != theirs.shape:
        yield f"{name}: an update of {list(wanted.shape)} has become one of {list(found.shape)}"
        return
    axes = (-2, -1)  # of each expert alone
    gap, size = np.linalg.norm(theirs - ours, axis=axes), np.linalg.norm(ours, axis=axes)
    if not np.all(gap <= CLOSE * size):
        worst = float(np.max(gap / np.maximum(size, np.finfo(float).tiny)))
        yield f"{name}: what the update does differs by {worst:.1e}"
    if not _same(wanted.magnitude, found.magnitude):
        yield f"{name}: the DoRA magnitudes differ"


def _effect(update: LowRank, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what UPDATE adds for INPUTS, in float64, shape ``(..., out, columns)``."""
    down: Any = update.a.astype(np.float64) @ inputs
    return np.asarray(update.scale * (update.b.astype(np.float64) @ down))


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return bool(np.array_equal(one.astype(np.float64), other.astype(np.float64)))


def differing(saved: Mapping[str, Array], base: Checkpoint) -> dict[str, Array]:
    """Return those of SAVED that differ from the tensors of BASE, which go by the same names.

    PEFT writes a copy of every embedding that has an update beside it (``save_embedding_layers``);
    the copies need not travel. One that was rounded to another dtype on the way counts as a copy.
    """
    return {name: array for name, array in saved.items() if not _copy(array, base, name)}


def _copy(array: Array, base: Checkpoint, name: str) -> bool:
    """Say whether ARRAY is the tensor NAME of BASE, in ARRAY's own dtype.

    A wider one that would merely round to it was trained.
    """
    if name not in base.headers or base.headers[name].shape != array.shape:
        return False
    with np.errstate(over="ignore"):
        return bool(np.array_equal(array, base.read(name).astype(array.dtype)))
