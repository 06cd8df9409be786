"""YAML as a tree of plain values: no anchors used again, no tags, no merging of keys.

The tree is made here and not by PyYAML's constructors, which compute dates, sets and numbers in other
bases, and fail on many of them in ways of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import yaml

from ...errors import BadInputError
from .flaws import DEPTH, DIGITS, TOO_DEEP, Flaw, name_of, named_twice
from .kinds import SETTINGS

NODES: Final = 10_000  # values and keys of one document
_PREFIX: Final = "tag:yaml.org,2002:"
_TREE: Final = frozenset((f"{_PREFIX}map", f"{_PREFIX}seq"))
_TEXTS: Final = frozenset(f"{_PREFIX}{name}" for name in ("str", "timestamp", "value"))
_READERS: Final[Mapping[str, str]] = {
    f"{_PREFIX}{name}": f"construct_yaml_{name}" for name in ("null", "bool", "int", "float")
}


class _ExcessError(yaml.MarkedYAMLError):
    """A document is YAML, but more of it than anybody writes."""


class _Loader(yaml.SafeLoader):
    """Builds the tree within limits; 1e-3 is a number as in YAML 1.2, not a text as in YAML 1.1."""

    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node of the text, unless there are too many already."""
        self.depth, self.nodes = self.depth + 1, self.nodes + 1
        if (what := self._excess()) is not None:
            raise _ExcessError(problem=what, problem_mark=self._mark())
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def _mark(self) -> Any:
        return self.peek_event().start_mark  # type: ignore[no-untyped-call]

    def _excess(self) -> str | None:
        if self.check_event(yaml.AliasEvent):
            return "an alias (*) is not read here; write the value itself"
        if self.depth > DEPTH + 1:
            return TOO_DEEP
        return f"more than {NODES:,} values" if self.nodes > NODES else None


_Loader.add_implicit_resolver(
    f"{_PREFIX}float",
    re.compile(r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$"),
    list("-+0123456789."),
)


def parse(text: str, where: object) -> Any:
    """Return the tree that TEXT, from WHERE, is; a ``Flaw`` stands for what is refused.

    Raises:
        BadInputError: it is not YAML.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except _ExcessError as error:
        raise BadInputError(f"{where}: {_reason(error)}; {SETTINGS.todo}") from None
    except yaml.YAMLError as error:
        raise BadInputError(f"{where}: not YAML, {_reason(error)}; {SETTINGS.todo}") from None
    except (ValueError, OverflowError) as error:  # of int() and chr(), in versions and escapes
        raise BadInputError(f"{where}: not YAML, {error}; {SETTINGS.todo}") from None
    return None if node is None else _value(loader, node)


def _reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:
        return str(error)
    problem = getattr(error, "problem", None) or getattr(error, "context", None)
    return f"{problem} (line {mark.line + 1}, column {mark.column + 1})"


def _value(loader: _Loader, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return _scalar(loader, node)
    if node.tag not in _TREE:
        return Flaw(f"the tag {node.tag} is not read here; leave it out")
    if isinstance(node, yaml.SequenceNode):
        return [_value(loader, child) for child in node.value]
    pairs = [(_value(loader, key), _value(loader, child)) for key, child in node.value]
    if wrong := [key for key, _ in pairs if isinstance(key, Flaw | dict | list)]:
        what = wrong[0].what if isinstance(wrong[0], Flaw) else name_of(wrong[0])
        return Flaw(f"a key is not a text ({what})")
    found = dict(pairs)
    return found if len(found) == len(pairs) else named_twice(pairs)


def _scalar(loader: _Loader, node: yaml.ScalarNode) -> Any:
    if node.tag in _TEXTS:
        return node.value
    if node.tag not in _READERS:
        return Flaw(f"the tag {node.tag.removeprefix(_PREFIX)} is not read here; leave it out")
    if len(node.value) > DIGITS:
        return Flaw(f"a number of {len(node.value):,} digits")
    try:
        return getattr(loader, _READERS[node.tag])(node)
    except (ValueError, KeyError):
        return Flaw(f"{node.value} is not {node.tag.removeprefix(_PREFIX)}")
