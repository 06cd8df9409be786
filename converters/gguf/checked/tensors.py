"""A GGUF file as a model's tensors, under the names and in the layout of the checkpoint that it is held against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from ...checkpoints import Checkpoint, Header
from ...checkpoints.assembled import Assembled, Source, whole
from ...common.dtypes import NUMPY
from ...values import Array
from ..file import GgufFile
from ..names import EMBEDDING, Pairing, pair
from ..plan import refuse
from ..proof import candidates, prove, wanted_of
from ..reading import Bare
from ..rows import count
from ..rules import Rule, Wanted
from ..types import FLOATS
from .codes import Grid, grid_of

SAME: Final = "same"
Rows = Callable[[slice], Array]  # rows of a tensor of the file -> numbers of the same shape


class Part(NamedTuple):
    """What a tensor of the file has of a tensor of the checkpoint.

    Attributes:
        tensor: its name in the file.
        first: the row of it that this begins with.
        rule: what was done to the checkpoint's tensor.
        wanted: what that made.
    """

    tensor: str
    first: int
    rule: Rule
    wanted: Wanted


class GgufTensors(Assembled):
    """The tensors of a GGUF file under a checkpoint's names, rows and columns put back.

    Norms to which one was added stay so. Numbers that stand in blocks are float32.

    Attributes:
        file: the file.
        parts: by name, what the file's tensors have of it.
        coded: names of those in blocks.
    """

    def __init__(self, file: GgufFile, parts: Mapping[str, list[Part]], shapes: Shapes) -> None:
        self.file, self.parts = file, parts
        sources = {name: self._source(name, shapes[name]) for name in parts}
        super().__init__(Bare(file), sources)
        self.coded = tuple(name for name, found in parts.items() if _kind(file, found) is None)

    @property
    def types(self) -> frozenset[str]:
        """The ggml types of its matrices."""
        return frozenset(it.type for it in self.file.tensors.values() if len(it.shape) > 1)

    @property
    def computed(self) -> frozenset[str]:
        """Names of those that are sums in the file, such as 1 + w."""
        return frozenset(name for name, found in self.parts.items() if found[0].rule.computes)

    def grid(self, name: str) -> Grid:
        """Return what the codes of tensor NAME, of ``coded``, could stand for, in its layout."""
        shape = self.headers[name].shape
        found = [(part, self._decoded(part)) for part in self.parts[name]]
        grids = [(part, grid_of(rows, self.file.tensors[part.tensor].type)) for part, rows in found]
        return Grid(
            *(
                _gathered(shape, [(part, getattr(it, field)) for part, it in grids])
                for field in Grid._fields
            )
        )

    def _source(self, name: str, shape: tuple[int, ...]) -> Source:
        parts = self.parts[name]
        code = _kind(self.file, parts) or "F32"
        return whole(Header(code, shape), partial(self._made, parts, code, shape))

    def _made(self, parts: list[Part], code: str, shape: tuple[int, ...]) -> Array:
        rows = [(part, self.file.rows(part.tensor, _place(part))) for part in parts]
        return _gathered(shape, rows).astype(NUMPY[code])

    def _decoded(self, part: Part) -> Array:
        """Return the bytes of PART, shape ``(rows, bytes of a row)``."""
        return self.file.packed(part.tensor, _place(part))


Shapes = Mapping[str, tuple[int, ...]]


def tensors_like(file: GgufFile, reference: Checkpoint, where: str) -> GgufTensors:
    """Return the tensors of FILE by the names of REFERENCE, the checkpoint WHERE.

    Which rule a tensor followed is found by value; where none leads there, the first that its shape
    allows is taken, and its values will differ.

    Raises:
        MismatchError: a tensor of one has no counterpart in the other, or another shape.
        UnsupportedError: the architecture is not known.
    """
    found = pair(file, reference.headers, where)
    refuse(f"{file.path} does not fit {where}", found.problems)
    rules = dict(prove(found, file, reference, strict=False).rules)
    shapeless = []
    for name, members in found.sources.items():
        if name not in rules and (allowed := candidates(file, name, members, reference)):
            rules[name] = allowed[0]
        elif name not in rules:
            own = reference.headers[members[0]]
            shapeless.append(f"{name}: {file.tensors[name]} is not {members[0]}, {own}")
    refuse(f"{file.path} does not fit {where}", shapeless)
    parts = dict(_parts(file, found, rules))
    shapes = {
        name: reference.headers[name].shape
        if name in reference.headers
        else file.tensors[name].shape
        for name in parts
    }
    return GgufTensors(file, parts, _with_fewer_rows(shapes, parts))


def _with_fewer_rows(shapes: Shapes, parts: Mapping[str, list[Part]]) -> Shapes:
    """Return SHAPES, those of tensors of which the file has the first rows alone as it has them."""
    cut = {n: it[0].wanted.shape for n, it in parts.items() if it[0].rule.name == "first rows"}
    return {**shapes, **cut}


def _parts(
    file: GgufFile, found: Pairing, rules: Mapping[str, Rule]
) -> Iterator[tuple[str, list[Part]]]:
    """Yield what FILE has of each tensor; a second copy of one goes by the file's own name of it."""
    parts: dict[str, list[Part]] = {}
    for tensor, members in found.sources.items():
        wanted = wanted_of(file, tensor, members)
        again = found.sources.get(EMBEDDING) == members and tensor != EMBEDDING
        for number, member in enumerate(members):
            part = Part(tensor, number * count(wanted.shape), rules[tensor], wanted)
            parts.setdefault(tensor if again else member, []).append(part)
    for head in found.heads:
        parts[head] = parts[found.sources[EMBEDDING][0]]
    yield from parts.items()


def _place(part: Part) -> slice:
    return slice(part.first, part.first + count(part.wanted.shape))


def _kind(file: GgufFile, parts: list[Part]) -> str | None:
    """Return the float type of PARTS, if they have one."""
    kind = file.tensors[parts[0].tensor].type
    return kind if kind in FLOATS else None


def _gathered(shape: tuple[int, ...], parts: list[tuple[Part, Array]]) -> Array:
    """Return a tensor of SHAPE with the numbers of PARTS where their rules took them from."""
    [(first, rows), *more] = parts
    kept = first.rule.name in (SAME, "first rows") or first.rule.computes
    if kept and not more:
        return rows.reshape(shape)
    found = np.zeros(math.prod(shape), rows.dtype)
    places = np.arange(found.size).reshape(shape)
    for part, numbers in parts:
        found[part.rule.act(places, part.wanted).reshape(-1)] = numbers.reshape(-1)
    return found.reshape(shape)
