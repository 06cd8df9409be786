"""What ``test_fuzz.py`` runs in a process of its own: a slice of inputs, kept cases, planted faults."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from . import warm

SEED = 20


def main(what: str, count: str = "0") -> int:
    """Print a line of JSON for each input."""
    printed = sys.stdout
    sys.stdout = sys.stderr
    warm.prepare()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        ways = {"slice": some, "replay": replayed, "controls": controlled}
        rows = ways[what](Path(name), int(count))
    printed.write("".join(json.dumps(row) + "\n" for row in rows))
    return 0


def some(scratch: Path, count: int) -> list[dict[str, object]]:
    """Run COUNT inputs of all families."""
    from .campaign import campaign
    from .families import FAMILIES

    return campaign(tuple(FAMILIES), count, SEED, scratch, jobs=2)


def controlled(scratch: Path, _: int) -> list[dict[str, object]]:
    """Run every planted fault."""
    from .controls import PLANTED, found

    return [
        {"planted": job.__name__, "wanted": kinds, "found": found(job, scratch)}
        for job, kinds in PLANTED.items()
    ]


def replayed(scratch: Path, _: int) -> list[dict[str, object]]:
    """Run every kept case."""
    from .campaign import remove
    from .replay import kept, replay

    rows: list[dict[str, object]] = []
    for name, case in kept().items():
        found = replay(case, scratch)
        rows.append({"case": name, "found": [[it.kind, it.detail] for it in found]})
        remove(scratch / "case")
    return rows


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
