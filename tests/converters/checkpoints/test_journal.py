"""A journal gives back what was noted, whatever happened to its last lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.journal import Journal

NOTES = {"a": "xxh3:1", "ü\n": "xxh3:2", "c": "xxh3:3"}


def journal(folder, layout="L") -> Journal:
    return Journal(folder / ".model.journal", layout)


def test_without_a_journal_nothing_is_finished(tmp_path):
    assert journal(tmp_path).load() == {}


def test_what_was_noted_is_given_back(tmp_path):
    journal(tmp_path).start({"a": "xxh3:1"})
    for name in list(NOTES)[1:]:
        journal(tmp_path).add(name, NOTES[name])
    assert journal(tmp_path).load() == NOTES
    journal(tmp_path).remove()
    assert list(tmp_path.iterdir()) == []


def test_a_journal_of_another_layout_counts_for_nothing(tmp_path):
    journal(tmp_path).start(NOTES)
    assert journal(tmp_path, "M").load() == {}


@given(st.data())
def test_a_torn_journal_gives_back_whole_lines_only(tmp_path_factory, data):
    book = journal(tmp_path_factory.mktemp("j"))
    book.start(NOTES)
    whole = book.path.read_bytes()
    book.path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    found = book.load()
    assert found.items() <= NOTES.items()
    book.start(found)  # what comes after a torn line is not lost to it
    book.add("d", "xxh3:4")
    assert book.load() == {**found, "d": "xxh3:4"}


@pytest.mark.parametrize("junk", [b"\xff\xfe", b"[]", b"3", b'{"name": "x"}', b"\0" * 50])
def test_junk_between_lines_is_passed_over(junk, tmp_path):
    book = journal(tmp_path)
    book.start({"a": "xxh3:1"})
    with book.path.open("ab") as file:
        file.write(junk + b"\n")
    book.add("c", "xxh3:3")
    assert book.load() == {"a": "xxh3:1", "c": "xxh3:3"}
