"""The mutations of ``benchmarks/mutations.toml`` are of the code as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = tomllib.loads((ROOT / "benchmarks" / "mutations.toml").read_text())["module"]


def test_every_mutation_can_be_planted_and_its_tests_are_there():
    wrong = []
    for module in MODULES:
        code = (ROOT / module["file"]).read_text()
        wrong += [path for path in module["tests"] if not (ROOT / path).exists()]
        wrong += [fault[0] for fault in module["faults"] if code.count(fault[1]) != 1]
    assert wrong == []
