"""What a job has to find out and to decide, it does in one place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("converters/planning", "jobs", "verbs")
TREES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
# Each function with the files that call it, once for each call.
CALLS = {
    "map_of": ["converters/planning/conversion.py"],
    "translated": ["converters/planning/conversion.py"],
    "source_headers": ["converters/planning/conversion.py"],
    "plan_job": ["converters/planning/view.py", "jobs/converting.py"],
    "Staging": ["jobs/pipeline.py"],
}


def called(node: ast.AST) -> str | None:
    """Return the plain name that NODE calls."""
    if not isinstance(node, ast.Call):
        return None
    return getattr(node.func, "id", None)


@pytest.mark.parametrize("name", CALLS)
def test_a_decision_is_taken_in_one_place(name):
    places = [
        file for file, tree in TREES.items() for node in ast.walk(tree) if called(node) == name
    ]
    assert places == CALLS[name]
