"""Tensors that an exporter folded into constants, by its record of how each constant was made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import xxhash

from ..captures.mlprogram.arithmetic import (
    evaluate,
    expressions_of,
    only_moves,
    rounds_to,
    tensors,
)
from ..checkpoints import Checkpoint, Header
from ..values import Array
from .undoing import Share, put_together, shares

PROVEN: Final = "proven"
CHANGED: Final = "changed since the export"
COMPUTED: Final = "computed back"
NORMED: Final = "by their product"  # a tensor and its norms, of which the file has what they make
PLACED: Final = "by the graph"  # no hash is known: other weights of the same model went there


@dataclass
class Unfolded:
    """What was folded, by the tensors' names.

    Attributes:
        arrays: the tensors.
        ways: how each was found; see ``weights.Recovered``.
        sums: pairs of tensors of which the file has the sum alone: the first is that, the second zeros.
        norms: pairs of a tensor and its norms of which the file has what both make: the first is that,
            the second its norms.
        problems: what is not as the record says.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)
    sums: list[tuple[str, str]] = field(default_factory=list)
    norms: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Folded(NamedTuple):
    """What a file says of the tensors folded into it.

    Attributes:
        constants: of the file.
        manifest: what the export wrote into it.
        wanted: tensors by name.
        have: those that are known already.
        like: weights that may be those exported. Tensors of which other numbers were made are taken from
            here where their bytes are the source's: a sum or a power need not tell them.
    """

    constants: Checkpoint
    manifest: Mapping[str, Any]
    wanted: Mapping[str, Header]
    have: Mapping[str, Array] = {}
    like: Checkpoint | None = None

    @property
    def origins(self) -> Mapping[str, Mapping[str, Any]]:
        """What the export says of the tensors: dtype and hash of each."""
        return dict(self.manifest.get("origins") or {})

    def expressions(self) -> Iterator[tuple[str, Any]]:
        """Yield each constant that is made of tensors of which some are not known, with how."""
        for name, rule in dict(self.manifest.get("made") or {}).items():
            for expression in expressions_of(dict(rule or {})):
                keys = {*tensors(expression)}
                known = name in self.constants.headers and keys <= self.wanted.keys()
                if known and keys - self.have.keys():
                    yield name, unknown_first(expression, self.have)

    def sums(self, expression: Any) -> list[tuple[str, str]]:
        """Return the pairs of unknown tensors that EXPRESSION adds up."""
        return [pair for pair in sums(expression) if not self.have.keys() & {*pair}]

    def pieces(self, expression: Any, made: Array) -> list[Share]:
        """Return what MADE has of the tensors in EXPRESSION, of a sum all in the first; none where unknown.

        Raises:
            ValueError: MADE has another size.
        """

        def read(kind: str, name: str) -> Array:
            if kind != "key":
                raise KeyError(name)
            found = self.have.get(name)
            return np.zeros(self.wanted[name].shape, made.dtype) if found is None else found

        try:
            found = shares(expression, made, read)
        except (IndexError, KeyError, TypeError):  # buffers, and what nobody's arithmetic is
            return []
        for it in found or ():
            require_fit(it, self.wanted[it.source].shape)
        others = [Share(name, read("key", name)) for _, name in self.sums(expression)]
        return [*found, *others] if found else []

    def proven(self, expression: Any, made: Array) -> list[Share]:
        """Return what ``like`` has of the tensors in EXPRESSION, if these are the source's that made MADE."""
        names, file = [*tensors(expression)], self.like
        if (
            file is None
            or only_moves(expression)
            or not all(name in file.headers for name in names)
        ):
            return []
        own = {name: file.read(name) for name in names}
        ours = all(way_of(it, self.origins.get(name) or {}) == PROVEN for name, it in own.items())
        same = ours and rounds_to(evaluate(expression, lambda _, name: own[name]), made)
        return [Share(*it) for it in own.items()] if same else []

    def misfit(self, name: str, expression: Any, made: Array) -> str:
        """Say that MADE, constant NAME, is not of the size that the model's tensors in EXPRESSION make."""
        own = [it for it in tensors(expression) if it in self.wanted]
        parts = ", ".join(f"{it}{list(self.wanted[it].shape)}" for it in own)
        return (
            f"the file holds {name}{list(made.shape)}, made of the exported model's {', '.join(own)}; the model"
            f" that --like names has {parts}: name the one that was exported"
        )


def unfolded(folded: Folded) -> Unfolded:
    """Return the tensors that were FOLDED into constants."""
    found, moved = Unfolded(), dict[str, bool]()
    pieces: list[Share] = []
    for name, expression in folded.expressions():
        made = folded.constants.read(name)
        taken = folded.proven(expression, made)
        if not taken:
            try:
                taken = folded.pieces(expression, made)
            except ValueError:
                found.problems.append(folded.misfit(name, expression, made))
            found.sums += folded.sums(expression) if taken else []
            found.norms += norms(expression) if taken else []
        pieces += taken
        moved |= {it.source: only_moves(expression) for it in taken}
    found.arrays = put_together(pieces, {name: it.shape for name, it in folded.wanted.items()})
    normed = {name for pair in found.norms for name in pair}
    for name, array in found.arrays.items():
        way = way_of(array, folded.origins.get(name) or {})
        otherwise = NORMED if name in normed else COMPUTED
        found.ways[name] = way if way == PROVEN or moved[name] else otherwise
    return found


def require_fit(share: Share, shape: tuple[int, ...]) -> None:
    """Refuse a SHARE that is neither all of a tensor of SHAPE nor some of its rows.

    Raises:
        ValueError: it is not.
    """
    own = share.values.shape
    rows = own[1:] == shape[1:] and share.start + own[0] <= shape[0] if own and shape else False
    if share.values.size != prod(shape) and not rows:
        raise ValueError(own)


def sums(expression: Any) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tensors that EXPRESSION adds up.

    >>> list(sums(["order", ["add", {"key": "b"}, {"key": "c"}], 1, 0]))
    [('b', 'c')]
    """
    match expression:
        case ["add", {"key": one}, {"key": other}]:
            yield one, other
        case [_, *parts]:
            for part in parts:
                yield from sums(part)


def norms(expression: Any) -> list[tuple[str, str]]:
    """Return the tensor that EXPRESSION gives other norms and these norms, if that is what it does.

    >>> norms(["_weight_norm", {"key": "v"}, {"key": "g"}, 0.0]), norms({"key": "v"})
    ([('v', 'g')], [])
    """
    match expression:
        case ["_weight_norm", {"key": one}, {"key": other}, _]:
            return [(one, other)]
    return []


def unknown_first(expression: Any, have: Collection[str]) -> Any:
    """Return EXPRESSION, of a sum of a tensor that we HAVE and another the other first.

    >>> unknown_first(["order", ["add", {"key": "b"}, {"key": "c"}], 1, 0], {"b"})
    ['order', ['add', {'key': 'c'}, {'key': 'b'}], 1, 0]
    """
    match expression:
        case ["add", {"key": one}, {"key": other}] if one in have and other not in have:
            return ["add", {"key": other}, {"key": one}]
        case [name, *parts]:
            return [name, *(unknown_first(part, have) for part in parts)]
    return expression


def way_of(array: Array, entry: Mapping[str, Any]) -> str:
    """Say whether ARRAY has the bytes that ENTRY records of the source."""
    if "xxh3" not in entry:
        return PLACED
    digest = xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).tobytes())
    if f"xxh3:{digest}" == entry.get("xxh3"):
        return PROVEN
    return "rounded" if str(array.dtype) != entry.get("dtype") else CHANGED
