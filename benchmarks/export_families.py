"""Export families with ``weighbridge export``, and print each verdict.

    python benchmarks/export_families.py coreml|coreml-float32|coreml-stateful|onnx|coreai [NAME ...]
    python benchmarks/export_families.py foreign|foreign-float32|foreign-fault [NAME ...]

Off a Mac a right Core ML package is kept with PASS-REFERENCE. Those of ``foreign`` are made by plain
coremltools, by torch.jit.trace, of fixed sizes, and checked: one that is correct and not kept is rejected
wrongly. Of ``foreign-fault`` one number of one weight is a tenth too large: none should be kept.
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

from weighbridge.tests.support.coreml.families import ALL, NAMES, STATEFUL, source
from weighbridge.tests.support.coreml.foreign import PLAIN, foreign
from weighbridge.tests.support.coreml.models import MORE, PACKAGED

RESULTS: Final = Path(__file__).with_name("results") / "export_families.json"
# What is asked of the command line, by the key in the results.
FORMATS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "coreml": ("coreml", "m.mlpackage", ()),
    "coreml-float32": ("coreml", "m.mlpackage", ("--precision", "float32")),
    "coreml-stateful": ("coreml", "m.mlpackage", ("--stateful",)),
    "onnx": ("onnx", "m.onnx", ()),
    "coreai": ("coreai", "m.aimodel", ()),
}
FOREIGN: Final = {"foreign": "float16", "foreign-float32": "float32", "foreign-fault": "float16"}


def exported(name: str, folder: Path, form: str = "coreml") -> dict[str, Any]:
    """Export the family NAME into FOLDER as FORM by the command line; return what it says."""
    from weighbridge.cli import main

    start = time.monotonic()
    if form in FOREIGN:
        made = foreign(name, folder, FOREIGN[form], fault=form == "foreign-fault")
        arguments = ["parity", "check", made.source, str(made.package), "--json"]
    else:
        kind, file, options = FORMATS[form]
        arguments = ["export", kind, source(name, folder), str(folder / file), "--json", *options]
    result = CliRunner().invoke(main, arguments)
    try:
        told = json.loads(result.stdout)
    except ValueError:
        told = {}
    verdict = told.get("verdict", told if "stages" in told else {}) or {}
    return {
        "exit": result.exit_code,
        "status": verdict.get("status"),
        "kept": not result.exit_code,
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
    form, *names = sys.argv[1:] or ["coreml"]
    rows = {}
    tried = {"coreml-stateful": STATEFUL, "coreai": (*NAMES, *MORE, *PACKAGED), "onnx": ALL}
    tried |= dict.fromkeys(FOREIGN, PLAIN)
    for name in names or tried.get(form, ALL):
        with tempfile.TemporaryDirectory() as folder:
            rows[name] = exported(name, Path(folder), form=form)
        print(f"{name:14}", rows[name]["status"], rows[name]["seconds"], flush=True)
        for line in rows[name]["stages"]:
            print("    ", line, flush=True)
        keep(form, {name: rows[name]})
    kept = sum(row["kept"] for row in rows.values())
    print(f"{kept} of {len(rows)} kept")


def keep(form: str, rows: Mapping[str, Any]) -> None:
    """Write ROWS of FORM among the results of this run and of those before."""
    before = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    before[form] = {**before.get(form, {}), **rows}
    RESULTS.write_text(json.dumps(before, indent=1) + "\n")


if __name__ == "__main__":
    main()
