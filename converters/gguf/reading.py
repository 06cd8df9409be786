"""A GGUF file seen as the checkpoint that it was made from: its blocks as MLX's parts, rows put back.

What llama.cpp's converter did to the rows is known for a few architectures, or found by the values of
a checkpoint; it is undone row by row, so that no code is touched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import MismatchError, UnsupportedError, WeighbridgeError
from ..checkpoints import Checkpoint, Header
from ..checkpoints.assembled import Assembled, Source, computed
from ..common.dtypes import NUMPY
from ..quantization import Scheme, layout
from ..quantization.formats.base import Read, section_of
from ..quantization.mlx import each_block, part_name
from ..values import Array
from .blocks import decoded, scheme_of
from .blocks.decoding import scale_dtype
from .file import GgufFile
from .names import Pairing, pair
from .plan import refuse
from .proof import candidates, prove, wanted_of
from .rows import count
from .rules import RULES, Rule
from .types import FLOATS, is_known

# By llama.cpp's name of an architecture: tensors whose rows its converter interleaves by heads. Others
# are known by the values of a checkpoint only.
INTERLEAVED: Final[Mapping[str, str]] = {
    "llama": r"attn_[qk]\.(weight|bias)$",
    "granite": r"attn_[qk]\.(weight|bias)$",
    **dict.fromkeys(
        ("qwen2", "qwen2moe", "qwen3", "qwen3moe", "phi3", "olmoe", "starcoder2"), "$^"
    ),
}
NONE: Final[Mapping[str, Header]] = MappingProxyType({})
UNDONE: Final = ("same", "heads interleaved")  # what can be undone without other tensors
BY_NAME: Final = {rule.name: rule for rule in RULES}


class Placed(NamedTuple):
    """Where a tensor of the checkpoint lies in the file.

    Attributes:
        tensor: its name in the file.
        first: the row of it that the rows begin behind.
        order: which row from there on each row of the checkpoint's tensor is.
        header: of the checkpoint's tensor, were it dense.
    """

    tensor: str
    first: int
    order: Array
    header: Header


def read(
    file: GgufFile, headers: Mapping[str, Header], values: Checkpoint | None, where: str
) -> Read:
    """See FILE as the checkpoint of HEADERS, under the names of PyTorch's modules.

    Args:
        file: of a model.
        headers: names and shapes of the checkpoint that it was made from.
        values: that checkpoint or one close to it, where there is one: tells what happened to rows.
        where: what HEADERS were taken from.

    Raises:
        MismatchError: tensors of one have no counterpart in the other.
        UnsupportedError: it is not known what llama.cpp did to the rows, or it cannot be undone.
    """
    found = pair(file, headers, where)
    refuse(f"{file.path} does not fit {where}", found.problems)
    if unread := sorted({it.type for it in file.tensors.values() if not is_known(it.type)}):
        raise UnsupportedError(f"{file.path}: tensors of type {', '.join(unread)} are not read")
    placed = dict(_placed(file, found, headers, _rules(file, found, headers, values)))
    sources: dict[str, Source] = {}
    schemes: dict[str, Scheme] = {}
    for name, place in placed.items():
        scheme = scheme_of(file.tensors[place.tensor].type)
        if scheme and len(place.header.shape) > 1:
            schemes[name] = scheme
            sources |= _parts(file, name, place, scheme)
        else:
            sources[name] = _dense(file, place)
    return Read(
        Assembled(Bare(file), sources), section_of(schemes), tuple(_notes(file, placed, schemes))
    )


class Bare:
    """What a GGUF file is besides its tensors."""

    def __init__(self, file: GgufFile, headers: Mapping[str, Header] = NONE) -> None:
        self.path: Path = file.path
        self.files: tuple[Path, ...] = (file.path,)
        self.ignored: tuple[Path, ...] = ()
        self.headers = headers
        self.metadata: Mapping[str, str] = {}

    def read(self, name: str) -> Array:
        """Raise an error: there is no tensor."""
        raise KeyError(name)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Raise an error: there is no tensor."""
        raise KeyError(name, start, stop)


def _rules(
    file: GgufFile, found: Pairing, headers: Mapping[str, Header], values: Checkpoint | None
) -> Mapping[str, Rule]:
    """Return what was done to each tensor of FILE."""
    if values is not None:
        proof = prove(found, file, values, strict=False)
        refuse(f"{file.path} and {values.path} are too far apart", proof.problems)
        return proof.rules
    pattern = INTERLEAVED.get(file.architecture)
    if pattern is None:
        raise UnsupportedError(
            f"{file.path}: what llama.cpp does to the rows of {file.architecture} is not known here;"
            " take a directory that has the model's weights too, in any precision"
        )
    rules = {
        name: BY_NAME["heads interleaved" if re.search(pattern, name) else "same"]
        for name in found.sources
    }
    shapes = Bare(file, headers)
    wrong = [
        f"{name}: {file.tensors[name]} is not {members[0]}, {headers[members[0]]}"
        for name, members in found.sources.items()
        if rules[name] not in candidates(file, name, members, shapes)
    ]
    refuse(f"{file.path} does not fit the configuration", wrong)
    return rules


def _placed(
    file: GgufFile, found: Pairing, headers: Mapping[str, Header], rules: Mapping[str, Rule]
) -> Iterator[tuple[str, Placed]]:
    """Yield where each tensor of the checkpoint lies."""
    problems: list[str] = []
    for tensor, members in found.sources.items():
        rule, wanted = rules[tensor], wanted_of(file, tensor, members)
        if rule.name not in UNDONE:
            problems.append(f"{tensor}: {rule.name} of {members[0]} is not undone here")
            continue
        for number, member in enumerate(members):
            header = headers[member]
            flat = header.shape if len(header.shape) > 1 else (*header.shape, 1)
            order = np.argsort(rule.rows_of(flat, wanted), kind="stable")
            yield member, Placed(tensor, number * count(wanted.shape), order, header)
    if problems:
        raise MismatchError(f"{file.path} cannot be brought back", problems)


def _parts(file: GgufFile, name: str, place: Placed, scheme: Scheme) -> dict[str, Source]:
    """Return the parts of the quantized weight NAME."""
    made = layout(name, place.header.shape, scheme, scale_dtype(file.tensors[place.tensor].type))
    return {
        part_name(name, part): computed(made[part_name(name, part)], _rows_of(file, place, part))
        for part in ("weight", "scales", "biases")
        if part_name(name, part) in made
    }


def _rows_of(file: GgufFile, place: Placed, part: str) -> Any:
    """Return what yields rows of PART of a weight."""
    columns, kind = place.header.shape[-1], file.tensors[place.tensor].type

    def rows(wanted: slice) -> Iterator[Array]:
        for some in each_block(wanted, columns):
            order = place.order[some]
            low, high = int(order.min()), int(order.max()) + 1
            data = file.packed(place.tensor, slice(place.first + low, place.first + high))
            try:
                yield np.take(decoded(data, kind).parts[part], order - low, axis=0)
            except WeighbridgeError as error:
                raise UnsupportedError(f"{file.path}: {place.tensor}: {error}") from error

    return rows


def _dense(file: GgufFile, place: Placed) -> Source:
    """Return a tensor that is not quantized, or in blocks that MLX has no scheme for."""
    kind = file.tensors[place.tensor].type
    code = kind if kind in FLOATS else "F32"
    shape = place.header.shape
    if len(shape) < 2:  # its columns were rows to whoever moved them
        order = place.order

        def vector(_: slice) -> Iterator[Array]:
            yield _as_stored(file.rows(place.tensor, slice(0, 1)), kind)[:, order]

        return computed(Header(code, shape), vector)

    def rows(wanted: slice) -> Iterator[Array]:
        for some in each_block(wanted, shape[-1]):
            order = place.order[some]
            low, high = int(order.min()), int(order.max()) + 1
            found = file.rows(place.tensor, slice(place.first + low, place.first + high))
            yield _as_stored(np.take(found, order - low, axis=0), kind)

    return computed(Header(code, shape), rows)


def _as_stored(rows: Array, kind: str) -> Array:
    """Return float32 ROWS in the dtype of the float type KIND, which they come from; others stay."""
    return rows.astype(NUMPY[kind]) if kind in FLOATS else rows


def _notes(
    file: GgufFile, placed: Mapping[str, Placed], schemes: Mapping[str, Scheme]
) -> Iterator[str]:
    """Yield what a user should know."""
    wide = [
        f"{name} ({kind})"
        for name, place in placed.items()
        if name not in schemes and (kind := file.tensors[place.tensor].type) not in FLOATS
    ]
    if wide:
        yield f"{len(wide)} weights are dense, in float32: MLX has no such groups; {wide[0]} first"
