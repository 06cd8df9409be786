"""safetensors files: a header checked in full, bytes read without mapping the file.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from ....errors import BadInputError, MismatchError
from ...common.dtypes import CODE, NUMPY
from ...common.system import writing
from ...documents import Kind, parse_object
from ...values import Array
from ..base import Header, is_shape
from .ranges import chunks, fill, pieces

Result = TypeVar("Result")

NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
MAX_HEADER: Final = 100_000_000  # bytes; the limit of safetensors' own reader
HEADER: Final = Kind("header", MAX_HEADER, "copy, download or save the file again")
_SIZE: Final = 8  # bytes of the little-endian length before the header
_POINTER: Final = b"version https://git-lfs"  # what a clone without Git LFS has instead


class Place(NamedTuple):
    """A tensor's header and the offset of its first byte in the file."""

    header: Header
    begin: int

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.begin + self.header.nbytes


class SafetensorsFile:
    """One safetensors file, its tensors in the order of their bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self.ignored: tuple[Path, ...] = ()
        self._places, self.metadata = read_places(path)
        self.headers: Mapping[str, Header] = {n: place.header for n, place in self._places.items()}

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        header, begin = self._places[name]
        data = np.empty(header.nbytes, np.uint8)
        fill(self.path, begin, data.data, f"tensor {name}")
        return data.view(NUMPY[header.dtype]).reshape(header.shape)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        header, begin = self._places[name]
        stop = header.nbytes if stop is None else stop
        return pieces(self.path, begin + start, begin + stop, f"tensor {name}")

    def fill(self, name: str, start: int, data: memoryview) -> None:
        """Fill DATA with the bytes of tensor NAME from START on."""
        fill(self.path, self._places[name].begin + start, data, f"tensor {name}")


def read_places(path: Path) -> tuple[dict[str, Place], Mapping[str, str]]:
    """Return the tensors of the file at PATH, in the order of their bytes, and its metadata.

    Raises:
        BadInputError: the file is not a valid safetensors file; names the file and the tensor.
        MismatchError: several of its tensors are not what its header says.
    """
    try:
        data, begin, size = _header_bytes(path)
        return _parse(parse_object(data, f"{path}: the header", HEADER), begin, size)
    except LiesError as error:
        raise MismatchError(
            f"{path} is damaged; copy, download or save it again", error.args
        ) from None
    except (OSError, ValueError) as error:
        what = (isinstance(error, OSError) and error.strerror) or error
        raise BadInputError(f"{path}: {what}; copy, download or save the file again") from error


class LiesError(ValueError):
    """More than one thing is wrong with a header; the arguments are the problems."""


def _header_bytes(path: Path) -> tuple[bytes, int, int]:
    """Return the JSON header of the file at PATH, where the tensors begin, and where they end."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        start = file.read(len(_POINTER))
        if start == _POINTER:
            raise ValueError("this is a Git LFS pointer, not the tensors (run `git lfs pull`)")
        if size < _SIZE:
            raise ValueError(f"truncated: {size} bytes are too few for a safetensors file")
        length = int.from_bytes(start[:_SIZE], "little")
        if length > MAX_HEADER:
            raise ValueError(
                f"the header claims {length} bytes, more than {MAX_HEADER} are refused"
            )
        if _SIZE + length > size:
            raise ValueError(f"truncated: the header claims {length} bytes, the file has {size}")
        file.seek(_SIZE)
        return file.read(length), _SIZE + length, size


def _parse(
    entries: dict[str, Any], begin: int, size: int
) -> tuple[dict[str, Place], Mapping[str, str]]:
    metadata = _metadata(entries.pop("__metadata__", None))
    return _places(entries, begin, size), metadata


def _metadata(value: Any) -> Mapping[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError("__metadata__ is not an object of strings")
    return value


def _places(entries: Mapping[str, Any], begin: int, size: int) -> dict[str, Place]:
    """Return ENTRIES as places, checked to fill the bytes BEGIN to SIZE without gap or overlap."""
    ranges, problems = _collected(_range, entries.items())
    ranges.sort()
    sized = [(name, entries[name], end - start) for start, end, name in ranges]
    headers, wrong = _collected(_header, sized)
    problems += wrong
    problems = problems or _layout_problems(ranges, size - begin)
    if len(problems) > 1:
        raise LiesError(*problems)
    if problems:
        raise ValueError(problems[0])
    pairs = zip(ranges, headers, strict=True)
    return {name: Place(header, begin + start) for (start, _, name), header in pairs}


def _collected(
    parse: Callable[..., Result], items: Iterable[tuple[Any, ...]]
) -> tuple[list[Result], list[str]]:
    """Return what PARSE makes of ITEMS, and what it says of those that it refuses."""
    results: list[Result] = []
    problems: list[str] = []
    for item in items:
        try:
            results.append(parse(*item))
        except ValueError as error:
            problems.append(str(error))
    return results, problems


def _layout_problems(ranges: Iterable[tuple[int, int, str]], size: int) -> list[str]:
    """Say where RANGES, sorted, do not fill SIZE bytes one after the other."""
    problems = []
    expected, previous = 0, "the header"
    for start, end, name in ranges:
        if end > size:
            problems.append(
                f"truncated: tensor {name} ends at byte {end} of the data, the file has {size}"
            )
            return problems  # so does whatever comes after it
        if start != expected:
            kind = "overlaps" if start < expected else f"leaves {start - expected} bytes after"
            problems.append(f"tensor {name} {kind} {previous}")
        expected, previous = end, f"tensor {name}"
    if expected != size:
        problems.append(f"{size - expected} bytes after {previous} belong to no tensor")
    return problems


def _range(name: str, entry: Any) -> tuple[int, int, str]:
    name.encode()  # a lone surrogate could be neither printed nor written again
    match entry:
        case {"dtype": str(), "shape": list(shape), "data_offsets": [start, end]}:
            if all(type(n) is int and n >= 0 for n in (*shape, start, end)) and start <= end:
                return start, end, name
    raise ValueError(f"tensor {name}: needs a dtype, a shape and two data_offsets, found {entry}")


def _header(name: str, entry: Mapping[str, Any], nbytes: int) -> Header:
    header = Header(entry["dtype"], tuple(entry["shape"]))
    if header.dtype not in NUMPY:
        known = ", ".join(sorted(NUMPY))
        raise ValueError(f"tensor {name}: dtype {header.dtype} is unknown; known are {known}")
    if header.nbytes != nbytes:
        raise ValueError(f"tensor {name}: {header} takes {header.nbytes} bytes, found {nbytes}")
    if not is_shape(header.shape):
        raise ValueError(f"tensor {name}: shape {list(header.shape)} is too large")
    return header


def save_tensors(
    path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] = NO_METADATA
) -> None:
    """Write ARRAYS, of any shape and dtype of ``dtypes.CODE``, to a safetensors file at PATH.

    The largest dtypes come first, so that every tensor is aligned. For what is held in memory
    anyway; a checkpoint is written by ``Writer``. Safetensors' own writer does not say which file a
    full disk has refused.

    Raises:
        WeighbridgeError: the disk is full or refuses.
    """
    ordered = sorted(arrays.items(), key=lambda item: (-item[1].itemsize, item[0]))
    layout = {name: Header(CODE[array.dtype], array.shape) for name, array in ordered}
    with writing(path), path.open("wb") as file:
        file.write(encode_header(layout, metadata))
        for _, array in ordered:
            file.writelines(chunks(array))


def encode_header(layout: Mapping[str, Header], metadata: Mapping[str, str]) -> bytes:
    """Return the first bytes of a safetensors file whose tensors lie in the order of LAYOUT.

    Padded with spaces to a multiple of eight bytes, so that the first tensor is aligned.

    >>> encode_header({"w": Header("F32", (2,))}, {})[8:].decode()
    '{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  '
    """
    entries: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    begin = 0
    for name, header in layout.items():
        end = begin + header.nbytes
        entries[name] = {
            "dtype": header.dtype,
            "shape": list(header.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_SIZE, "little") + text
