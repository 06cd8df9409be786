"""Faults that are planted, so that the fuzzer is known to find each kind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from . import place
from .campaign import remove
from .goods import make_goods
from .judge import Ran, judge
from .oracles import SAFETENSORS, moved
from .watch import in_child, verb

CONVERT = ("convert", "torch-to-mlx", "bert", "out", "--check", "none")


def traceback() -> int:
    raise KeyError("a bug")


def hang() -> int:
    time.sleep(60)
    return 0


def memory() -> int:
    held = bytearray(1_200 << 20)
    held[:: 1 << 12] = b"x" * len(held[:: 1 << 12])
    return 0


def outside() -> int:
    Path("../away/new.txt").write_text("not yours")
    return 0


def left_behind() -> int:
    Path("out").mkdir()
    return 3


def source() -> int:
    Path("bert/config.json").write_text("{}")
    return 0


def long() -> int:
    print("x" * 5_000)  # noqa: T201
    return 3


def wrong() -> int:
    """Convert, and change one bit of the result."""
    try:
        verb(CONVERT)()
    except SystemExit:
        path = Path("out/model.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    return 0


def nothing() -> int:
    return verb(CONVERT)()


# what is planted -> what has to be found
PLANTED: dict[Callable[[], int], list[str]] = {
    traceback: ["traceback"],
    hang: ["hang"],
    memory: ["memory"],
    outside: ["outside"],
    left_behind: ["outside"],
    source: ["source"],
    long: ["long"],
    wrong: ["wrong"],
    nothing: [],
}


def found(job: Callable[[], int], scratch: Path) -> list[str]:
    """Run JOB as an input is run; return the kinds of what is found."""
    goods, root = scratch / "goods", scratch / "control"
    goods.mkdir(exist_ok=True)
    make_goods(goods, ["bert"])
    folder = place.furnish(root, goods, ["bert"])
    before = place.snapshot(root)
    seen = in_child(job, folder, place.surroundings(root), limit=1 if job is hang else 20)
    ran = Ran(folder, goods, CONVERT, "out", seen)
    kinds = [it.kind for it in judge(ran, before, place.snapshot(root), moved("bert", SAFETENSORS))]
    remove(root)
    return kinds
