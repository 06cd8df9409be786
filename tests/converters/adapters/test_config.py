"""Fields of a configuration are checked before they are used."""

from __future__ import annotations

import pytest

from weighbridge.converters.adapters.config import check_types, number
from weighbridge.errors import BadInputError


@pytest.mark.parametrize("value", [None, "8", 0, -1, True, float("inf"), float("nan"), [8]])
def test_what_is_no_positive_number_is_refused(value):
    with pytest.raises(BadInputError, match=r"r is .*, expected a positive number"):
        number({"r": value}, "r")


@pytest.mark.parametrize("value", [8, 0.5])
def test_a_positive_number_is_returned(value):
    assert number({"r": value}, "r") == value


def test_a_field_of_another_type_is_told_with_what_was_expected(tmp_path):
    check_types({"a": 1}, {"a": (int,)}, tmp_path)
    with pytest.raises(BadInputError, match=r"adapter_config.json: a is 'x', expected int or list"):
        check_types({"a": "x"}, {"a": (int, list)}, tmp_path)
