"""A golden of any shape is refused by the name of its field, before anything is run."""

from __future__ import annotations

import json

import pytest

from weighbridge.errors import BadInputError
from weighbridge.parity.goldens.golden import Golden

PORT = {"name": "x", "dtype": "float32", "shape": ["batch", 3], "role": "series", "upper": []}
GOOD = {
    "schema": 1,
    "spec": "m",
    "level": "verdict",
    "signature": {"inputs": [PORT], "outputs": [PORT]},
    "probes": [],
    "errors": {},
    "text": None,
    "provenance": {},
    "sketches": {},
}
WRONG = {
    "errors['a'][0] is 1.5, expected an object": {"errors": {"a": [1.5]}},
    "signature['inputs'] is 3, expected a list": {"signature": {"inputs": 3, "outputs": []}},
    "signature['inputs'][0]['dtype'] is 'x', expected a dtype": {
        "signature": {"inputs": [PORT | {"dtype": "x"}], "outputs": []}
    },
    "signature['inputs'][0]['shape'] is an object, expected a list": {
        "signature": {"inputs": [PORT | {"shape": {"a": 1}}], "outputs": []}
    },
    "sketches['w']['shape'][0] is a list, expected a whole number": {
        "sketches": {"w": {"shape": [[]]}}
    },
    "sketches['w']['hashes']['F16'] is an object, expected a text": {
        "sketches": {"w": {"hashes": {"F16": {}}}}
    },
    "text['readings'] is a list, expected an object": {"text": {"readings": []}},
    "spec is 1, expected a text": {"spec": 1},
}


@pytest.mark.parametrize("what", WRONG)
def test_a_field_of_another_type_is_named(tmp_path, what):
    (tmp_path / "golden.json").write_text(json.dumps(GOOD | WRONG[what]))
    with pytest.raises(BadInputError) as caught:
        Golden.load(tmp_path)
    assert what in str(caught.value)
    assert str(caught.value).endswith("; record the golden again")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", sorted(GOOD.keys() - {"text"}))
@pytest.mark.parametrize(
    "change", [lambda it, key: it.pop(key), lambda it, key: it.update({key: None})]
)
def test_a_field_that_is_not_there_is_one_line(tmp_path, key, change):
    content = dict(GOOD)
    change(content, key)
    (tmp_path / "golden.json").write_text(json.dumps(content))
    with pytest.raises(BadInputError):
        Golden.load(tmp_path)
