"""What onnxruntime says of a model that it refuses, without the places in its own source."""

from __future__ import annotations

import re
from typing import Final

from ...common.users_code import first_line

KIND: Final = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
OPENING: Final = re.compile(r"^(Load model from .*? failed:|Exception during initialization: )")
PLACE: Final = re.compile(r"\S+\.(?:cc|h):\d+ (?:\w+ (?=[\w:<>~]+\())?")  # a file, a line, a type
FUNCTION: Final = re.compile(r"[\w:<>~]+\(")


def reason(error: BaseException) -> str:
    """Return why onnxruntime raised ERROR, in one line.

    >>> reason(ValueError("[ONNXRuntimeError] : 1 : FAIL : /a/graph.cc:7 void a::b(const c<d(e)>&) No graph."))
    'No graph.'
    """
    text = OPENING.sub("", KIND.sub("", first_line(error)))
    place = PLACE.match(text)
    return _after_signature(text[place.end() :]) if place else text


def _after_signature(text: str) -> str:
    """Return TEXT after the C++ function that it may begin with."""
    found = FUNCTION.match(text)
    if not found:
        return text
    depth = 1
    for at in range(found.end(), len(text)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if not depth:
            return text[at + 1 :].removeprefix(" const").strip() or text
    return text
