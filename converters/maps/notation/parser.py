"""Read the text of a map; every error says FILE:LINE:COLUMN and shows the place.

::

    map         = ["weighbridge map 1"] {"where" definitions} {rule}
    rule        = ["?" | "else"] side "<->" side ["where" definitions]
                | ["?" | "else"] side ("=>" | "<=") side "by" program ["where" definitions]
                | name "->" policy | policy "<-" name | name "==" name
    side        = term {"," term}
    term        = (name | "same") ["[" {axis} "]"] {change}          (right: name may be left out)
    axis        = NAME | NUMBER | "(" axis {axis} ")" | "(" axis "+" axis {"+" axis} ")"
    change      = "+" (NUMBER | NAME) | "*" (NUMBER | NAME) | "as" DTYPE | "bits" DTYPE
    policy      = "recomputed" | "original"
    definitions = definition {"," definition};   definition = NAME "=" {NAME "="} (expression | words)
    words       = WORD "|" WORD {"|" WORD}
    expression  = integers and dotted configuration keys with + - * // ( )
    program     = step {";" step};   step = array {"," array} "=" NAME "(" [array {"," array}] ")" {argument}
    array       = "#" INTEGER (a source) | "$" INTEGER (a target) | NAME
    argument    = NUMBER | "true" | "false" | DTYPE | "[" {NUMBER} "]"

A rule starts in the first column; an indented line continues it. ``#`` starts a comment,
but for the sources of a step, such as ``#1`` in ``Add(#0, #1)``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ..programs.computed import Computed
from ..programs.programs import read_program
from .axes import UNIT, Atom, Axes, Axis, Product, Sum
from .expressions import ConfigKey, Definition, Expression, Literal, Operation, Words
from .names import Name, parse_name
from .rules import (
    POLICIES,
    RESERVED,
    Affine,
    Bits,
    Cast,
    Change,
    Drop,
    Pairing,
    Rule,
    Term,
    Tie,
)
from .scanner import END, IDENTIFIER, SPACE, Scanner

VERSION: Final = 1
NAME = re.compile(r"(?:[\w.\-/:]|\{[^{}\s]*\})+(?<!-)(?!>)")
CONFIG_KEY = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
WORD = re.compile(r"[\w\-]+")
INTEGER = re.compile(r"[0-9]{1,18}(?!\w)")
DEFINED = re.compile(r"[^\W\d]\w*[ \t]*=(?!=)")
CHANGE = re.compile(r"\+|\*|(?:as|bits)(?!\w)")


class Source(NamedTuple):
    """What the text of a map says."""

    rules: tuple[Rule, ...]
    where: tuple[Definition, ...]
    version: int


class Parser(Scanner):
    """A position in the text, and one method per line of the grammar."""

    def map(self) -> Source:
        """Parse a whole map."""
        version, where = VERSION, []
        if self.statement() and self.take("weighbridge"):
            self.expect("map", "`map`")
            version = self.version()
        self.statement()
        start = self.at
        while self.statement() and self.take("where"):
            where += self.definitions()
        defined = frozenset(name for definition in where for name in definition.names)
        rules = []
        while self.statement():
            rules.append(self.rule(defined))
        used = {name for rule in rules if isinstance(rule, Pairing) for name in rule.defined}
        for name in sorted(defined - used):
            self.fail(f"{name} is defined, but no rule uses it", start)
        return Source(tuple(rules), tuple(where), version)

    def version(self) -> int:
        """Parse the number of the grammar."""
        self.skip()
        at = self.at
        version = int(self.expect(INTEGER, "the version"))
        if version != VERSION:
            self.fail(
                f"this Weighbridge reads version {VERSION} of the notation, not {version}", at
            )
        return version

    def statement(self) -> bool:
        """Move to the next statement; return whether there is one."""
        self.skip()
        if self.at and not END.match(self.text, self.at) and self.text[self.at - 1] != "\n":
            self.fail(
                f"expected the end of the rule, found {self.ahead()}; rules start in column 1"
            )
        found = SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return self.at < len(self.text)

    def rule(self, defined: frozenset[str]) -> Rule:
        """Parse one rule; the names DEFINED for the whole map may be used in it."""
        start = self.at
        rule = self.drop_on_the_right() or self.any_other_rule()
        if flaw := rule.flaw(defined):
            self.fail(flaw, start)
        return rule

    def drop_on_the_right(self) -> Drop | None:
        """Parse ``policy <- name``."""
        start = self.at
        policy = self.take(re.compile("|".join(POLICIES)))
        if policy and self.take("<-"):
            return Drop(self.name(), policy, "right")
        self.at = start
        return None

    def any_other_rule(self) -> Rule:
        """Parse a rule that starts with its left side."""
        marker = self.take("?") or self.take("else") or ""
        left = self.terms(())
        term, at = left[0], self.at
        if self.take("<->"):
            right = self.terms(left)
            return Pairing(left, right, self.where(), marker)
        if arrow := self.take(re.compile("=>|<=")):
            return self.computed(left, arrow, marker)
        symbol = self.expect(re.compile("->|=="), "`<->`, `->` or `==`")
        if marker or left != (Term(term.name),):
            self.fail(f"`{symbol}` takes one plain name on its left", at)
        if symbol == "==":
            return Tie(term.name, self.name())
        return Drop(term.name, self.expect(re.compile("|".join(POLICIES)), _either(POLICIES)))

    def computed(self, left: tuple[Term, ...], arrow: str, marker: str) -> Computed:
        """Parse what follows the ARROW of a rule with a program."""
        right = self.terms(left)
        self.expect("by", "`by` and a program")
        program = read_program(self)
        return Computed(left, right, self.where(), marker, program, arrow)

    def where(self) -> tuple[Definition, ...]:
        """Parse the definitions of a rule, if it has any."""
        return tuple(self.definitions()) if self.take("where") else ()

    def terms(self, left: tuple[Term, ...]) -> tuple[Term, ...]:
        """Parse a side; LEFT is the other side, if it came before."""
        terms = [self.term(left)]
        while self.take(","):
            terms.append(self.term(left))
        return tuple(terms)

    def term(self, left: tuple[Term, ...]) -> Term:
        """Parse one tensor, whose name may be that of the only one on the LEFT."""
        self.skip()
        at = self.at
        same = bool(self.take("same"))
        borrowed = same or self.text[at : at + 1] == "["
        if borrowed and len(left) != 1:
            self.fail("`same` and a missing name stand for the only name on the left", at)
        name = left[0].name if borrowed else self.name()
        axes = self.axes()
        return Term(name, left[0].axes if same and axes is None else axes, self.changes())

    def name(self) -> Name:
        """Parse a tensor's name."""
        self.skip()
        at = self.at
        text = self.expect(NAME, "a tensor's name")
        if text in RESERVED:
            self.fail(f"`{text}` is a word of the notation", at)
        try:
            return parse_name(text)
        except ValueError as error:
            self.fail(str(error), at)

    def axes(self) -> Axes | None:
        """Parse the axes in brackets, if there are any."""
        if not self.take("["):
            return None
        axes = []
        while not self.take("]"):
            axes.append(self.axis())
        return tuple(axes)

    def axis(self) -> Axis:
        """Parse one axis."""
        if self.take("("):
            return self.group()
        if number := self.take(INTEGER):
            if int(number) == 0 or number[0] == "0":
                self.fail("an axis has a size of at least 1", self.at - len(number))
            return UNIT if number == "1" else Atom(number)
        return Atom(self.expect(IDENTIFIER, "an axis or `]`"))

    def group(self) -> Axis:
        """Parse what follows ``(``: a product or a sum."""
        items = [self.axis()]
        if self.take("+"):
            items.append(self.axis())
            while self.take("+"):
                items.append(self.axis())
            self.expect(")", "`+` or `)`; write a product within a sum in its own brackets")
            return Sum(tuple(items))
        while not self.take(")"):
            if self.take("+"):
                self.fail("a product within a sum needs its own brackets: ((a b) + c)", self.at - 1)
            items.append(self.axis())
        return Product(tuple(items)) if len(items) > 1 else items[0]

    def changes(self) -> tuple[Change, ...]:
        """Parse changes of value."""
        changes: list[Change] = []
        while symbol := self.take(CHANGE):
            changes.append(self.change(symbol))
        return tuple(changes)

    def change(self, symbol: str) -> Change:
        """Parse what follows the SYMBOL of a change of value."""
        if symbol in ("as", "bits"):
            return Cast(self.dtype()) if symbol == "as" else Bits(self.dtype())
        number = self.number()
        if number is None:
            return Affine(symbol, self.expect(IDENTIFIER, "a number or a name"))
        return Affine(symbol, number)

    def definitions(self) -> list[Definition]:
        """Parse definitions and the commas between them."""
        found = [self.definition()]
        while self.take(","):
            found.append(self.definition())
        return found

    def definition(self) -> Definition:
        """Parse names and the value that they share."""
        names = [self.expect(IDENTIFIER, "a name")]
        self.expect("=", "`=`")
        self.skip()
        while DEFINED.match(self.text, self.at):
            names.append(self.expect(IDENTIFIER, "a name"))
            self.expect("=", "`=`")
            self.skip()
        return Definition(tuple(names), self.words() or self.expression())

    def words(self) -> Words | None:
        """Parse two words or more, if they come next."""
        start = self.at
        words = [self.take(WORD)]
        while self.take("|"):
            words.append(self.expect(WORD, "a word"))
        if len(words) == 1:
            self.at = start
            return None
        return Words(tuple(word for word in words if word))

    def expression(self) -> Expression:
        """Parse sums and differences of products."""
        value = self.quotient()
        while symbol := self.take(re.compile(r"\+|-")):
            value = Operation(symbol, value, self.quotient())
        return value

    def quotient(self) -> Expression:
        """Parse products and whole quotients."""
        value = self.operand()
        while symbol := self.take(re.compile(r"\*|//")):
            value = Operation(symbol, value, self.operand())
        return value

    def operand(self) -> Expression:
        """Parse an integer, a key or an expression in brackets."""
        if self.take("("):
            value = self.expression()
            self.expect(")", "`)`")
            return value
        if number := self.take(INTEGER):
            return Literal(int(number))
        return ConfigKey(self.expect(CONFIG_KEY, "a configuration key, an integer or `(`"))


def _either(words: tuple[str, ...] | list[str]) -> str:
    return " or ".join(f"`{word}`" for word in words)
