"""Whether the tests see faults in the code: 50 fixed ones, each of a single line, planted in turn.

    python benchmarks/mutations.py [--only PART_OF_A_NAME] [--out benchmarks/results/mutations.json]

``mutations.toml`` says for every module which text becomes which, and which tests mirror the module. Each
fault is planted in a temporary copy of the tree, and only these tests are run there, the heavy ones aside.
A fault that they do not see must get a test that does, or a reason why nothing could: then it is ``alike``,
and is listed with that reason. With ``--only``, only those faults are planted and the rest is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
TABLE: Final = ROOT / "benchmarks" / "mutations.toml"
RESULT: Final = ROOT / "benchmarks" / "results" / "mutations.json"
FAILED: Final = 1  # pytest's exit status where a test has failed
SECONDS: Final = 900  # a fault that never ends is seen too


class Fault(NamedTuple):
    """One fault: TEXT in FILE, where it stands once, becomes BECOMES; ALIKE says why nobody could see it."""

    name: str
    file: str
    tests: Sequence[str]
    text: str
    becomes: str
    alike: str = ""


def faults() -> Iterator[Fault]:
    """Yield the faults of the table."""
    for module in tomllib.loads(TABLE.read_text(encoding="utf-8"))["module"]:
        for name, text, becomes, *alike in module["faults"]:
            where = module["file"]
            yield Fault(
                f"{Path(where).stem}: {name}", where, module["tests"], text, becomes, *alike
            )


def copied(folder: Path) -> Path:
    """Copy the files that git tracks into FOLDER, under the name of the package."""
    tree = folder / "weighbridge"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    return tree


def tested(tree: Path, tests: Sequence[str]) -> int:
    """Return the exit status of TESTS in TREE, which stop at the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    paths = os.pathsep.join([str(tree.parent), str(tree)])
    variables = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    try:
        return subprocess.run(
            [*command, "-m", "not heavy", *tests],
            cwd=tree,
            env=variables,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return FAILED


def planted(tree: Path, fault: Fault) -> str:
    """Plant FAULT in TREE, run its tests and take it out again; return what came of it."""
    file = tree / fault.file
    whole = file.read_text(encoding="utf-8")
    if whole.count(fault.text) != 1 or "\n" in fault.text:
        return "not planted: the text does not stand once on a line"
    file.write_text(whole.replace(fault.text, fault.becomes), encoding="utf-8")
    try:
        status = tested(tree, fault.tests)
    finally:
        file.write_text(whole, encoding="utf-8")
    outcomes = {0: "alike" if fault.alike else "survived", FAILED: "caught"}
    return outcomes.get(status, f"pytest ended with {status}")


def measured(chosen: Sequence[Fault]) -> Iterator[dict[str, Any]]:
    """Yield what came of each fault CHOSEN; tests that fail without one see nothing."""
    with tempfile.TemporaryDirectory() as folder:
        tree, sound = copied(Path(folder)), dict[str, int]()
        for fault in chosen:
            if fault.file not in sound:
                sound[fault.file] = tested(tree, fault.tests)
            status = sound[fault.file]
            came = f"its tests end with {status} without it" if status else planted(tree, fault)
            print(f"{fault.name}: {came}", flush=True)
            yield {"fault": fault.name, "outcome": came, "why": fault.alike}


def main() -> None:
    """Plant, print and keep what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="PART", help="faults whose name has PART")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    before = json.loads(options.out.read_text())["faults"] if options.out.exists() else []
    rows = {row["fault"]: row for row in before}
    for row in measured([fault for fault in faults() if options.only in fault.name]):
        rows[row["fault"]] = row
        keep(rows, options.out)  # one that is interrupted has kept what it saw


def keep(rows: dict[str, dict[str, Any]], file: Path) -> None:
    """Write what came of the faults in ROWS to FILE, in the order of the table."""
    names = [fault.name for fault in faults()]
    kept = [rows[name] for name in names if name in rows]
    outcomes = dict(Counter(row["outcome"] for row in kept))
    result = {"faults of the table": len(names), "outcomes": outcomes, "faults": kept}
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{len(kept)} of {len(names)} planted: {outcomes}")


if __name__ == "__main__":
    main()
