"""Full, failing, read-only and small disks, two runs at once, changed sources: for every verb.

    python benchmarks/disks.py [--commands merge gguf] [--every 5]

Each must end in one line and exit 3, leave nothing (no staging, no draft, no folder made for the
target, nothing in TMPDIR) and lose nothing, or end well with the bytes of an undisturbed run. A
training run that was under way may stay, and must go on to the same bytes. Disks are full or fail
at the n-th call (tests/faults), and are really small or read-only where file systems may be
mounted. Writes ``results/disks.json``.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from weighbridge.tests.faults.commands import COMMANDS, make_sources, varied
from weighbridge.tests.faults.mounts import mounted, remount
from weighbridge.tests.faults.server import Server
from weighbridge.tests.faults.shim import ANY, FAILING, GROWING, Action, Fault, Kind, missing
from weighbridge.tests.faults.worlds import Row, World
from weighbridge.tests.support.side_by_side import machine

RESULT = Path(__file__).parent / "results" / "disks.json"
WRITES = Kind.WRITE | Kind.CLOSE
FAULTS = {
    "full": Fault(0, Action.FAIL, errno.ENOSPC, GROWING, sticky=True),
    "full after half a write": Fault(0, Action.HALF, errno.ENOSPC, Kind.WRITE, sticky=True),
    "over its quota": Fault(0, Action.FAIL, errno.EDQUOT, WRITES, sticky=True),
    "failing once": Fault(0, Action.FAIL, errno.EIO, FAILING),
    "short writes": Fault(0, Action.SHORT, kinds=Kind.WRITE),
    "interrupted writes": Fault(0, Action.FAIL, errno.EINTR, Kind.WRITE),
}
FORBIDDEN = {"read-only": errno.EROFS, "forbidden": errno.EACCES}
SIZES = 8  # of small disks
ROOM = "size=64m"
Rows = Iterator[tuple[str, Row]]


def injected(world: World, every: int) -> Rows:
    """Let a call fail: for every kind of failure another one of EVERY, and so all of them in turn."""
    for force in (False,) if world.command.trains else (False, True):
        calls = [int(call.split()[0]) for call in world.calls(force=force)]
        for offset, (name, fault) in enumerate(FAULTS.items()):
            for n in range(offset % every, len(calls), every):
                if calls[n] & fault.kinds:
                    yield name, world.fail(fault._replace(at=n), force=force)
    for name, code in FORBIDDEN.items():
        yield name, world.fail(Fault(0, Action.FAIL, code, ANY, sticky=True))


def on_disks(world: World) -> Rows:
    """Write to small, read-only and other file systems."""
    needed = world.bytes_needed()
    world.prepare(force=False)
    for part in range(1, SIZES + 1):
        with mounted(world.place, f"size={max(needed * part // (SIZES + 1), 8192)}") as done:
            if not done:
                return
            yield "small disk", world.fail(relief=lambda: remount(world.place, ROOM))
    with mounted(world.place, ROOM), mounted(world.temporary, ROOM):
        yield "other disks", world.fail()
    world.clear()
    with mounted(world.temporary, "size=8192"):
        yield "no room in TMPDIR", world.fail()
    with mounted(world.place, ROOM):
        yield "read-only disk", world.refused_read_only(lambda how: remount(world.place, how))


def together(world: World) -> Rows:
    """Run the command twice at once, and change a source while it runs."""
    for part in (1, 2, 3):
        yield "two runs at once", world.twice(len(world.calls()) * part // 4)
    if world.command.reads:
        yield "changed source", world.change()


def tried(folder: Path, names: list[str], every: int) -> Rows:
    """Try the commands NAMES in everything."""
    sources = make_sources(folder / "sources")
    others = varied(sources, folder / "others")
    for name in names:
        library = folder / f"library-{name}"
        library.mkdir()
        with Server(library) as server:
            world = World(folder / name, server, sources, others, (name, COMMANDS[name]))
            for rows in (together(world), on_disks(world), injected(world, every)):
                for row in rows:
                    if row[1].problems:
                        print(*row, flush=True)
                    yield row
        print(name, flush=True)


def main() -> int:
    """Run, print, keep; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--every", type=int, default=len(FAULTS), help="calls of a kind of failure")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as name:
        rows = list(tried(Path(name), arguments.commands, arguments.every))
    table: dict[str, Counter[str]] = {}
    for name, row in rows:
        ended = "refused in one line" if row.code == 3 else "ended well"
        table.setdefault(name, Counter()).update([ended, *(["WRONG"] if row.problems else [])])
    wrong = [{"trouble": name} | row._asdict() for name, row in rows if row.problems]
    result = {
        "commands": arguments.commands,
        "tried": len(rows),
        "wrong": len(wrong),
        "by_trouble": table,
        "problems": wrong,
        "machine": machine(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"tried {len(rows)}, wrong {len(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
