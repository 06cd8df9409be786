"""What ``test_fuzz.py`` runs in a process of its own: a slice of inputs, kept cases, planted faults."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from . import warm

SEED = 20
Rows = list[dict[str, object]]


def main(count: str) -> int:
    """Print one JSON document: the rows of COUNT inputs, of every case, of every planted fault."""
    printed = sys.stdout
    sys.stdout = sys.stderr
    warm.prepare()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        document = {"slice": some(scratch, int(count))}
        document |= {"cases": replayed(scratch), "planted": controlled(scratch)}
    printed.write(json.dumps(document) + "\n")
    return 0


def some(scratch: Path, count: int) -> Rows:
    """Run COUNT inputs of all families."""
    from .campaign import campaign
    from .families import FAMILIES

    return campaign(tuple(FAMILIES), count, SEED, scratch, jobs=2)


def controlled(scratch: Path) -> Rows:
    """Run every planted fault."""
    from .controls import PLANTED, found

    return [
        {"planted": job.__name__, "wanted": kinds, "found": found(job, scratch)}
        for job, kinds in PLANTED.items()
    ]


def replayed(scratch: Path) -> Rows:
    """Run every kept case."""
    from .campaign import remove
    from .replay import kept, replay

    rows: Rows = []
    for name, case in kept().items():
        found = replay(case, scratch)
        rows.append({"case": name, "found": [[it.kind, it.detail] for it in found]})
        remove(scratch / "case")
    return rows


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
