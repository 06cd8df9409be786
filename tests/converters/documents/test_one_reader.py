"""JSON, YAML and TOML become values in one place only."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("converters", "jobs", "parity", "trainers", "verbs")
PARSERS = re.compile(r"\bjson\.loads?\(|\byaml\.(load|safe_load|compose)|\btomllib\.loads?\(")
ALONE = {"converters/libraries/defaults_child.py"}  # a script without this package, asked by us


def test_no_other_module_parses_documents():
    sources = [*ROOT.glob("*.py"), *(p for name in FOLDERS for p in (ROOT / name).rglob("*.py"))]
    parsing = {
        path.relative_to(ROOT).as_posix() for path in sources if PARSERS.search(path.read_text())
    }
    assert {path for path in parsing if "/documents/" not in path} == ALONE
