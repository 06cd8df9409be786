"""Which C++ compilers MLX can use."""

from __future__ import annotations

import pytest

from weighbridge.trainers.steps.compiler import judge_version

VERSIONS = {
    "9": None,
    "12.2.0\n": None,
    "13": "g++ 13 is too new",
    "14.1": "g++ 14",
    "": "does not say",
}


@pytest.mark.parametrize(("text", "problem"), VERSIONS.items())
def test_versions_are_judged(text, problem):
    found = judge_version(text)
    assert found is None if problem is None else problem in found
