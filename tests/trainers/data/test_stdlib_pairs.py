"""Pairs from Python source: what counts, what is cut, how it is split."""

from __future__ import annotations

import ast
import json
import textwrap

import pytest

from weighbridge.errors import TargetExistsError
from weighbridge.trainers.data.stdlib_pairs import extract_pairs, split_pairs, write_pairs

SOURCE = '''
class Shelf:
    @property
    async def first(self,
                    book):
        """Return the first
        book on it.

        More words that do not count.
        """
        # the reason
        one = book
        return one

def short(x):
    """Too short."""
    y = x
    return y

def one_line(x):
    """This has but one line of body."""
    return x

def nothing():
    """There is nothing else in here."""

def plain(x):
    y = x
    return y

def outer(x):
    """The outer one has an inner one."""
    def inner(y):
        """The inner one is a pair too."""
        z = y
        return z
    return inner
'''


@pytest.fixture
def library(tmp_path):
    root = tmp_path / "library"
    for name in ("b.py", "a/c.py", "site-packages/d.py", "a/test/e.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        changed = (
            SOURCE.replace("one", f"n{len(name)}")
            .replace("first", "last")
            .replace("inner", "small")
        )
        path.write_text(SOURCE if name == "b.py" else changed)
    (root / "broken.py").write_text("def (:")
    return root


def test_only_documented_functions_with_a_body_count(library):
    queries = [pair.query for pair in extract_pairs(library) if pair.module == "b.py"]
    assert queries == [
        "The outer one has an inner one.",
        "Return the first book on it.",
        "The inner one is a pair too.",
    ]


def test_a_document_is_signature_and_body_without_docstring(library):
    [pair] = [
        pair
        for pair in extract_pairs(library)
        if pair.query.startswith("Return") and pair.module == "b.py"
    ]
    assert pair.document == textwrap.dedent("""\
        async def first(self,
                        book):
            one = book
            return one""")


def test_no_text_is_in_two_pairs_and_no_test_code_in_any(library):
    pairs = extract_pairs(library)
    assert (
        len({pair.query for pair in pairs}) == len({pair.document for pair in pairs}) == len(pairs)
    )
    assert {pair.module for pair in pairs} == {"a/c.py", "b.py"}


@pytest.mark.heavy
def test_the_standard_library_gives_enough(tmp_path):
    counts = write_pairs(tmp_path)
    assert counts["test"] == 500
    assert counts["validation"] == 200
    assert counts["train"] > 2000
    modules = {}
    for split in counts:
        lines = (tmp_path / f"{split}.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
        rows = [json.loads(line) for line in lines]
        modules[split] = {row["module"] for row in rows}
        for row in rows[::50]:
            [function] = ast.parse(row["document"]).body
            assert ast.get_docstring(function) is None
    assert not modules["train"] & (modules["validation"] | modules["test"])
    assert not modules["validation"] & modules["test"]


def test_the_split_does_not_depend_on_the_order_of_the_modules(library):
    pairs = extract_pairs(library)
    one = split_pairs(pairs, validation=1, test=1)
    other = split_pairs(
        sorted(pairs, key=lambda pair: pair.module, reverse=True), validation=1, test=1
    )
    modules = [
        {name: {pair.module for pair in split} for name, split in s.items()} for s in (one, other)
    ]
    assert modules[0] == modules[1]
    assert (len(one["validation"]), len(one["test"]), one["train"]) == (1, 1, [])


def test_a_file_of_somebodys_own_is_kept(tmp_path):
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "shelf.py").write_text(SOURCE)
    out = tmp_path / "pairs"
    out.mkdir()
    (out / "validation.jsonl").write_text("mine\n")
    with pytest.raises(TargetExistsError, match=r"validation\.jsonl: there already"):
        write_pairs(out, tmp_path / "library")
    assert [path.name for path in out.iterdir()] == ["validation.jsonl"]
    assert (out / "validation.jsonl").read_text() == "mine\n"
    assert write_pairs(tmp_path / "new", tmp_path / "library") == write_pairs(
        tmp_path / "new", tmp_path / "library"
    )
