"""JSON is read within limits; what nobody means is refused with its place, all of it together."""

from __future__ import annotations

import json
import math
import os
import tracemalloc

import pytest

from weighbridge.converters.documents import ANSWER, CONFIG, INDEX, Kind, parse_json, read_json
from weighbridge.converters.documents.flaws import DEPTH, DIGITS
from weighbridge.errors import LONGEST, BadInputError

REFUSED = {
    "opened only": ("[" * 5_000, "nested more than 64 levels deep"),
    "nested": ("[" * 5_000 + "]" * 5_000, "nested more than 64 levels deep"),
    "nested a little": ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), "[0][0][0]"),
    "objects": ('{"a":' * 500 + "1" + "}" * 500, "a.a.a"),
    "digits": (f'{{"a": [1, {"7" * 5_000}]}}', "a[1]: a number of 5,000 digits"),
    "some digits": (f'{{"a": -{"7" * (DIGITS + 1)}}}', f"a: a number of {DIGITS + 1} digits"),
    "digits in an exponent": ('{"a": 1e999}', "a: 1e999 is too large a number"),
    "NaN": ('{"a": {"b": NaN}}', "a.b: NaN is not a number"),
    "twice": ('{"a": {"b": 1, "b": 2}}', "a: b is named twice, for 1 and 2"),
    "twice at the top": ('{"b": "x", "b": [1]}', "b is named twice, for x and a list"),
    "half a character": ('{"a": "\\ud800"}', "a: '\\ud800' holds half a character"),
    "half a character in a key": ('{"a": {"\\udc00": 1}}', "a: '\\udc00' holds half a character"),
    "empty": ("", "not JSON (Expecting value: line 1, column 1)"),
    "cut off": ('{"a":\n  1', "not JSON (Expecting ',' delimiter: line 2, column 4)"),
    "not UTF-8": (b'{"a": "\xff"}', "not UTF-8 (byte 7)"),
    "mark": (b"\xef\xbb\xbf{}", "begins with a byte order mark; save it as plain UTF-8"),
    "UTF-16": ("{}".encode("utf-16"), "begins with a byte order mark"),
    "raw control character": ('{"a": "\x1b[31m"}', "not JSON (Invalid control character at"),
}


@pytest.mark.parametrize(("text", "what"), REFUSED.values(), ids=REFUSED)
def test_what_nobody_means_is_refused_with_its_place(text, what):
    with pytest.raises(BadInputError) as caught:
        parse_json(text, "some.json", CONFIG)
    assert str(caught.value).startswith(f"some.json: {what}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= LONGEST


GOOD = {
    "an unlimited length": {"model_max_length": int(1e30)},
    "text of digits": {"sha": "1" * 5_000},
    "a whole character in two halves": {"a": "\U0001f600"},
    "deep": json.loads("[" * DEPTH + "]" * DEPTH),
    "floats": {"a": [1e-12, 0.1, -3.5e300], "b": None, "c": True},
    "a value": 3,
}


@pytest.mark.parametrize("value", GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_what_is_meant_is_read_as_python_reads_it(value, ascii_only):
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only), "some.json") == value


def test_everything_wrong_is_told_together():
    with pytest.raises(BadInputError) as caught:
        parse_json('{"a": NaN, "b": [1e999], "c": {"d": 1, "d": 2}}', "some.json")
    assert str(caught.value).split("\n  ")[1:] == [
        "a: NaN is not a number",
        "b[0]: 1e999 is too large a number",
        "c: d is named twice, for 1 and 2",
    ]


def test_infinity_is_a_number_where_transformers_writes_it():
    assert parse_json('{"time_step_limit": [0.0, Infinity]}', "config.json", CONFIG) == {
        "time_step_limit": [0.0, math.inf]
    }
    with pytest.raises(BadInputError, match="a: -Infinity is not a number"):
        parse_json('{"a": -Infinity}', "index.json", INDEX)


def test_a_deep_document_is_refused_however_little_of_the_stack_is_left():
    def below(levels):
        return below(levels - 1) if levels else parse_json("[" * 900 + "]" * 900, "x", ANSWER)

    with pytest.raises(BadInputError, match="nested more than"):
        below(800)


def test_a_large_file_is_refused_unread(tmp_path):
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    tracemalloc.start()
    with pytest.raises(
        BadInputError, match=r"1,099,511,627,776 bytes are more than the 64,000,000"
    ):
        read_json(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_what_never_ends_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInputError, match="pipe: not a file with an end"):
        read_json(tmp_path / "pipe")


def test_the_size_is_that_of_its_kind(tmp_path):
    (tmp_path / "a.json").write_text('"123456"')
    assert read_json(tmp_path / "a.json", Kind("thing", 8, "cut it")) == "123456"
    with pytest.raises(BadInputError, match="8 bytes are more than the 7 that a thing may have"):
        read_json(tmp_path / "a.json", Kind("thing", 7, "cut it"))
