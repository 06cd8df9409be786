"""Export families with ``weighbridge export coreml`` at its defaults, and print each verdict.

    python benchmarks/coreml_families.py [NAME ...]

Off a Mac a right package is kept with PASS-REFERENCE.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from weighbridge.tests.support.coreml.families import NAMES, source

RESULTS: Final = Path(__file__).with_name("results") / "coreml_families.json"


def exported(name: str, folder: Path, *options: str) -> dict[str, Any]:
    """Export the family NAME into FOLDER by the command line; return what it says."""
    from weighbridge.cli import main

    start = time.monotonic()
    arguments = ["export", "coreml", source(name, folder), str(folder / "m.mlpackage"), "--json"]
    result = CliRunner().invoke(main, [*arguments, *options])
    try:
        told = json.loads(result.stdout)
    except ValueError:
        told = {}
    verdict = told.get("verdict") or {}
    return {
        "exit": result.exit_code,
        "status": verdict.get("status"),
        "kept": (folder / "m.mlpackage").exists(),
        "seconds": round(time.monotonic() - start, 1),
        "stages": list(problems(verdict)) or ([result.output[-400:]] if not verdict else []),
    }


def problems(verdict: Mapping[str, Any]) -> Iterator[str]:
    """Yield the stages that did not pass."""
    for stage in verdict.get("stages", ()):
        if stage["status"] in ("fail", "unverified"):
            yield f"{stage['name']} {stage['status']}: {stage['detail']}"


def main() -> None:
    """Export the families named on the command line, or all."""
    rows = {}
    for name in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = exported(name, Path(folder))
        print(f"{name:14}", rows[name]["status"], rows[name]["seconds"], flush=True)
        for line in rows[name]["stages"]:
            print("    ", line, flush=True)
        keep({name: rows[name]})
    kept = sum(row["kept"] for row in rows.values())
    print(f"{kept} of {len(rows)} kept")


def keep(rows: Mapping[str, Any]) -> None:
    """Write ROWS among the results of this run and of those before."""
    before = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    RESULTS.write_text(json.dumps({**before, **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
