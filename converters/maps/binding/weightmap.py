"""A two-way table: which tensor of one side is which tensor of the other, and how its axes lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from ....errors import BadInputError, MapSyntaxError
from ...checkpoints.base import Header
from ...values import LowRank
from ..notation.expressions import Definition
from ..notation.parser import VERSION, Parser
from ..notation.rules import Pairing, Rule
from .binding import Given, Rules, bind
from .matching import Matcher
from .plan import Plan

TABLES: Final = Path(__file__).parent.parent / "tables"


@dataclass(frozen=True)
class WeightMap:
    """Rules that hold in both directions; torch names on the left, MLX names on the right.

    Attributes:
        rules: the rules in the order of the text.
        where: names for sizes that hold in all rules.
        name: where the map comes from, for messages.
        version: version of the notation.

    >>> text = "{m**}.conv.weight [out in width] <-> [out width in]"
    >>> print(WeightMap.parse(text).inverse())
    weighbridge map 1
    {m**}.conv.weight [out width in] <-> [out in width]
    """

    rules: tuple[Rule, ...]
    where: tuple[Definition, ...] = ()
    name: str = field(default="<map>", compare=False)
    version: int = VERSION

    @classmethod
    def parse(cls, text: str, name: str = "<map>") -> WeightMap:
        """Return the map that TEXT writes down.

        Raises:
            MapSyntaxError: the text is no map, or a rule in it cannot be followed both ways.
        """
        return parsed(text, name)

    @classmethod
    def load(cls, name_or_path: str | Path) -> WeightMap:
        """Return the table of that name, or the map in that file.

        Raises:
            BadInputError: neither is there.
        """
        table = TABLES / f"{name_or_path}.wmap"
        path = table if table.is_file() else Path(name_or_path)
        try:
            return cls.parse(path.read_text(encoding="utf-8"), str(name_or_path))
        except (OSError, UnicodeDecodeError) as error:
            known = sorted(path.stem for path in TABLES.glob("*.wmap"))
            near = get_close_matches(str(name_or_path), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"tables are {', '.join(known)}"
            raise BadInputError(f"no map {name_or_path} can be read ({error}); {hint}") from None

    def __str__(self) -> str:
        head = [f"weighbridge map {self.version}", *(f"where {d}" for d in self.where)]
        return "\n".join([*head, *map(str, self.rules)])

    def inverse(self) -> WeightMap:
        """Return the map that leads back."""
        rules = tuple(rule.inverse() for rule in self.rules)
        return replace(self, rules=rules, name=f"{self.name} (inverse)")

    def definitions(self, rule: Pairing) -> tuple[Definition, ...]:
        """Return the definitions that hold in RULE."""
        return (*self.where, *rule.where)

    def reads(self, name: str) -> bool:
        """Return whether a rule speaks of the tensor NAME of this map's left side.

        >>> WeightMap.parse("h.{n}.w <-> layers.{n}.weight").reads("h.3.w")
        True
        """
        return bool(Matcher(self.rules, "left")(name))

    def bind(
        self,
        headers: Mapping[str, Header],
        *,
        config: Mapping[str, Any] | None = None,
        sizes: Mapping[str, int] | None = None,
        updates: Mapping[str, LowRank] | None = None,
        target: Mapping[str, Header] | None = None,
    ) -> Plan:
        """Return what this map does to the tensors of HEADERS, from its left side to its right.

        A ``<->`` rule must match at least one tensor unless it is marked ``?`` or ``else``. A
        capture that is an axis runs from 0 without gaps; another one does where ``where`` gives its
        count. An alias (``==``) must have the dtype and the shape of the tensor that it equals; the
        bytes are compared in pass 2, before any is written.

        Args:
            headers: the source tensors.
            config: values for ``where``; a missing key is no error while shapes tell the size.
            sizes: sizes that neither tells, such as ``Plan.sizes`` of the way there.
            updates: low-rank updates by source name, to be merged in pass 2.
            target: what the target must be, in names and shapes.

        Raises:
            MismatchError: anything does not fit; carries all of it.
        """
        given = Given(config or {}, sizes or {}, updates or {}, target)
        return bind(Rules(self.name, self.rules, self.where), headers, given)

    def rename_updates(
        self,
        updates: Mapping[str, LowRank],
        headers: Mapping[str, Header],
        *,
        config: Mapping[str, Any] | None = None,
    ) -> dict[str, LowRank]:
        """Return an adapter's UPDATES under the names of the other side.

        Args:
            updates: by names of this side.
            headers: the base model of the updates, names of this side.
            config: of the base model.

        Raises:
            MismatchError: an update does not fit the base.
            UnsupportedError: a rule has no action on low-rank updates.
        """
        from ..execution.execution import apply

        renamed = apply(self.bind(headers, config=config), updates)
        return {name: value for name, value in renamed.items() if isinstance(value, LowRank)}


@lru_cache(maxsize=64)  # tables are read several times in each check
def parsed(text: str, name: str) -> WeightMap:
    """Return the map that TEXT, called NAME, writes down; see ``WeightMap.parse``."""
    try:
        source = Parser(text, name).map()
    except RecursionError:
        raise MapSyntaxError(f"{name}:1:1: brackets are nested too deeply") from None
    return WeightMap(source.rules, source.where, name, source.version)
