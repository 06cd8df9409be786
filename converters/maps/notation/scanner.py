"""A position in a text, the tokens that are read from it, and errors that show the place."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from ....errors import MapSyntaxError
from ...common.dtypes import CODE

BLANK: Final = re.compile(r"(?:[ \t\r]|\n(?=(?:[ \t\r]*\n)*[ \t]+[^\s]))*")
END: Final = re.compile(r"\s*(?:\n|\Z)")
AHEAD: Final = re.compile(r"[\w.{}*]+|\S")
SPACE: Final = re.compile(r"\s*")
IDENTIFIER: Final = re.compile(r"[^\W\d]\w*")
NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?(?!\w)")
# A comment, but not the source of a step: the `#1` of `Add(#0, #1)`.
COMMENT: Final = re.compile(r"([(,][ \t]*#[0-9]+(?=[ \t]*[,)]))|#[^\n]*")
DTYPES: Final = frozenset(dtype.name for dtype in CODE)


class Scanner:
    """A position in the text."""

    def __init__(self, text: str, file: str) -> None:
        self.text = COMMENT.sub(lambda found: found[1] or " " * len(found[0]), text)
        self.file = file
        self.at = 0

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise MESSAGE at the position AT, by default here."""
        at = self.at if at is None else at
        start = self.text.rfind("\n", 0, at) + 1
        line = self.text[start:].split("\n", 1)[0]
        place = f"{self.file}:{self.text.count(chr(10), 0, at) + 1}:{at - start + 1}"
        raise MapSyntaxError(f"{place}: {message}", [line.rstrip(), f"{' ' * (at - start)}^"])

    def skip(self) -> None:
        """Pass over spaces, and over a line's end where the next line is indented."""
        found = BLANK.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def take(self, token: str | re.Pattern[str]) -> str | None:
        """Return TOKEN and pass over it if it comes next."""
        self.skip()
        pattern = re.compile(literal(token)) if isinstance(token, str) else token
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def expect(self, token: str | re.Pattern[str], called: str) -> str:
        """Return TOKEN, which must come next and is CALLED so in the error."""
        found = self.take(token)
        if found is None:
            self.fail(f"expected {called}, found {self.ahead()}")
        return found

    def ahead(self) -> str:
        """Return the next token as an error would quote it."""
        if END.match(self.text, self.at):
            return "the end of the rule"
        found = AHEAD.match(self.text, self.at)
        return f"`{found[0]}`" if found else "the end of the text"

    def number(self) -> int | float | None:
        """Return a number and pass over it if one comes next."""
        text = self.take(NUMBER)
        if text is None:
            return None
        return float(text) if set(text) & set(".eE") else int(text)

    def dtype(self) -> str:
        """Return the name of a dtype, which must come next."""
        self.skip()
        at = self.at
        name = self.expect(IDENTIFIER, "a dtype")
        if name not in DTYPES:
            self.fail(f"`{name}` is no dtype; known are {', '.join(sorted(DTYPES))}", at)
        return name


def literal(token: str) -> str:
    """Return the expression for TOKEN; a word must end where it ends."""
    return re.escape(token) + (r"(?![\w.\-/:{])" if token.isalpha() else "")
