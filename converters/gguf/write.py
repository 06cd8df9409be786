"""Write a GGUF file: header, metadata, where the tensors lie, then the tensors, one at a time.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import Final

from ...errors import MismatchError
from ..checkpoints import Checkpoint
from ..checkpoints.workers import Workers
from ..common.system import reserve, write_all, writing
from ..quantization import Blocks
from ..quantization.workspace import Room
from .blocks import encoded
from .file import GgufFile
from .plan import Made, Plan
from .rows import dense, made_rows
from .types import code, encode, overflows

MAGIC: Final = b"GGUF"
Advance = Callable[[int], None]


def write(path: Path, plan: Plan, source: Checkpoint, advance: Advance = lambda _: None) -> None:
    """Write the file of PLAN at PATH; memory holds a block of rows, and columns that become rows whole.

    Raises:
        MismatchError: numbers are too large for their type, or not finite.
        WeighbridgeError: the disk is full.
    """
    problems: list[str] = []
    begin = header(plan.like, plan.made, plan.fields)
    places, size = offsets(plan.made, plan.like.alignment, len(begin))
    counting = Lock()
    with writing(path), path.open("wb") as file:
        reserve(file.fileno(), size)
        file.truncate(size)
        file.write(begin)

    def one(name: str) -> None:
        with writing(path):
            file = path.open("r+b", buffering=0)
        with file:
            file.seek(places[name])
            for piece in contents(name, plan.made[name], plan, source, problems):
                with writing(path):
                    write_all(file, piece)
                with counting:
                    advance(len(piece))

    Workers().each(plan.made, one)
    if problems:
        raise MismatchError("these do not fit their type in the file", sorted(problems))


def offsets(made: Mapping[str, Made], alignment: int, begin: int) -> tuple[dict[str, int], int]:
    """Return where each tensor MADE begins behind BEGIN bytes, and where the file ends."""
    at = begin
    found: dict[str, int] = {}
    for name, each in made.items():
        found[name] = at + -at % alignment
        at = found[name] + each.stored.nbytes
    return found, at + -at % alignment


def header(like: GgufFile, made: Mapping[str, Made], fields: Mapping[str, bytes]) -> bytes:
    """Return everything before the tensors MADE in a file like LIKE, metadata FIELDS."""
    start = MAGIC + struct.pack("<IQQ", like.version, len(made), len(fields))
    return start + b"".join(fields.values()) + b"".join(infos(made, like.alignment))


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
    """Yield the bytes of tensor NAME; what its type cannot hold is added to PROBLEMS.

    A yielded view is valid until the next one is asked for.
    """
    if made.rule is None:
        yield plan.like.raw(name).data
        return
    kind, room = made.stored.type, Room()
    for member in made.members:
        for rows in made_rows(source, member, made.rule, made.wanted):
            if made.choice and made.choice.codes and isinstance(rows, Blocks):
                yield encoded(rows, kind, room).reshape(-1).data
                continue
            numbers = dense(rows)
            if not overflows(numbers, kind):
                yield encode(numbers, kind).reshape(-1).view("u1").data
                continue
            problem = f"{name}: {member} has numbers that are no {kind}; choose --type BF16 or F32"
            if problem not in problems:
                problems.append(problem)
