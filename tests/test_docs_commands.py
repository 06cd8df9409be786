"""Every command in the README and in docs/ runs, in the order of its page, on tiny models of its names."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.test_docs import PAGES, ROOT, blocks
from tests.test_examples import WORLDS, made_by, verbs, world_of
from weighbridge.cli import main

__all__ = ["world_of"]  # a fixture
PROGRAM = re.compile(
    r"(?:\$ )?(weighbridge|python -m weighbridge\.\S+|python (?=examples/)) *([^#]*)"
)
GIVEN = {"$MODEL": "all-MiniLM-L6-v2"}  # what the README's shell has set
BASE = "MODEL"  # the base of an adapter that a page has trained, which the run names


def lines(page: Path) -> list[tuple[str, str]]:
    """Return program and arguments of every command that PAGE shows."""
    shells = blocks(page, "sh", "shell", "console", "bash")
    shown = (line for shell in shells for line in shell.replace("\\\n", " ").splitlines())
    return [(match[1], match[2].strip()) for line in shown if (match := PROGRAM.match(line))]


SHOWING = [
    pytest.param(page, id=page.name, marks=pytest.mark.heavy) for page in PAGES if lines(page)
]


def enter(here: Path, world: Path | None, target: str) -> None:
    """Link what lies in WORLD into HERE, but for what is there already and what is to be made."""
    for item in here.iterdir():
        if item.is_symlink():
            item.unlink()
    for item in world.iterdir() if world else ():
        if item.name != target and not (here / item.name).exists():
            (here / item.name).symlink_to(item)


def words_of(line: str) -> tuple[list[str], str | None]:
    """Return the words of LINE, and the file that it writes to."""
    words = [GIVEN.get(word, word) for word in shlex.split(line)]
    if BASE in words:
        adapter = json.loads(Path(words[words.index(BASE) + 1], "adapter_config.json").read_text())
        words[words.index(BASE)] = adapter["model"]
    return (words[:-2], words[-1]) if ">" in words else (words, None)


def target_of(words: list[str]) -> str:
    """Return what the command of WORDS makes."""
    named = (command for name, command in verbs() if words[: len(name.split())] == name.split())
    return made_by(next(named), shlex.join(words))


@pytest.mark.parametrize("page", SHOWING)
def test_the_commands_of_a_page_run_as_written(page, world_of, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))  # users have one
    (tmp_path / "FOLDER").mkdir()  # of texts, where a page means one
    shutil.copy(page, tmp_path / "FOLDER")
    for program, line in lines(page):
        words, file = words_of(line)
        known = any(word in line for word in WORLDS) or "$MODEL" in line
        world = world_of(line) if known else None
        if program != "weighbridge":
            enter(tmp_path, None, "")
            words = [str(ROOT / it) if it.startswith("examples/") else it for it in words]
            subprocess.run([sys.executable, *program.split()[1:], *words], check=True)
            continue
        enter(tmp_path, world, target_of(words))
        importlib.invalidate_caches()
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, f"{line}\n{result.output}{result.exception!r}"
        if file:
            Path(file).write_text(result.stdout)
    for name in ("my_model", "my_port"):
        sys.modules.pop(name, None)
