"""Kill every verb that writes at its n-th write, rename or fsync; give the same command again.

    python benchmarks/kills.py [--commands merge gguf] [--random 200] [--workers 2]

Small jobs are killed at every n (long ones at every so many), in a child forked from a warm process
(tests/faults). Then what is visible under the target's name must be whole: nothing, the older result
that ``--force`` was to replace, or the new one; a training run may have begun. Nothing else may have
changed, and the same command must succeed and give byte for byte what an undisturbed run gives.
Further kills come at random moments while the command writes. Writes ``results/kills.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.tests.faults.commands import COMMANDS, make_sources, varied
from weighbridge.tests.faults.server import Server
from weighbridge.tests.faults.shim import NOTHING, Action, Fault, Kind, missing
from weighbridge.tests.faults.worlds import Row, World
from weighbridge.tests.support.side_by_side import machine

RESULT = Path(__file__).parent / "results" / "kills.json"
# These make hundreds of calls, or take seconds each time.
STEPS = {
    "checked": 20,
    "merge-quantized": 4,
    "shards": 2,
    "train-adapter": 12,
    "train-weights": 3,
}
ENDS = 12, 30  # the first and the last calls with --force, which differ; every 8th between
BETWEEN = 8
TORN_EVERY = 8  # writes


class Workplace(NamedTuple):
    """What a worker needs."""

    folder: Path
    sources: Path
    others: Path

    def world(self, name: str, server: Server) -> World:
        """Return a new world for the command NAME."""
        folder = self.folder / name
        return World(folder, server, self.sources, self.others, (name, COMMANDS[name]))


def chosen(calls: Sequence[str], name: str, *, force: bool) -> Iterator[Fault]:
    """Yield the kills of a command that makes CALLS."""
    first, last = ENDS
    for n, call in enumerate(calls):
        near = n < first or n >= len(calls) - last or n % BETWEEN == 0
        if n % STEPS.get(name, 1) == 0 and (near or not force):
            yield Fault(n)
        if n % TORN_EVERY == 0 and int(call.split()[0]) & Kind.WRITE:
            yield Fault(n, Action.TORN)


def counted(place: Workplace, name: str, server: Server) -> list[Row]:
    """Kill the command NAME at its calls."""
    world = place.world(name, server)
    rows = []
    for force in (False,) if world.command.trains else (False, True):
        faults = chosen(world.calls(force=force), name, force=force)
        rows += [world.kill(fault, force=force) for fault in faults]
    return rows


def at_random(world: World, chance: random.Random, seconds: float) -> Row | None:
    """Kill the command at any time while it writes; ``None`` if it had ended before."""
    force = not world.command.trains and chance.random() < 0.5
    calls = world.calls(force=force)
    moment = chance.randrange(1, len(calls)), chance.random() * seconds / len(calls)
    row = world.kill(NOTHING, force=force, kill_after=moment)
    return row if row.code == -9 else None


def random_kills(place: Workplace, name: str, server: Server, number: int) -> list[Row]:
    """Kill the command NAME so many times while it writes."""
    chance, world, rows = random.Random(name), place.world(name, server), []
    begun = time.monotonic()
    assert world.straight
    seconds = time.monotonic() - begun
    for _ in range(20 * number):
        if len(rows) == number:
            break
        if row := at_random(world, chance, seconds):
            rows.append(row)
    return rows


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the counts of ROWS, and every row with a problem."""
    by_command: dict[str, Counter[str]] = {}
    for row in rows:
        counts = by_command.setdefault(row.command, Counter())
        counts.update(["kills", f"found {row.found}", *(["with --force"] if row.force else [])])
    lost = [row for row in rows if any("lost" in p or "source" in p for p in row.problems)]
    return {
        "kills": sum(row.code == -9 for row in rows),
        "corrupt": sum(row.found == "HALF" for row in rows),
        "lost": len(lost),
        "not_the_same_after_the_rerun": sum(bool(row.problems) for row in rows),
        "found": dict(Counter(row.found for row in rows)),
        "calls": dict(Counter(row.call.split(" ")[0] for row in rows)),
        "commands": by_command,
        "problems": [row._asdict() for row in rows if row.problems],
    }


def keep(parts: dict[str, list[Row]], place: Path) -> dict[str, Any]:
    """Write what is known so far to PLACE; return it."""
    result = {key: summary(rows) for key, rows in parts.items()} | {"machine": machine()}
    place.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def main() -> int:
    """Run, print, keep; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as name:
        parts = run(Path(name), arguments)
    result = keep(parts, arguments.out)
    for key in parts:
        part = result[key]
        print(f"{key}: " + ", ".join(f"{k} {part[k]}" for k in list(part)[:5]))
    return int(any(result[key]["problems"] for key in parts))


def run(folder: Path, arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Return the rows of kills at counted calls and at random moments."""
    sources = make_sources(folder / "sources")
    place = Workplace(folder, sources, varied(sources, folder / "others"))
    parts: dict[str, list[Row]] = {"at_every_call": [], "at_random_moments": []}
    share = -(-arguments.random // len(arguments.commands))

    def work(name: str) -> None:
        library = folder / f"library-{name}"
        library.mkdir()
        with Server(library) as server:
            rows = counted(place, name, server)
            more = random_kills(place._replace(folder=folder / "random"), name, server, share)
        print(f"{name}: {len(rows)} kills, {len(more)} at random", flush=True)
        for row in (*rows, *more):
            if row.problems:
                print(row, flush=True)
        parts["at_every_call"] += rows
        parts["at_random_moments"] += more
        keep(parts, arguments.out)

    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(work, arguments.commands))
    return parts


if __name__ == "__main__":
    sys.exit(main())
