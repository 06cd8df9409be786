"""YAML and TOML are read within limits; what nobody means is refused with its place."""

from __future__ import annotations

import pytest

from weighbridge.converters.documents.settings import parse_toml, parse_yaml, read_settings
from weighbridge.errors import LONGEST, BadInputError

BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}]\n"
    for before, name in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
)
YAML = {
    "opened only": ("[" * 20_000, "nested more than 64 levels deep (line 1, column 66)"),
    "braces": ("{a: " * 20_000, "nested more than 64 levels deep"),
    "dashes": ("- " * 20_000, "nested more than 64 levels deep"),
    "questions": ("? " * 20_000, "nested more than 64 levels deep"),
    "lines": ("[\n" * 20_000, "nested more than 64 levels deep"),
    "bomb": (BOMB, "an alias (*) is not read here"),
    "itself": ("a: &a [*a]", "an alias (*) is not read here"),
    "many": ("[" + "1," * 20_000 + "]", "more than 10,000 values"),
    "digits": ("a: [1, " + "1" * 5_000 + "]", "a[1]: a number of 5,000 digits"),
    "hexadecimal digits": ("a: 0x" + "f" * 5_000, "a: a number of 5,002 digits"),
    "sixties": ("a: 1" + ":1" * 5_000, "a: a number of 10,001 digits"),
    "no digits": ("a: 0x_", "a: 0x_ is not int"),
    "version": ("%YAML 1." + "9" * 5_000 + "\n---\na: 1", "not YAML, "),
    "escape": ('a: "\\UFFFFFFFF"', "not YAML, "),
    "half a character": ('a: "\\ud800"', "a: '\\ud800' holds half a character"),
    "infinity": ("a: .inf", "a: inf is not a number"),
    "nan": ("a: .nan", "a: nan is not a number"),
    "overflow": ("a: 1e999", "a: inf is not a number"),
    "twice": ("a: {b: 1, b: 2}", "a: b is named twice, for 1 and 2"),
    "a number as a key": ("1: a", "the key 1 is a number, not a text"),
    "a date as a key": ("{[a]: b}", "a key is not a text (a list)"),
    "code": ("!!python/object/apply:os.system [ls]", "the tag tag:yaml.org,2002:python/object"),
    "set": ("a: !!set {b}", "a: the tag tag:yaml.org,2002:set is not read here"),
    "pairs": ("a: !!pairs [b: 1]", "a: the tag tag:yaml.org,2002:pairs is not read here"),
    "wrong bool": ("a: !!bool x", "a: x is not bool"),
    "wrong int": ("a: !!int x", "a: x is not int"),
    "binary": ("a: !!binary YQ==", "a: the tag binary is not read here"),
    "own tag": ("a: !mine x", "a: the tag !mine is not read here"),
    "merge": ("a: {<<: {b: 1}}", "a: a key is not a text"),
    "two documents": ("a: 1\n---\nb: 2", "not YAML, but found another document"),
    "control character": ("a: \x1b[31m", "not YAML, "),
    "cut off": ("a: [1,\n", "not YAML, expected the node content"),
}
TOML = {
    "opened only": ("a = " + "[" * 20_000, "nested more than 64 levels deep"),
    "dots": ("a." * 2_000 + "a = 1", "a.a.a"),
    "digits": ("a = " + "1" * 5_000, "a number of too many digits"),
    "infinity": ("a = inf", "a: inf is not a number"),
    "nan": ("a = [1.0, nan]", "a[1]: nan is not a number"),
    "twice": ("a = 1\na = 2", "not TOML (Cannot overwrite a value"),
    "no TOML": ("a: 1", "not TOML ("),
}


@pytest.mark.parametrize(
    ("parse", "text", "what"),
    [(parse_yaml, *case) for case in YAML.values()]
    + [(parse_toml, *case) for case in TOML.values()],
    ids=[*(f"YAML {name}" for name in YAML), *(f"TOML {name}" for name in TOML)],
)
def test_what_nobody_means_is_refused_with_its_place(parse, text, what):
    with pytest.raises(BadInputError) as caught:
        parse(text, "some.file")
    assert str(caught.value).startswith(f"some.file: {what}")
    assert len(str(caught.value)) <= LONGEST


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("200", 200),
        ("1e-3", 0.001),
        ("'1e-3'", "1e-3"),
        ("[1, .5, yes, ~, x]", [1, 0.5, True, None, "x"]),
        ("a: &unused {b: 2020-01-31}", {"a": {"b": "2020-01-31"}}),
        ("a: !!str 1", {"a": "1"}),
        ("a: =", {"a": "="}),
        ('a: "\\U0001F600"', {"a": "\U0001f600"}),
    ],
)
def test_what_is_meant_is_read(text, value):
    assert parse_yaml(text, "some.yaml") == value


@pytest.mark.parametrize(("name", "text"), [("a.toml", "a = 1"), ("a.yaml", "a: 1"), ("a", "a: 1")])
def test_the_name_says_which_language_a_file_has(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_settings(tmp_path / name) == {"a": 1}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"[1]", "expected keys and values, found a list"),
        (b"", "expected keys and values, found null"),
        (b"a: \xff", "not UTF-8 (byte 3)"),
        (b"\xef\xbb\xbfa: 1", "begins with a byte order mark"),
        (b"#" * 300_000, "300,000 bytes are more than the 64,000"),
    ],
)
def test_a_file_of_settings_that_holds_none_is_refused(tmp_path, content, what):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(BadInputError) as caught:
        read_settings(tmp_path / "a.yaml")
    assert f"a.yaml: {what}" in str(caught.value)
