"""Compressed weights of a package, held against the source's: is each number the nearest its codes could give?

What is left of the check is then against the source with these weights, which the package is to compute with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...converters.captures.mlprogram.arithmetic import tensors
from ...converters.checkpoints.derived import Overlay
from ...converters.models import Model
from ...converters.values import Array
from ...errors import UnsupportedError
from ..check.verdict import Stage
from ..weights.reference_index import ranked
from ..weights.sketches.sketch import squeeze
from .constants import rules_of
from .source import SourceTensors

if TYPE_CHECKING:
    from pathlib import Path

    from ...converters.captures.mlprogram.program import Program
    from ..goldens.golden import Golden

NAME: Final = "compressed"
SHOWN: Final = 3  # weights that a line names
RUNS: Final = (2, 4, 8, 16, 32, 64)  # lengths of runs in which so many are zeroed


class Fit(NamedTuple):
    """How a compressed constant fits a tensor of the source.

    Attributes:
        name: the constant.
        source: the tensor.
        beyond: numbers that are not the nearest that the codes could give.
        size: all numbers.
        far: those of them that lie further than a step away.
        out: numbers that lie further than a step from all that the codes could give, where most do.
        zeroed: numbers that were zeroed and are larger than others that were kept.
        moved: how far it lies from the tensor, as a part of its size.
        values: what the tensor is in the package, in its own layout; ``None`` where that is unknown.
    """

    name: str
    source: str
    beyond: int
    size: int
    far: int
    out: int
    zeroed: int
    moved: float
    values: Array | None

    @property
    def ok(self) -> bool:
        """Whether the constant is what a compression to the nearest makes of the tensor."""
        return not self.beyond and not self.zeroed and not self.lost

    @property
    def lost(self) -> bool:
        """Whether the constant is not the tensor, however the codes were chosen."""
        return bool(self.far or self.out) or self.moved >= 1

    def problem(self) -> str:
        """Say what does not fit."""
        if self.lost and not self.far:
            return (
                f"{self.name} moved {self.source} by {self.moved:.2g} of its size: {self.out:,} of"
                f" {self.size:,} numbers lie further than a step from all that its codes could give"
            )
        if self.beyond:
            return (
                f"{self.name}: {self.beyond:,} of {self.size:,} numbers are not the nearest to"
                f" {self.source} that their codes could give, {self.far:,} by more than a step"
            )
        return f"{self.name}: {self.zeroed:,} numbers of {self.source} are zeroed, and smaller ones kept"


class Option(NamedTuple):
    """What a constant may be made of.

    Attributes:
        source: a tensor.
        wanted: its numbers, in the shape of the constant.
        shape: its own shape, turned round where it is ``turned``.
        expression: arithmetic that comes first, see ``mlprogram.arithmetic``; ``None`` for none.
        turned: whether its last two axes are exchanged.
    """

    source: str
    wanted: Array
    shape: tuple[int, ...]
    expression: Any = None
    turned: bool = False

    def undo(self, values: Array) -> Array | None:
        """Return VALUES of the constant as the tensor lies; ``None`` where arithmetic cannot be undone."""
        from ...converters.recovering import undone

        if self.expression is not None:
            return undone(self.expression, values)
        own = values.reshape(self.shape)
        return np.swapaxes(own, -1, -2) if self.turned else own


@dataclass(frozen=True)
class CompressedWeights:
    """The compressed weights of a package, and the source that they are held against."""

    program: Program
    source: SourceTensors

    def fits(self) -> dict[str, Fit | None]:
        """Return the best fit of each compressed constant; ``None`` where no tensor has its size."""
        return {name: self.best(name, it) for name, it in self.program.compressed().items()}

    def best(self, name: str, variable: Any) -> Fit | None:
        """Return how the constant NAME fits the first tensor that it is made of, or the nearest one."""
        found: Fit | None = None
        for option in self.options(name, tuple(variable.shape)):
            fit = fit_of(name, variable, option)
            if found is None or _misfit(fit) < _misfit(found):
                found = fit
            if fit.ok:
                break
        return found

    def options(self, name: str, shape: tuple[int, ...]) -> Iterator[Option]:
        """Yield what NAME may be made of."""
        rule = rules_of(self.program.manifest).get(name) or {}
        whole = self.source.evaluated(rule.get("value"))
        if whole is not None and whole.size == math.prod(shape):
            for key in tensors(rule["value"]):
                yield Option(self.source.own(key), whole.reshape(shape), whole.shape, rule["value"])
        for source in self.names(name, shape):
            array = self.source.read("key", source)
            yield Option(source, array.reshape(shape), array.shape)
            turned = np.swapaxes(array, -1, -2) if array.ndim > 1 else array
            if array.ndim > 1 and squeeze(turned.shape) == squeeze(shape):
                yield Option(source, turned.reshape(shape), turned.shape, turned=True)

    def names(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """Return the tensors of as many numbers as SHAPE, that first which a manifest or the name tells."""
        entry = dict(self.program.manifest.get("weights") or {}).get(name) or {}
        alike = self.source.of_size(shape)
        named = self.source.own(str(entry.get("key", "")))
        return sorted(ranked(name, alike), key=lambda it: it != named)


def _misfit(fit: Fit) -> tuple[float, ...]:
    return fit.lost, fit.beyond, fit.zeroed, fit.moved


def fit_of(name: str, variable: Any, option: Option) -> Fit:
    """Return how VARIABLE, compressed and called NAME, fits OPTION."""
    from ...converters.captures.mlprogram.closest import closest, zeros_of
    from ...converters.captures.mlprogram.evaluator import constant_value

    exact, values = option.wanted.astype(np.float64), np.asarray(constant_value(variable))
    held, best = values.astype(np.float64), closest(variable, exact)
    gap, least = np.abs(held - exact), np.abs(best.values - exact)
    wrong = ~(gap - least <= best.room)
    zeros = zeros_of(variable)
    size = float(np.linalg.norm(exact))
    kept = np.ones(exact.shape, bool) if zeros is None else ~zeros
    out = int((kept & (least > best.step + best.room)).sum())
    return Fit(
        name,
        option.source,
        beyond=int(wrong.sum()),
        size=exact.size,
        far=int((wrong & ~(gap <= least + best.step)).sum()),
        out=out if 2 * out > kept.sum() else 0,
        zeroed=0 if zeros is None else out_of_order(np.abs(exact), zeros),
        moved=float(np.linalg.norm(held - exact)) / size if size else 0.0,
        values=option.undo(values),
    )


def out_of_order(sizes: Array, zeros: Array) -> int:
    """Return how many numbers of SIZES that became ZEROS are larger than others that were kept.

    In the whole tensor, or in runs along one axis of which each has lost as many, whichever has none.
    """
    if zeros.all():
        return int(np.count_nonzero(sizes))
    counts = [_larger(sizes.reshape(1, -1), zeros.reshape(1, -1))]
    for axis, length in enumerate(sizes.shape):
        moved = [np.moveaxis(it, axis, -1) for it in (sizes, zeros)]
        for run in (it for it in RUNS if length % it == 0):
            cut, lost = (it.reshape(-1, run) for it in moved)
            if len(set(lost.sum(-1))) == 1:
                counts.append(_larger(cut, lost))
    return min(counts)


def _larger(sizes: Array, zeros: Array) -> int:
    """Return how many that became ZEROS are larger than others of their row that were kept."""
    least = np.where(zeros, np.inf, sizes).min(-1, keepdims=True)
    return int((zeros & (sizes > least)).sum())


def predicted(reference: Model, fits: Mapping[str, Fit | None]) -> Model:
    """Return REFERENCE with those of its weights that a package has compressed, as it has them."""
    known = [it for it in fits.values() if it is not None and not it.lost]
    values = {it.source: it.values for it in known if it.values is not None}
    if not values:
        return reference
    if reference.factory is None or reference.path is not None:
        return replace(reference, tensors=Overlay(reference.checkpoint, values))
    from ...converters.common.arrays import to_torch
    from ..weights.weights import own_copy

    own = own_copy(reference)
    state = own.factory.state_dict()
    for name, array in values.items():
        state[name].copy_(to_torch(array))
    return own


def compressed_stage(fits: Mapping[str, Fit | None]) -> Stage:
    """Say whether every compressed weight is the nearest to the source's that its codes could give."""
    figures: dict[str, Any] = {"moved": {name: it.moved for name, it in fits.items() if it}}
    lost = [f"{name}: no tensor of the source has its size" for name, it in fits.items() if not it]
    wrong = [it.problem() for it in fits.values() if it and it.lost]
    unsure = [it.problem() for it in fits.values() if it and not it.ok and not it.lost]
    if problems := [*wrong, *lost, *unsure]:
        status = "fail" if wrong else "unverified"
        detail = "; ".join(problems[:SHOWN])
        more = len(problems) - SHOWN
        detail += f"; and {more} more" if more > 0 else ""
        return Stage(NAME, status, detail, figures | {"problems": problems})
    worst = max((it for it in fits.values() if it), key=lambda it: it.moved)
    detail = (
        f"{len(fits)} weights are the nearest to the source's that their codes can give; they moved by"
        f" {worst.moved:.2g} of their size at most ({worst.source})"
    )
    return Stage(NAME, "pass", detail, figures)


def is_compressed(path: Path) -> bool:
    """Say whether the package at PATH has weights of codes; its program is not loaded for that."""
    from ...converters.captures.mlprogram.package import census, functions, read_package

    package = read_package(path)
    kinds = (kind for name in functions(package) for kind in census(package, name))
    return any(kind.startswith("constexpr_") for kind in kinds)


def as_compressed(
    reference: Model | Golden, candidate: Model
) -> tuple[Model | Golden, Stage | None]:
    """Return REFERENCE with the weights that the package CANDIDATE compressed, and whether they are its.

    ``None`` where the package compresses nothing.

    Raises:
        UnsupportedError: REFERENCE is a golden, which has no weights to compare with.
    """
    if candidate.path is None or not is_compressed(candidate.path):
        return reference, None
    from ...converters.captures.mlprogram import load_program

    source = reference if isinstance(reference, Model) else reference.model
    if source is None:
        raise UnsupportedError(
            f"{candidate.spec} is compressed, so each of its weights is held against the source's, which a"
            " golden does not keep; name the source itself"
        )
    program = load_program(candidate.path)
    if not program.compressed():
        return reference, None
    fits = CompressedWeights(program, SourceTensors(source)).fits()
    return predicted(source, fits), compressed_stage(fits)
