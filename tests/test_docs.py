"""The documentation says what is true: generated parts are current, links and names resolve."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import re
import shlex
from pathlib import Path

import click
import pytest

import weighbridge
from weighbridge.cli import main
from weighbridge.converters.maps.binding.weightmap import WeightMap

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = ROOT / "README.md"
LINK = re.compile(r"(?<!`)\[[^\]]*\]\(([^)\s]+)\)")
RESULTS = ROOT / "benchmarks" / "results"
WRITES_ELSEWHERE = {"null_study": ROOT / "parity" / "reference" / "floors.json"}


@pytest.fixture(scope="module")
def generate():
    """Return docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ids(paths):
    return [path.name for path in paths]


def test_generated_parts_are_up_to_date(generate):
    assert [path.name for path in generate.outdated()] == []


def test_every_generated_part_stands_somewhere(generate):
    text = "".join(path.read_text() for path in PAGES)
    assert {name for name in generate.PARTS if f"<!-- begin {name} -->" not in text} == set()


def test_every_verb_is_documented(generate):
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [name for name, _ in generate.verbs() if f"\n## {name}\n" not in text] == []


def test_every_page_is_listed_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    assert [p.name for p in PAGES[2:] if p.name != "index.md" and p.name not in index] == []


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_link_leads_somewhere(page):
    broken = []
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        if "://" in link:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of PAGE."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_fits_on_a_few_screens():
    assert len(README.read_text().splitlines()) < 120
    assert len(README.read_text().split()) <= 700


def blocks(page: Path, *languages: str) -> list[str]:
    """Return the fenced blocks of PAGE that are written in one of LANGUAGES."""
    found = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Return the words after ``weighbridge`` of every command that PAGE shows."""
    shells = blocks(page, "sh", "shell", "console", "bash")
    lines = [line for shell in shells for line in shell.replace("\\\n", " ").splitlines()]
    found = (re.match(r"(?:\$ )?(?:\S+/)?weighbridge +(.*)", line) for line in lines)
    return [shlex.split(match[1], comments=True) for match in found if match]


def leaf(words: list[str]) -> click.Command | None:
    """Return the verb that WORDS begin with; ``None`` if there is none."""
    command: click.Command | None = main
    for word in words:
        if not isinstance(command, click.Group):
            break
        command = command.commands.get(word)
    return None if isinstance(command, click.Group) else command


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_command_shown_has_its_verb_and_options(page):
    for words in commands(page):
        command = leaf(words)
        used = {word.partition("=")[0] for word in words if word.startswith("-")}
        known = {"--help", "-h", "--version", "-V"}
        if used <= known and not command:
            continue
        assert command, words
        assert used <= known.union(*(option.opts for option in command.params)), words


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_program_shown_is_python(page):
    for text in blocks(page, "python", "py"):
        tree = ast.parse(text) if ">>>" not in text else ast.parse("")
        named = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
        ours = {n.attr for n in named if ast.unparse(n.value) == "weighbridge"}
        assert ours <= {*weighbridge.__all__, "__version__"}


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_session_shown_runs_as_written(page):
    text = "\n".join(blocks(page, "python", "pycon", "py"))
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_map_shown_parses_and_prints_itself(page):
    for text in blocks(page, "wmap"):
        table = WeightMap.parse(text, page.name)
        assert WeightMap.parse(str(table)) == table
        assert table.inverse().inverse() == table


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_make_target_shown_exists(page):
    shells = "".join(blocks(page, "sh", "shell", "console", "bash"))
    targets = re.findall(r"^(?:\$ )?make ([a-z-]+)", shells, re.MULTILINE)
    known = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(targets) <= set(known)


@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_every_benchmark_named_has_a_result(page):
    names = set(re.findall(r"benchmarks/((?:adapters/)?\w+)\.py", page.read_text()))
    assert {name for name in names if not (ROOT / "benchmarks" / f"{name}.py").exists()} == set()
    kept = {name: RESULTS / f"{name.replace('/', '_')}.json" for name in names}
    results = [WRITES_ELSEWHERE.get(name, path) for name, path in kept.items()]
    assert all(json.loads(path.read_text()) for path in results)


def test_figures_of_the_atlas_are_those_of_its_page():
    atlas = (ROOT / "docs" / "atlas.md").read_text()
    types, rows, *counts = re.findall(r"\d+", re.search(r"^\*\*\d+ types, .*\*\*$", atlas, re.M)[0])
    row = f"| atlas: {rows} tiny checkpoints of {types} types |"
    [figures] = [it for it in (ROOT / "docs" / "figures.md").read_text().splitlines() if row in it]
    assert re.findall(r"\d+", figures.removeprefix(row)) == counts
    right = re.search(r"\*\*(\d+) of \d+ types end in a directory that runs right", atlas)[1]
    assert f"| {right} run right, some repaired |" in README.read_text()
