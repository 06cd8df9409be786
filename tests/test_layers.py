"""A layer imports only from lower ones, inside functions and for type checking too."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Lowest first, each with the packages it is made of. Within a layer packages may know each other.
LAYERS = (
    ("foundation", ("errors", "converters.common", "converters.documents", "converters.values")),
    ("files", ("converters.checkpoints", "converters.results")),
    ("weights", ("converters.quantization", "converters.adapters")),
    (
        "models",
        (
            "converters.mlx_classes",
            "converters.libraries",
            "converters.configs",
            "converters.gguf",
            "converters.models",
        ),
    ),
    ("computations", ("converters.maps", "converters.captures", "converters.runtimes")),
    (
        "formats",
        (
            "converters.coreml",
            "converters.coreai_export",
            "converters.coreai_lowerings",
            "converters.coreai_rewrites",
            "converters.onnx_export",
            "converters.recovering",
            "converters.sidefiles",
            "converters.routes",
            "converters.planning",
        ),
    ),
    ("parity", ("parity",)),
    ("trainers", ("trainers",)),
    ("jobs", ("jobs",)),
    ("command line", ("verbs", "cli", "__main__")),
)
LEVEL = {unit: level for level, (_, units) in enumerate(LAYERS) for unit in units}
PACKAGES = ("converters", "jobs", "parity", "trainers", "verbs")
# A converter does not check itself: parity judges by values, without the map that did the job.
JUDGE, JUDGED = "parity", "converters.maps"


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


SOURCES = {
    module_name(path): path
    for path in [
        *ROOT.glob("[!_]*.py"),
        *(p for name in PACKAGES for p in (ROOT / name).rglob("*.py")),
    ]
}


def unit_of(module: str) -> str | None:
    """Return the unit that MODULE belongs to, its longest known prefix."""
    parts = module.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in LEVEL), None)


def absolute(dots: int, name: str, importer: str) -> str:
    """Resolve a relative import of NAME in the module IMPORTER, below ``weighbridge``."""
    is_package = SOURCES[importer].name == "__init__.py"
    parents = importer.split(".") if is_package else importer.split(".")[:-1]
    return ".".join([*parents[: len(parents) - dots + 1], *filter(None, [name])])


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return what may name a module in the file at PATH, in any function of it."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant)
    return tuple(node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


@cache
def imported(importer: str) -> frozenset[str]:
    """Return every module below ``weighbridge`` that IMPORTER names, wherever it does."""
    return frozenset(_imported(importer))


def _imported(importer: str) -> Iterator[str]:
    for node in nodes(SOURCES[importer]):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = absolute(node.level, node.module or "", importer)
            for alias in node.names:
                full = f"{base}.{alias.name}".lstrip(".")
                yield full if full in SOURCES or not base else base
        elif isinstance(node, ast.Constant) and is_relative_name(node.value):
            name = node.value.lstrip(".")  # importlib.import_module and tables of lazy imports
            target = absolute(len(node.value) - len(name), name, importer)
            if target in SOURCES:
                yield target


def is_relative_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\.+[a-z_]\w*(\.\w+)*", value) is not None


def violation(importer: str, target: str) -> str | None:
    """Say why IMPORTER may not import TARGET; ``None`` where it may."""
    if target == "__version__":
        return None
    above, below = unit_of(importer), unit_of(target)
    if below is None:
        return f"{importer} imports {target}, which no layer lists"
    if (above, below) == (JUDGE, JUDGED):
        return f"{importer} must judge without {target}"
    if LEVEL[above] >= LEVEL[below]:
        return None
    return f"{importer} ({above}) imports {target} ({below}), which is not a lower layer"


def test_a_module_imports_only_from_lower_layers():
    named = [(it, target) for it in SOURCES if unit_of(it) for target in sorted(imported(it))]
    assert [why for pair in named if (why := violation(*pair))] == []


def test_a_package_that_only_groups_others_imports_nothing():
    grouping = [it for it in SOURCES if unit_of(it) is None]  # such as converters
    assert {it: imported(it) for it in grouping if imported(it)} == {}


def reached(start: str) -> set[str]:
    """Return every module that START needs, by whatever way."""
    found, ahead = set(), [start]
    while ahead:
        targets = [it for it in imported(ahead.pop()) if it in SOURCES and it not in found]
        found.update(targets)
        ahead += targets
    return found


JUDGING = sorted(module for module in SOURCES if unit_of(module) == JUDGE)


def test_what_judges_reaches_no_map_by_any_way():
    through = {m: [it for it in reached(m) if it.startswith(JUDGED)] for m in JUDGING}
    assert {module: maps for module, maps in through.items() if maps} == {}


def test_no_files_import_one_another_in_a_circle():
    circles = {frozenset(_around(m)) for m in SOURCES if m in reached(m)}
    assert [sorted(circle) for circle in circles] == []


def _around(module: str) -> set[str]:
    """Return the modules that lie on a circle with MODULE."""
    return {other for other in reached(module) if module in reached(other)}


def test_a_module_imports_its_own_package_relatively():
    ours = {"weighbridge", ROOT.name, "tests"}
    absolutely = {it: names_imported(path) for it, path in SOURCES.items()}
    found = {it: {n for n in names if n.split(".")[0] in ours} for it, names in absolutely.items()}
    assert {it: names for it, names in found.items() if names} == {}


def test_every_layer_exists():
    missing = {unit for unit in LEVEL if unit not in SOURCES and unit != "__main__"}
    assert missing == set()


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("errors", "converters.adapters"),
        ("converters.values", "converters.checkpoints"),
        ("converters.maps", "converters.coreml"),
        ("converters.checkpoints", "converters.models"),
        ("parity", "trainers"),
        ("jobs", "verbs.output"),
        ("parity.weights.fingerprints", "converters.maps.notation.axes"),
        ("parity", "elsewhere"),
    ],
)
def test_the_order_is_enforced(importer, target):
    assert violation(importer, target)


@pytest.mark.parametrize(
    ("dots", "name", "importer", "expected"),
    [
        (1, "errors", "cli", "errors"),
        (3, "errors", "converters.models.model", "errors"),
        (2, "values", "converters.adapters.adapter", "converters.values"),
        (1, "base", "converters.checkpoints", "converters.checkpoints.base"),
    ],
)
def test_relative_imports_are_resolved(dots, name, importer, expected):
    assert absolute(dots, name, importer) == expected


def names_imported(path: Path) -> set[str]:
    """Return the modules that the file at PATH imports, relative ones with their dots."""
    froms = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
    names = {"." * node.level + (node.module or "") for node in froms}
    return names | {n.name for it in nodes(path) if isinstance(it, ast.Import) for n in it.names}


def test_no_test_imports_a_benchmark():
    """What both use lies in ``tests/support``."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if any("benchmarks" in name.split(".") for name in names_imported(path))
    }
    assert found == set()
