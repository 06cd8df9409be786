"""Functions and files stay short; frameworks are imported where pyproject says, and nowhere else."""

from __future__ import annotations

import ast
import statistics
import tomllib
from collections import Counter
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
FRAMEWORKS = set(SETTINGS["flake8-tidy-imports"]["banned-module-level-imports"])
FREE = [glob for glob, codes in SETTINGS["per-file-ignores"].items() if "TID253" in codes]
FOLDERS = ("converters", "jobs", "parity", "trainers", "verbs")
SOURCES = sorted(
    [*ROOT.glob("*.py"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))]
)
NAMES = [path.relative_to(ROOT).as_posix() for path in SOURCES]
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
LONGEST = 40  # lines
LONGEST_FILE, LONGEST_INIT, MEDIAN = 400, 30, 8  # lines
FULLEST = 15  # files of a folder besides its __init__.py


@cache
def tree(name: str) -> ast.Module:
    """Return the file NAME parsed, when a test asks: every process of a run imports this file."""
    return ast.parse((ROOT / name).read_text())


def functions():
    for name in NAMES:
        for node in ast.walk(tree(name)):
            if isinstance(node, FUNCTION):
                yield f"{name}:{node.lineno} {node.name}", node


def lines(node) -> int:
    return node.end_lineno - node.lineno + 1


def lines_of_code(node) -> int:
    """Return the length of a function without its docstring."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    return lines(node) - (lines(first) if documented else 0)


def test_the_median_function_is_short():
    assert statistics.median(lines_of_code(node) for _, node in functions()) <= MEDIAN


def test_no_function_is_long():
    assert {name: lines(node) for name, node in functions() if lines(node) > LONGEST} == {}


def test_a_file_holds_one_concept():
    lengths = {path: len(path.read_text().splitlines()) for path in SOURCES}
    most = {path: LONGEST_INIT if path.name == "__init__.py" else LONGEST_FILE for path in SOURCES}
    assert {path: length for path, length in lengths.items() if length > most[path]} == {}


def test_no_folder_is_full():
    held = Counter(path.parent for path in SOURCES if path.name != "__init__.py")
    assert {folder: number for folder, number in held.items() if number > FULLEST} == {}


def module_level(module: ast.Module) -> set[str]:
    """Return the frameworks imported while MODULE is imported, under ``if`` and ``try`` too."""
    found, waiting = set(), list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
        elif not isinstance(node, FUNCTION) and not for_types(node):
            waiting += ast.iter_child_nodes(node)
    return found & FRAMEWORKS


def for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def is_free(name: str) -> bool:
    """Tell whether NAME matches one of ruff's globs, in which ``*`` crosses slashes."""
    return any(fnmatch(name, glob) for pattern in FREE for glob in alternatives(pattern))


def alternatives(pattern: str) -> list[str]:
    """Expand one pair of braces.

    >>> alternatives("a/{b,c}.py")
    ['a/b.py', 'a/c.py']
    """
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    choices, _, tail = rest.partition("}")
    return [head + choice + tail for choice in choices.split(",")]


def test_a_framework_is_imported_at_module_level_only_where_listed():
    bound = [name for name in NAMES if not is_free(name)]
    assert {name: found for name in bound if (found := module_level(tree(name)))} == {}


@pytest.mark.parametrize("pattern", [glob for glob in FREE if glob.split("/")[0] in FOLDERS])
def test_every_listed_file_imports_a_framework(pattern):
    for glob in alternatives(pattern):
        matching = [name for name in NAMES if fnmatch(name, glob)]
        assert any(module_level(tree(name)) for name in matching), glob
