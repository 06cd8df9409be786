"""Plant faults in Core ML packages, by the command line, and count what a check names.

    python benchmarks/coreml_faults.py

Altered modules are exported, and their packages checked against the module as it should be. Modules
that overflow are exported in float16, and at the defaults: then a result is right or is not kept.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from click.testing import CliRunner

from weighbridge.cli import main as weighbridge
from weighbridge.tests.support.coreml import faults
from weighbridge.tests.support.coreml.families import HERE

RESULTS: Final = Path(__file__).with_name("results") / "coreml_faults.json"
RIGHT: Final = f"{HERE}.modules:gated"
OPERATION: Final = re.compile(r"^(\S+ \(\w+\)) holds")


def run(*arguments: object) -> dict[str, Any]:
    """Run the command line; return its exit code, the status, the stages that failed, what is named."""
    result = CliRunner().invoke(weighbridge, [*map(str, arguments), "--json"])
    told = json.loads(result.stdout)
    verdict = told.get("verdict") or told
    stages = verdict.get("stages", ())
    failed = {it["name"]: it["detail"][:160] for it in stages if it["status"] == "fail"}
    sites = [f"{it['site']}: {it['kind']}" for it in verdict.get("faults", ())]
    about = {"exit": result.exit_code, "status": verdict.get("status"), "failed": failed}
    return {**about, "named": named(failed) + [it for it in sites if not it.startswith("(model)")]}


def named(failed: Mapping[str, str]) -> list[str]:
    """Return the weights and operations that the FAILED stages name."""
    weights = [failed["fingerprints"].split(":")[0]] if "fingerprints" in failed else []
    return weights + [it for text in failed.values() for it in OPERATION.findall(text)]


def rows(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every fault and what a check says of it."""
    for number, name in enumerate(faults.FAULTS):
        faults.FAULT["name"], package = name, folder / f"{number}.mlpackage"
        run("export", "coreml", f"{HERE}.faults:altered", package, "--check", "none")
        yield name, run("parity", "check", RIGHT, package, "--quick")
    for number, name in enumerate(faults.OVERFLOWS):
        faults.STEP["name"], package = name, folder / f"half-{number}.mlpackage"
        own = f"{HERE}.faults:overflowing"
        yield f"overflow: {name}", run("export", "coreml", own, package, "--precision", "float16")
        yield f"defaults: {name}", run("export", "coreml", own, package)


def main() -> None:
    """Print what was caught and keep it."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, row in rows(Path(folder)):
            found[name] = row
            print(f"{name:36} {row['status']} {row['named'][:2]}", flush=True)
    planted = {name: row for name, row in found.items() if not name.startswith("defaults")}
    caught = sum(row["status"] == "DIFFERS" for row in planted.values())
    places = sum(bool(row["named"]) for row in planted.values())
    print(f"{caught} of {len(planted)} caught, the place named of {places}")
    if len(sys.argv) == 1:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
