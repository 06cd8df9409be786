"""What a map does to one checkpoint: known in full before a byte is moved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...checkpoints.base import Header
from ...values import LowRank
from ..notation.axes import Axes
from ..notation.rules import Pairing, Term, first_line
from ..programs.computed import Computed


class Bound(NamedTuple):
    """A term of a rule, bound to tensors.

    Attributes:
        term: the term.
        names: its tensors; more than one where a capture is an axis, in the order of the index.
        axes: the axes of the tensors stacked.
        family: how many tensors there are, by each capture that is an axis.
    """

    term: Term
    names: tuple[str, ...]
    axes: Axes
    family: tuple[int, ...]


class Step(NamedTuple):
    """One instance of a rule.

    Attributes:
        rule: the rule, in the direction of the plan.
        sources: the terms of its left side.
        targets: the terms of its right side.
        sizes: the size of every axis.
        amounts: the value of every name in a change of value.
        identity: a name for the instance that is the same in both directions.
        copies: whether the targets are made of whole byte ranges of the sources; otherwise the
            tensors of the step are held in memory, one step at a time.
        exact: whether the way back gives the same bits.
    """

    rule: Pairing
    sources: tuple[Bound, ...]
    targets: tuple[Bound, ...]
    sizes: Mapping[str, int]
    amounts: Mapping[str, int | float]
    identity: str
    copies: bool
    exact: bool

    @property
    def source_names(self) -> tuple[str, ...]:
        """All tensors that the step reads."""
        return tuple(name for bound in self.sources for name in bound.names)

    @property
    def target_names(self) -> tuple[str, ...]:
        """All tensors that the step writes."""
        return tuple(name for bound in self.targets for name in bound.names)


class Dropped(NamedTuple):
    """A tensor that only one side has.

    Attributes:
        name: the tensor; a pattern where the side that has it was not there to look at.
        policy: ``recomputed``, ``original`` (the way back needs the original), ``tied`` (equal to
            the tensor after ``==``), ``needed`` (to be taken from the original now) or
            ``computed`` (made by a program from what is needed now).
        of: the tensor that a tied one equals, empty for the others.
    """

    name: str
    policy: str
    of: str = ""


@dataclass(frozen=True)
class Plan:
    """Every tensor paired, every shape checked, nothing read yet.

    Attributes:
        steps: what makes the targets, in the order of the layout.
        headers: the source.
        layout: the target, in order.
        sizes: sizes of axes within products and sums, which the way back may need; an axis whose
            size is not the same everywhere is listed as ``TENSOR:AXIS``.
        dropped: tensors that have no counterpart, and why.
        updates: low-rank updates to be merged, by source name.
    """

    steps: tuple[Step, ...]
    headers: Mapping[str, Header]
    layout: dict[str, Header]
    sizes: dict[str, int] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()
    updates: Mapping[str, LowRank] = field(default_factory=dict)

    @property
    def merged(self) -> tuple[str, ...]:
        """The source tensors that an update is merged into, sorted."""
        return tuple(sorted(self.updates))

    @property
    def renames_only(self) -> bool:
        """Whether all tensors stay byte for byte and shape for shape."""
        return not self.updates and all(step.rule.keeps_layout for step in self.steps)

    @property
    def ties(self) -> tuple[Dropped, ...]:
        """The tensors that must equal another one to be dropped."""
        return tuple(dropped for dropped in self.dropped if dropped.policy == "tied")

    def lines(self) -> list[str]:
        """Return the plan as lines of text, one per rule, for a dry run."""
        groups: dict[int, list[Step]] = {}
        for step in self.steps:
            groups.setdefault(id(step.rule), []).append(step)
        lines = [self._line(steps) for steps in groups.values()]
        lines += [DROPPED[policy].format(name, of) for name, policy, of in self.dropped]
        lines += [
            f"{name}: an update of rank {self.updates[name].rank} is merged" for name in self.merged
        ]
        return lines

    def _line(self, steps: list[Step]) -> str:
        ways = Counter("copied" if step.copies else "rearranged" for step in steps)
        way = ways.most_common(1)[0][0] if len(ways) == 1 else "copied or rearranged"
        rule = steps[0].rule
        if isinstance(rule, Computed):
            way = COMPUTED if not rule.undoable else "computed" if rule.forward else UNDONE
        sources = sum(len(step.source_names) for step in steps)
        size = sum(self.layout[name].nbytes for step in steps for name in step.target_names)
        targets = sum(len(step.target_names) for step in steps)
        lossy = "" if all(step.exact for step in steps) else ", not bit-exact"
        first = first_line(steps[0].rule)
        return f"{first}  # {sources} to {targets} tensors, {size:,} bytes, {way}{lossy}"


COMPUTED = "computed by a program (the way back needs the original checkpoint)"
UNDONE = "each the number of which its program makes what is there, or the nearest one"
DROPPED = {
    "computed": "{} -> dropped; a program made it, so the way back needs the original checkpoint",
    "recomputed": "{} -> dropped; the model recomputes it",
    "original": "{} -> dropped; the way back needs the original checkpoint",
    "tied": "{} -> dropped; it equals {}",
    "needed": "{} <- to be taken from the original checkpoint",
    "left out": "{} is left out; only the original checkpoint has it",
}
