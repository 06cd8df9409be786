"""Cases that were found once: the files that were spoiled, and the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from . import place
from .campaign import Input, forked, put, run
from .families import FAMILIES
from .goods import make_goods
from .judge import Finding, Oracle

CASES = Path(__file__).parent / "cases"


def kept() -> dict[str, dict[str, Any]]:
    """Return every case by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(CASES.glob("*.json"))}


def replay(case: dict[str, Any], scratch: Path) -> list[Finding]:
    """Run CASE in SCRATCH again; return what is wrong now."""
    goods, root = scratch / "goods", scratch / "case"
    goods.mkdir(exist_ok=True)
    names = FAMILIES[case["family"]].goods
    make_goods(goods, (*names, *(["run-done"] if "run" in names else [])))
    folder = place.furnish(root, goods, names)
    for name, held in case["files"].items():
        put(folder / name, *held)
    made = Input(
        case["family"], case["name"], root, case["argv"], case["target"], oracle_of(case), ""
    )
    return run(made, goods, forked)[1]


def oracle_of(case: dict[str, Any]) -> Oracle | None:
    """Return the oracle of the verb that CASE ran."""
    verbs = FAMILIES[case["family"]].verbs
    return next((verb.oracle for verb in verbs if verb.line.split() == case["argv"]), None)
