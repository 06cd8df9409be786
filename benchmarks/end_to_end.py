"""Run the demo and keep what its closing tables say: retrieval per runtime, verdicts, seconds.

    python benchmarks/end_to_end.py [--out FOLDER]

A finished run in FOLDER is read, not repeated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).with_name("results") / "end_to_end.json"


def ratios(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return the status of VERDICT and the largest error ratio of each stage that measured one."""
    rows = {stage["name"]: stage["figures"].get("rows") for stage in verdict["stages"]}
    worst = {name: max(row["ratio"] for row in found) for name, found in rows.items() if found}
    return {"status": verdict["status"], **worst}


def main() -> None:
    """Run the demo if need be; print and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "demo-output")
    folder = parser.parse_args().out
    if not (folder / "summary.json").is_file():
        command = [sys.executable, str(ROOT / "examples" / "demo.py"), "--out", str(folder)]
        subprocess.run(command, check=True, cwd=ROOT)
    summary = json.loads((folder / "summary.json").read_text())
    kept = {
        "scores": summary["scores"],
        "significance": summary["significance"],
        "verdicts": {name: ratios(verdict) for name, verdict in summary["verdicts"].items()},
        "seconds": {name: round(seconds) for name, seconds in summary["seconds"].items()},
    }
    text = json.dumps(kept, indent=1)
    print(text)
    RESULTS.write_text(text + "\n")


if __name__ == "__main__":
    main()
