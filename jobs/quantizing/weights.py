"""What was written, held against the source: codes by what they stand for, all other tensors byte for byte."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from threading import Lock
from typing import Any, Final

import numpy as np
import xxhash

from ...converters.checkpoints import Checkpoint
from ...converters.checkpoints.workers import Workers
from ...converters.common.dtypes import NUMPY
from ...converters.quantization import Dequantized, Scheme, dequantize
from ...converters.quantization.affine import BLOCK
from ...converters.quantization.codebooks import CODES, SCALES
from ...converters.quantization.packing import unpack
from ...converters.values import Array
from ...parity.check.verdict import Stage
from .figures import Moved, moved_to
from .methods import by_mlx
from .plan import Plan
from .write import blocks

SHOWN: Final = 3  # problems in one line
EPSILON: Final = np.float32(4 * np.finfo(np.float32).eps)  # of what a code is computed from


class Comparison:
    """The tensors that PLAN makes, and those that were WRITTEN; codes of SUITED were chosen for inputs.

    Attributes:
        problems: what differs, by name.
        errors: how far each quantized weight was moved.
    """

    def __init__(
        self, plan: Plan, written: Dequantized, suited: Collection[str] = frozenset()
    ) -> None:
        self.plan, self.written, self.suited = plan, written, suited
        self.problems: dict[str, str] = {}
        self.errors: dict[str, Moved] = {}
        self._noting = Lock()

    def run(self) -> Stage:
        """Compare all of them."""
        mine, theirs = self.plan.layout, self.written.raw.headers
        missing = dict.fromkeys(mine.keys() - theirs.keys(), "is missing")
        self.problems |= missing | dict.fromkeys(theirs.keys() - mine.keys(), "is unexpected")
        self.problems |= {
            name: f"is {scheme} by config.json, not {self.plan.schemes.get(name)}"
            for name, scheme in self.written.schemes.items()
            if scheme != self.plan.schemes.get(name)
        }
        headers = self.plan.tensors.headers
        names = sorted(headers, key=lambda name: -headers[name].nbytes)
        if not self.problems:
            Workers().each(names, self.compare)
        figures = {"problems": dict(sorted(self.problems.items()))}
        if self.problems:
            some = [f"{name} {problem}" for name, problem in sorted(self.problems.items())]
            detail = f"{len(some)} of {len(mine)} tensors differ: {'; '.join(some[:SHOWN])}"
            return Stage("fingerprints", "fail", detail, figures)
        return Stage("fingerprints", "pass", self.summary(), figures)

    def summary(self) -> str:
        """Say what holds."""
        count = len(self.plan.schemes) - len(self.suited)
        codes = "have the nearest codes that their scales allow"
        if self.plan.request.method == "mlx":
            codes = "are what mx.quantize makes of the source, bit for bit"
        rest = len(self.plan.tensors.headers) - len(self.plan.schemes)
        whole = f"{count} weights {codes}; {rest} other tensors are the source's bytes"
        if self.suited:
            whole += (
                f"; {len(self.suited)} weights have codes chosen for their inputs, which need not be the"
                " nearest: each is nearer to the source's than to nothing, no more was asked of them"
            )
        return whole

    def compare(self, name: str) -> None:
        """Compare the tensors that store NAME."""
        if name in self.plan.schemes:
            problem = self.coded(name)
        else:
            hashes = {hash_of(side, name) for side in (self.plan.tensors, self.written.raw)}
            problem = "is not the source's" if len(hashes) > 1 else ""
        if problem:
            with self._noting:
                self.problems[name] = problem

    def coded(self, name: str) -> str:
        """Return what is wrong with the codes of NAME; measure how far they are from the source."""
        scheme, found, wrong = self.plan.schemes[name], Moved(), 0
        for values, parts in self.pieces(name):
            exact = dequantize(parts, scheme)
            found += moved_to(values, exact)
            if name in self.suited:
                continue
            if self.plan.request.method == "mlx":
                expected = by_mlx(values, scheme, self.plan.dtype(name))
                wrong += sum(parts[it].tobytes() != expected[it].tobytes() for it in expected)
            else:
                wrong += int(np.count_nonzero(~nearest(values, exact, parts, scheme)))
        self.errors[name] = found
        if name in self.suited:
            return "" if found.relative < 1 else "is as far from the source's as nothing would be"
        if wrong and self.plan.request.method == "mlx":
            return "is not what mx.quantize makes of the source"
        return (
            f"has {wrong:,} codes that are not the nearest to the source's numbers" if wrong else ""
        )

    def pieces(self, name: str) -> Iterator[tuple[Array, dict[str, Array]]]:
        """Yield the source's numbers of NAME, ``(groups, group_size)``, and the parts that store them."""
        size = self.plan.schemes[name].group_size
        streams = [column(self.plan.tensors, name, size, BLOCK // size)]
        names = self.written.part_names(name)
        for full in names.values():
            raw = self.written.raw
            groups = self.plan.tensors.headers[name]
            count = int(np.prod(groups.shape)) // size
            per_group = int(np.prod(raw.headers[full].shape)) // count
            streams.append(column(raw, full, per_group, BLOCK // size))
        for values, *parts in zip_longest(*streams):
            yield values, dict(zip(names, parts, strict=True))


def column(tensors: Checkpoint, name: str, width: int, rows: int) -> Iterator[Array]:
    """Yield the numbers of the tensor NAME as rows of WIDTH, ROWS at a time."""
    dtype = NUMPY[tensors.headers[name].dtype]
    for block in blocks(tensors.stream(name), rows * width * dtype.itemsize):
        yield np.frombuffer(block, dtype).reshape(-1, width)


def hash_of(tensors: Checkpoint, name: str) -> tuple[Any, str]:
    """Return header and hash of the tensor NAME."""
    digest = xxhash.xxh3_128()
    for piece in tensors.stream(name):
        digest.update(piece)
    return tensors.headers[name], digest.hexdigest()


def nearest(values: Array, exact: Array, parts: Mapping[str, Array], scheme: Scheme) -> Array:
    """Say of which VALUES, ``(groups, group_size)``, no other code is nearer than the one worth EXACT."""
    with np.errstate(all="ignore"):
        wide = values.astype(np.float32)
        error = exact - wide
        if not scheme.affine:
            return np.abs(error) <= least_error(wide, parts, scheme)
        scales, biases = (parts[it].astype(np.float32) for it in ("scales", "biases"))
        allowed = np.abs(scales) / 2 + EPSILON * (np.abs(wide) + np.abs(biases))
        beyond = np.abs(error) > allowed
        if beyond.any():  # cut off: the code at an end, and the number beyond it
            codes = unpack(parts["weight"], scheme.bits)
            after = error * np.sign(scales)  # how far the code lies too high on its line
            top = (1 << scheme.bits) - 1
            beyond &= ~(((codes == 0) & (after > 0)) | ((codes == top) & (after < 0)))
            beyond &= scales != 0
        found: Array = ~beyond
        return found


def least_error(wide: Array, parts: Mapping[str, Array], scheme: Scheme) -> Array:
    """Return how far the nearest code of a floating-point mode is from each of WIDE, and a rounding."""
    scales = SCALES[scheme.mode][parts["scales"]]
    table = np.unique(CODES[scheme.mode][np.isfinite(CODES[scheme.mode])])
    places = np.searchsorted(table, wide / scales).clip(1, len(table) - 1)
    sides = (np.abs(table[places - back] * scales - wide) for back in (0, 1))
    found: Array = np.minimum(*sides) + EPSILON * np.abs(wide)
    return found
