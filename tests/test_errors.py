"""Messages are short and legible, whatever they quote; programs get every problem."""

from __future__ import annotations

import pickle

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.errors import LONGEST, MismatchError, UnsupportedError, WeighbridgeError

HOSTILE = "\x1b[2J\x1b]0;title\x07\r\n\u202e\ud800\x9b31m\u2028"


@pytest.mark.parametrize("size", [LONGEST - 1, LONGEST, LONGEST + 1, 10_000_000])
def test_a_long_value_is_cut_in_the_middle(size):
    message = str(WeighbridgeError("start" + "x" * size + "end"))
    assert len(message) <= LONGEST
    assert message.startswith("startx")
    assert message.endswith("xend")
    assert (" ... " in message) == (size + len("startend") > LONGEST)


@pytest.mark.parametrize("kind", [WeighbridgeError, UnsupportedError])
def test_a_message_moves_no_cursor_and_stays_one_line(kind):
    message = str(kind(f"a{HOSTILE}b"))
    assert message.isprintable()
    assert message.encode()
    assert "\\x1b[2J" in message


def test_problems_are_lines_of_their_own_and_hold_no_others():
    lines = str(MismatchError("a\nb", [f"x{HOSTILE}y", "z"])).split("\n")
    assert [line[:3] for line in lines] == ["a; ", "  x", "  z"]
    assert all(map(str.isprintable, lines))


@pytest.mark.parametrize(
    ("count", "size"), [(1, 10_000_000), (10, 500), (49, 30), (51, 3), (100_000, 60), (3, 100_000)]
)
def test_a_list_ends_in_how_many_more(count, size):
    error = MismatchError("s" * size, ["p" * size] * count)
    head, *lines = str(error).split("\n  ")
    assert len(str(error)) <= LONGEST
    assert head.endswith(f": {count} problem{'s' * (count != 1)}")
    shown = len([line for line in lines if line.startswith("p")])
    assert lines[shown:] == ([f"and {count - shown:,} more"] if shown < count else [])
    assert shown >= 1
    assert error.problems == ("p" * size,) * count


def test_a_list_quoted_in_another_stays_on_its_line():
    inner = MismatchError("a does not fit", ["x", "y"])
    assert str(WeighbridgeError(f"b: {inner}")) == "b: a does not fit: 2 problems; x; y"


@pytest.mark.parametrize("argument", ["x" * 100_000, "\x1b[2Jx", "a\nb"])
@pytest.mark.parametrize("verb", [["inspect"], ["convert"], ["train", "t", "--backend"]])
def test_what_is_typed_wrong_is_quoted_short(argument, verb):
    result = CliRunner().invoke(main, [*verb, argument])
    assert result.exit_code in (2, 3)
    assert len(result.output) <= 2_400  # with the lines of usage
    assert "\x1b" not in result.output


def test_an_error_of_a_child_process_is_the_same_in_its_parent():
    error = MismatchError("a does not fit", ["x", "y"])
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.problems) == (MismatchError, str(error), ("x", "y"))
