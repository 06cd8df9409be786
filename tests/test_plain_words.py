"""Words that are ours alone are counted, and may only become fewer: ``plain_words.txt`` lists them."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIST = Path(__file__).with_name("plain_words.txt")
ROWS = [line.split(" ", 1) for line in LIST.read_text().splitlines() if line and line[0] != "#"]
WORDS = {kind: {w for k, line in ROWS if k == kind for w in line.split()} for kind, _ in ROWS}
PHRASES = re.compile("|".join(rf"\b{line}\b" for kind, line in ROWS if kind == "phrase"))
LEFT = {
    folder: int(number) for kind, row in ROWS if kind == "left" for folder, number in [row.split()]
}
FOLDERS = ("converters", "docs", "examples", "fixtures", "jobs", "parity", "trainers", "verbs")
GENERATED = re.compile(r"<!-- begin .*?<!-- end ", re.DOTALL)


def parts(identifier: str) -> list[str]:
    """Return the words that IDENTIFIER is made of.

    >>> parts("is_KinOf")
    ['is', 'kin', 'of']
    """
    return [part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", identifier)]


def names(tree: ast.Module) -> Iterator[str]:
    """Yield every name that TREE gives to something."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield every string in TREE, docstrings and the parts of f-strings too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def counted(path: Path) -> int:
    """Return how many words of ours stand in the file at PATH."""
    text = path.read_text()
    if path.suffix == ".md":
        return in_prose(GENERATED.sub("", text))
    tree = ast.parse(text)
    called = [part for name in [path.stem, *names(tree)] for part in parts(name)]
    ours = WORDS["anywhere"] | WORDS["name"]
    return sum(part in ours for part in called) + sum(map(in_prose, texts(tree)))


def in_prose(text: str) -> int:
    """Return how many words and phrases of ours TEXT has."""
    found = re.findall(r"[a-z]+", text.lower())
    return sum(word in WORDS["anywhere"] for word in found) + len(PHRASES.findall(text.lower()))


def files(folder: str) -> list[Path]:
    """Return the modules and pages in FOLDER; the README counts among the docs."""
    own = [p for suffix in ("py", "md") for p in (ROOT / folder).rglob(f"*.{suffix}")]
    pages = [ROOT / "README.md"] if folder == "docs" else []
    return [path for path in [*own, *pages] if path.name != "atlas.md"]


def counts() -> Counter[str]:
    """Return how many are left in each folder."""
    return Counter({folder: sum(map(counted, files(folder))) for folder in FOLDERS})


@pytest.mark.parametrize("folder", FOLDERS)
def test_words_of_our_own_only_become_fewer(folder):
    found = {str(p.relative_to(ROOT)): n for p in files(folder) if (n := counted(p))}
    assert sum(found.values()) <= LEFT[folder], found


def test_the_list_counts_what_it_should():
    assert in_prose("It vouches for nothing; the way home is weighed by Weighbridge.") == 3
    assert [parts(name) for name in ("kin_of", "KinStatus")] == [["kin", "of"], ["kin", "status"]]


if __name__ == "__main__":
    for folder, number in sorted(counts().items()):
        sys.stdout.write(f"left {folder} {number}\n")
