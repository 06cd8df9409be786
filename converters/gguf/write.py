"""Write a GGUF file: header, metadata, where the tensors lie, then the tensors, one at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Final

from ...errors import MismatchError
from ..checkpoints import Checkpoint
from ..common.system import writing
from ..values import Array
from .plan import Made, Plan
from .proof import blocks
from .types import code, encode, overflows

MAGIC: Final = b"GGUF"
Advance = Callable[[int], None]


def write(path: Path, plan: Plan, source: Checkpoint, advance: Advance = lambda _: None) -> None:
    """Write the file of PLAN at PATH; memory holds one tensor of SOURCE and a block of rows.

    Raises:
        MismatchError: numbers are too large for their type, or not finite.
        WeighbridgeError: the disk is full.
    """
    problems: list[str] = []
    with writing(path):
        file = path.open("wb")
    with file:
        put(file, header(plan), path)
        for name, made in plan.made.items():
            put(file, padding(file.tell(), plan.like.alignment), path)
            for piece in contents(name, made, plan, source, problems):
                put(file, piece, path)
                advance(len(piece))
        put(file, padding(file.tell(), plan.like.alignment), path)
    if problems:
        raise MismatchError("these do not fit their type in the file", problems)


def put(file: IO[bytes], data: bytes | memoryview, path: Path) -> None:
    """Write DATA to FILE at PATH."""
    with writing(path):
        file.write(data)


def padding(position: int, alignment: int) -> bytes:
    """Return the zeros from POSITION to the next multiple of ALIGNMENT."""
    return bytes(-position % alignment)


def header(plan: Plan) -> bytes:
    """Return everything before the tensors."""
    like = plan.like
    start = MAGIC + struct.pack("<IQQ", like.version, len(plan.made), len(plan.fields))
    return start + b"".join(plan.fields.values()) + b"".join(infos(plan.made, like.alignment))


def infos(made: Mapping[str, Made], alignment: int) -> Iterator[bytes]:
    """Yield name, sizes, type and place of each tensor."""
    offset = 0
    for name, each in made.items():
        shape, kind = each.stored.shape, each.stored.type
        encoded = name.encode()
        yield struct.pack("<Q", len(encoded)) + encoded
        yield struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        yield struct.pack("<IQ", code(kind), offset)
        offset += each.stored.nbytes + -each.stored.nbytes % alignment


def contents(
    name: str, made: Made, plan: Plan, source: Checkpoint, problems: list[str]
) -> Iterator[memoryview]:
    """Yield the bytes of tensor NAME; what its type cannot hold is added to PROBLEMS."""
    if made.rule is None:
        yield plan.like.raw(name).data
        return
    kind = made.stored.type
    for member, rows in made_rows(made, source):
        if overflows(rows, kind):
            problem = f"{name}: {member} has numbers that are no {kind}; choose --type BF16 or F32"
            if problem not in problems:
                problems.append(problem)
            continue
        yield encode(rows, kind).reshape(-1).view("u1").data


def made_rows(made: Made, source: Checkpoint) -> Iterator[tuple[str, Array]]:
    """Yield the float32 rows of MADE in their order, with the tensor of SOURCE they come from."""
    for member in made.members:
        if made.rule is not None:
            array = made.rule.act(source.read(member), made.wanted)
            for _, rows in blocks(array):
                yield member, rows
