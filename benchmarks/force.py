"""Give every writing verb with ``--force`` to folders that are not ours; count what is lost.

    python benchmarks/force.py [--commands merge gguf] [--out benchmarks/results/force.json]

The folders (tests/faults/zoo.py) are models of others, results that somebody worked on, links,
mounts, homes, working directories, names that look like ours. Everything in and around them is
hashed before and after. Training has no ``--force``; it is given to them all the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path

from weighbridge.tests.faults.commands import COMMANDS, make_sources, varied
from weighbridge.tests.faults.keeping import Results, Visit, visit
from weighbridge.tests.faults.server import Server
from weighbridge.tests.faults.shim import missing
from weighbridge.tests.faults.worlds import World
from weighbridge.tests.faults.zoo import ANIMALS
from weighbridge.tests.support.side_by_side import machine

RESULT = Path(__file__).parent / "results" / "force.json"


def visits(folder: Path, names: list[str]) -> list[Visit]:
    """Give the commands NAMES to every folder."""
    sources = make_sources(folder / "sources")
    others = varied(sources, folder / "others")
    with Server(folder) as server:
        worlds = {
            name: World(folder / name, server, sources, others, (name, command))
            for name, command in COMMANDS.items()
        }
        results = Results(list(worlds.values()))
        return [visit(worlds[name], animal, results) for name in names for animal in ANIMALS]


def main() -> int:
    """Run, print, keep; return 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if why := missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as name:
        rows = visits(Path(name), arguments.commands)
    result = {
        "kinds": list(ANIMALS),
        "commands": arguments.commands,
        "tried": len(rows),
        "files_lost": sum(len(row.lost) for row in rows),
        "files_left": sum(len(row.left) for row in rows),
        "codes": dict(Counter(row.code for row in rows)),
        "problems": [row._asdict() for row in rows if row.problems],
        "machine": machine(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    counts = "tried", "files_lost", "files_left"
    print(f"{len(ANIMALS)} kinds:", ", ".join(f"{key} {result[key]}" for key in counts))
    for row in rows:
        if row.problems:
            print(row)
    return int(bool(result["problems"]))


if __name__ == "__main__":
    sys.exit(main())
