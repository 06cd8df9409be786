"""Weights of a file on codes, held against the source's: is each number the nearest its codes could give?

What is left of the check is then against the source with these weights, which the package is to compute with.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from ...converters.captures.mlprogram.arithmetic import tensors
from ...converters.checkpoints.derived import Overlay
from ...converters.common.hints import counted
from ...converters.models import Model
from ...converters.recovering.undoing import Share, shares
from ...converters.values import Array
from ...errors import UnsupportedError
from ..check.verdict import Stage
from ..weights.orders import shorten
from ..weights.reference_index import ranked
from ..weights.sketches.sketch import squeeze
from .coded import Coded, CodedFile, coded_in
from .constants import rules_of
from .parts import joined, rows
from .source import SourceTensors

if TYPE_CHECKING:
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
        values: what it has of each tensor, in the tensor's layout; ``None`` where that is unknown.
    """

    name: str
    source: str
    beyond: int
    size: int
    far: int
    out: int
    zeroed: int
    moved: float
    values: list[Share] | None

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
        wanted: its numbers, in the shape of the constant.
        shape: the same before they were brought into it.
        expression: arithmetic on tensors that makes them, see ``mlprogram.arithmetic``.
        turned: whether the last two axes of what it makes are exchanged.
    """

    wanted: Array
    shape: tuple[int, ...]
    expression: Any
    turned: bool = False

    @property
    def source(self) -> str:
        """The tensors, in words."""
        return shorten([*tensors(self.expression)], 3)

    def undo(self, values: Array, source: SourceTensors) -> list[Share] | None:
        """Return what VALUES of the constant have of each tensor; ``None`` where that cannot be said."""
        own = values.reshape(self.shape)
        own = np.swapaxes(own, -1, -2) if self.turned else own
        found = shares(self.expression, own, source.read)
        return found and [it._replace(source=source.own(it.source)) for it in found]


@dataclass(frozen=True)
class CompressedWeights:
    """The weights of a file that are on codes, and the source that they are held against."""

    file: CodedFile
    source: SourceTensors

    def fits(self) -> dict[str, Fit | None]:
        """Return the best fit of each; ``None`` where no tensor has its size.

        Zeros that are no tensor's size are left out: they are no weights.
        """
        found = {name: self.best(name, it) for name, it in self.file.weights.items()}
        return {n: it for n, it in found.items() if it or np.any(self.file.weights[n].values())}

    def best(self, name: str, coded: Coded) -> Fit | None:
        """Return how the constant NAME fits the first tensor that it is made of, or the nearest one."""
        found: Fit | None = None
        for option in self.options(name, coded):
            fit = fit_of(name, coded, option, self.source)
            if found is None or _misfit(fit) < _misfit(found):
                found = fit
            if fit.ok:
                break
        return found

    def options(self, name: str, coded: Coded) -> Iterator[Option]:
        """Yield what NAME may be made of."""
        shape = coded.shape
        for expression in self.expressions(name, coded):
            array = self.source.evaluated(expression)
            if array is not None and array.size == math.prod(shape):
                yield Option(array.reshape(shape), array.shape, expression)
                turned = np.swapaxes(array, -1, -2) if array.ndim > 1 else array
                if array.ndim > 1 and squeeze(turned.shape) == squeeze(shape):
                    yield Option(turned.reshape(shape), turned.shape, expression, turned=True)

    def expressions(self, name: str, coded: Coded) -> Iterator[Any]:
        """Yield the arithmetic that may have made NAME, the likeliest first."""
        shape = coded.shape
        if "value" in (rule := rules_of(self.file.manifest).get(name) or {}):
            yield rule["value"]
        yield from (value for constant, value in self.gates if constant == name)
        yield from ({"key": it} for it in self.names(name, shape))
        yield from rows(shape, self.source)
        if whole := joined(coded.values(), self.source):
            yield whole

    @cached_property
    def gates(self) -> list[tuple[str, Any]]:
        """What constants of recurrent operations may be."""
        return [*self.file.gates(self.source)]

    def names(self, name: str, shape: tuple[int, ...]) -> list[str]:
        """Return the tensors of as many numbers as SHAPE, that first which a manifest or the name tells."""
        entry = dict(self.file.manifest.get("weights") or {}).get(name) or {}
        alike = self.source.of_size(shape)
        named = self.source.own(str(entry.get("key", "")))
        return sorted(ranked(name, alike), key=lambda it: it != named)


def _misfit(fit: Fit) -> tuple[float, ...]:
    return fit.lost, fit.beyond, fit.zeroed, fit.moved


def fit_of(name: str, coded: Coded, option: Option, source: SourceTensors) -> Fit:
    """Return how the weight NAME, CODED, fits OPTION of SOURCE."""
    exact, values = option.wanted.astype(np.float64), coded.values()
    held, best = values.astype(np.float64), coded.closest(exact)
    gap, least = np.abs(held - exact), np.abs(best.values - exact)
    wrong = ~(gap - least <= best.room)
    zeros = coded.zeros
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
        values=option.undo(values, source),
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


def together(found: Sequence[Share], source: SourceTensors) -> dict[str, Array]:
    """Return the tensors that constants have FOUND parts of; other rows are the SOURCE's."""
    values: dict[str, Array] = {}
    for it in found:
        own = values.get(it.source)
        whole = source.read("key", it.source).astype(it.values.dtype) if own is None else own
        values[it.source] = whole
        if whole.ndim:
            whole[it.start : it.start + len(it.values)] = it.values
        else:
            values[it.source] = it.values
    return values


def predicted(reference: Model, fits: Mapping[str, Fit | None], source: SourceTensors) -> Model:
    """Return REFERENCE with those of its weights that a package has compressed, as it has them."""
    known = [it for it in fits.values() if it is not None and not it.lost]
    values = together([share for it in known for share in it.values or ()], source)
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
        f"{counted(len(fits), 'weight')} {'is' if len(fits) == 1 else 'are'} the nearest to the source's that"
        f" their codes can give; moved by {worst.moved:.2g} of their size at most ({worst.source})"
    )
    return Stage(NAME, "pass", detail, figures)


def as_compressed(
    reference: Model | Golden, candidate: Model
) -> tuple[Model | Golden, Stage | None]:
    """Return REFERENCE with the weights that the file CANDIDATE has on codes, and whether they are its.

    ``None`` where it has none.

    Raises:
        UnsupportedError: REFERENCE is a golden, which has no weights to compare with.
    """
    if not (file := coded_in(candidate)):
        return reference, None
    source = reference if isinstance(reference, Model) else reference.model
    if source is None:
        raise UnsupportedError(
            f"{candidate.spec} is compressed, so each of its weights is held against the source's, which a"
            " golden does not keep; name the source itself"
        )
    read = SourceTensors(source)
    fits = CompressedWeights(file, read).fits()
    return predicted(source, fits, read), compressed_stage(fits)
