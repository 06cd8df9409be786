"""What a program claims of sizes, held against its files and against reason before it is loaded."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from ....errors import BadInputError
from . import messages

# Layout of weight.bin (MIL blob storage, version 2): every blob has metadata of 64 bytes:
# sentinel, dtype, size and offset of the data.
METADATA: Final = struct.Struct("<IIQQ")
SENTINEL: Final = 0xDEADBEEF
RECORD: Final = 64  # bytes of the metadata, what is reserved included
MOST_NUMBERS: Final = 1 << 31  # in a tensor; coremltools computes what follows from constants
# Operations whose results have as many numbers as the product of one of their inputs.
GROWING: Final = {
    "fill": "shape",
    "tile": "reps",
    "range_1d": "end",
    "one_hot": "one_hot_vector_size",
}
MOST_GROWN: Final = 1 << 27
COPY: Final = "copy the package again"
PICTURES: Final = frozenset({"imageType"})
STATE: Final = "stateType"
ARRAYS: Final = frozenset({"multiArrayType", STATE})


class Blob(NamedTuple):
    """A weight in a file: offset of its metadata, and the bytes of its type and sizes."""

    offset: int
    nbytes: int


def check_functions(path: Path, spec: Any) -> None:
    """Refuse the package at PATH, of SPEC, whose functions are not there, or not as it describes them.

    Raises:
        BadInputError: names the first difference.
    """
    if not spec.mlProgram.functions:
        raise BadInputError(f"{path}: holds no function; {COPY}")
    own = {it.name: it for it in spec.description.functions}
    for name, function in sorted(spec.mlProgram.functions.items()):
        if function.opset not in function.block_specializations:
            raise BadInputError(f"{path}: {name} has no program for {function.opset!r}; {COPY}")
        block = function.block_specializations[function.opset]
        flaw = next(_misdescribed(function, block, own.get(name, spec.description)), None)
        if flaw:
            raise BadInputError(f"{path}: is damaged: {name} {flaw}; {COPY}")


def _misdescribed(function: Any, block: Any, described: Any) -> Iterator[str]:
    """Yield how FUNCTION, which runs BLOCK, is not what it is DESCRIBED as: Core ML loads it by both."""
    taken = {it.name: it.type for it in function.inputs}
    shown = {it.name: it.type for it in (*described.input, *described.state)}
    wrong = sorted(taken.keys() ^ shown.keys())
    yield from (f"takes {it}, which is not described" for it in wrong if it in taken)
    yield from (f"does not take {it}, which is described" for it in wrong if it in shown)
    yield from (
        f"takes {it} in another shape than described"
        for it in shown
        if _apart(taken[it], shown[it])
    )
    given = {*block.outputs}
    yield from (
        f"does not give {it.name}, which is described"
        for it in described.output
        if it.name not in given
    )
    if not given:
        yield "gives nothing"


def _apart(taken: Any, shown: Any) -> bool:
    """Say whether an input that is TAKEN by a program cannot be what is SHOWN of it."""
    kind = shown.WhichOneof("Type")
    if kind in PICTURES:
        return False
    array = shown.stateType.arrayType if kind == STATE else shown.multiArrayType
    dimensions = taken.stateType.wrappedType if kind == STATE else taken
    sizes = [it.constant.size for it in dimensions.tensorType.dimensions]
    stated = [*array.shape]
    if kind not in ARRAYS or len(sizes) != len(stated):
        return True
    return any(size not in (0, other) for size, other in zip(sizes, stated, strict=True))


def check_sizes(path: Path, operations: Iterable[Any]) -> None:
    """Refuse the package at PATH if its OPERATIONS declare, or make, tensors beyond reason.

    Raises:
        BadInputError: they do; names one.
    """
    literals: dict[str, Any] = {}
    for operation in operations:
        for output in operation.outputs:
            if _count(output.type) > MOST_NUMBERS:
                raise BadInputError(f"{path}: {output.name} has a size that no model has; {COPY}")
            if operation.type == "const":
                literals[output.name] = operation.attributes["val"]
        if operation.type in GROWING and _grown(operation, literals) > MOST_GROWN:
            raise BadInputError(
                f"{path}: a {operation.type} makes more than any model needs; {COPY}"
            )


def _count(kind: Any) -> int:
    """Return how many numbers a value of the type KIND has; sizes that vary count as one."""
    return math.prod(max(size.constant.size, 1) for size in kind.tensorType.dimensions)


def _grown(operation: Any, literals: dict[str, Any]) -> int:
    """Return the product of the whole numbers that say how large the result of OPERATION is."""
    bindings = operation.inputs[GROWING[operation.type]].arguments
    given = [each.value if each.HasField("value") else literals.get(each.name) for each in bindings]
    return math.prod(
        max(abs(n), 1) for value in given if value is not None for n in _integers(value)
    )


def _integers(value: Any) -> Iterator[int]:
    tensor = value.immediateValue.tensor
    yield from (*tensor.ints.values, *tensor.longInts.values)
    yield from (int(number) for number in tensor.floats.values if math.isfinite(number))


def check_blobs(path: Path, weights: Path, values: Iterable[Any]) -> None:
    """Refuse the package at PATH if the files in WEIGHTS do not hold the VALUES that lie in them.

    Raises:
        BadInputError: a file is missing or cut short, or weights overlap or have other sizes.
    """
    blobs: dict[str, set[Blob]] = {}
    for value in values:
        if value.WhichOneof("value") == "blobFileValue":
            name = value.blobFileValue.fileName.split("/")[-1]
            blob = Blob(value.blobFileValue.offset, _nbytes(value.type))
            blobs.setdefault(name, set()).add(blob)
    for name, found in sorted(blobs.items()):
        if not (weights / name).is_file():
            raise BadInputError(f"{path}: weights/{name} is missing; {COPY}")
        _check_file(weights / name, sorted(found))


def _nbytes(kind: Any) -> int:
    """Return the bytes of a value of the type KIND, small numbers packed."""
    name = messages.MIL_pb2.DataType.Name(kind.tensorType.dataType)
    bits = re.search(r"(?:INT|FLOAT)(\d+)", name)
    return -(-_count(kind) * (int(bits[1]) if bits else 8) // 8)


def _check_file(file: Path, blobs: list[Blob]) -> None:
    """Refuse a FILE without whole BLOBS, each in bytes of its own."""
    total = file.stat().st_size
    with file.open("rb") as stream:
        ranges = {_range(stream, blob, total): blob for blob in blobs}
    damage = [blob.offset for range_, blob in ranges.items() if range_ is None]
    if damage:
        raise BadInputError(
            f"{file}: damaged or cut short ({total} bytes, no whole blob at {damage[0]}); {COPY}"
        )
    whole = sorted(filter(None, ranges))
    for (_, end), (begin, _) in pairwise(whole):
        if begin < end:
            raise BadInputError(f"{file}: damaged, two weights overlap at byte {begin}; {COPY}")
    with file.open("rb") as stream:
        last = _last(stream, whole[-1][1], total)
    if last < total:
        raise BadInputError(
            f"{file}: damaged, {total - last} bytes after the last weight belong to none; {COPY}"
        )


def _last(stream: IO[bytes], end: int, total: int) -> int:
    """Return where the last weight ends, from the END of one on: others, unused, may follow it."""
    while (offset := -(-end // RECORD) * RECORD) + RECORD <= total:
        stream.seek(offset)
        sentinel, _, size, start = METADATA.unpack(stream.read(METADATA.size))
        if sentinel != SENTINEL or start < offset + RECORD or start + size > total:
            return end
        end = start + size
    return total if offset >= total else end


def _range(stream: IO[bytes], blob: Blob, total: int) -> tuple[int, int] | None:
    """Return where the data of BLOB begins and ends; ``None`` if it is not there whole."""
    if blob.offset + RECORD > total:
        return None
    stream.seek(blob.offset)
    sentinel, _, size, start = METADATA.unpack(stream.read(METADATA.size))
    whole = sentinel == SENTINEL and size == blob.nbytes and start + size <= total
    return (start, start + size) if whole and start >= blob.offset + RECORD else None
