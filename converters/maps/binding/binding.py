"""Pass 1: pair every tensor, check every shape, and refuse the whole job if anything is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from ....errors import MismatchError
from ...checkpoints.base import Header
from ...common.dtypes import FLOATS
from ...values import LowRank
from ..notation.definitions import Values, values
from ..notation.expressions import Definition
from ..notation.rules import Drop, Pairing, Rule, Tie, first_line
from ..programs.computed import Computed
from .instances import COMPARED, Instance, collect, gaps, nearest, unmatched
from .matching import Match, Matcher, allows, expectations
from .plan import Dropped, Plan, Step
from .stepping import make_step

Headers: TypeAlias = Mapping[str, Header]


class Rules(NamedTuple):
    """What a map says: its name, its rules, and the definitions that hold in all of them."""

    name: str
    rules: tuple[Rule, ...]
    where: tuple[Definition, ...]


class Given(NamedTuple):
    """What is known besides the source tensors; see ``WeightMap.bind``."""

    config: Mapping[str, Any]
    sizes: Mapping[str, int]
    updates: Mapping[str, LowRank]
    target: Headers | None


def bind(weight_map: Rules, headers: Headers, given: Given) -> Plan:
    """Return what the rules of WEIGHT_MAP do to the tensors of HEADERS; see ``WeightMap.bind``.

    Raises:
        MismatchError: anything does not fit; carries all of it.
    """
    binder = Binder(weight_map, headers, given)
    plan = binder.plan()
    binder.check_updates(plan)
    if given.target is not None:
        binder.check_target(plan, given.target)
    if binder.problems:
        summary = f"the tensors do not fit the map {weight_map.name}"
        raise MismatchError(summary, sorted(set(binder.problems)))
    return plan


class Binder:
    """The problems found so far, and what is needed to find them."""

    def __init__(self, weight_map: Rules, headers: Headers, given: Given) -> None:
        self.name, self.rules, where = weight_map
        self.headers, self.given = headers, given
        self.layout: dict[str, Header] = {}
        self.problems: list[str] = []
        self.computed: list[Dropped] = []
        self.stands_for: dict[str, str] = {}  # an original that is not here, by its alias that is
        self.values: dict[int, Values] = {
            number: values((*where, *rule.where), given.config)
            for number, rule in enumerate(self.rules)
            if isinstance(rule, Pairing)
        }
        self.expected = {number: expectations(found) for number, found in self.values.items()}
        self.here = Matcher(self.rules, "left", self.expected)
        self.there = Matcher(self.rules, "right", self.expected)

    def plan(self) -> Plan:
        """Pair everything; what does not fit is in ``problems``."""
        matches = self.match()
        instances = collect(self.rules, matches)
        self.problems += unmatched(
            self.rules, instances, sorted(self.headers.keys() - matches.keys())
        )
        self.problems += gaps(instances, self.expected)
        steps = [step for instance in instances if (step := self.step(instance))]
        return Plan(
            steps=tuple(steps),
            headers=self.headers,
            layout=self.layout,
            sizes=recorded_sizes(steps),
            dropped=(*self.dropped(matches), *self.computed, *self.needed()),
            updates=self.given.updates,
        )

    def match(self) -> dict[str, Match]:
        """Return the one rule that speaks of each tensor."""
        matches, loose = {}, []
        for name in self.headers:
            found = self.standing(name, self.here(name))
            if len(found) > 1:
                found = self.allowed(found)
            if len(found) == 1:
                matches[name] = found[0]
            elif found:
                rules = "; ".join(first_line(self.rules[match.rule]) for match in found)
                self.problems.append(f"{name} is matched by {len(found)} rules: {rules}")
            else:
                loose.append(name)
        self.refuse_wrong_side(loose)
        pairings = (rule for rule in self.rules if isinstance(rule, Pairing))
        patterns = [str(term.name) for rule in pairings for term in rule.left]
        for at, name in enumerate(loose):
            hint = nearest(name, patterns) if at < COMPARED else ""
            self.problems.append(f"{name} {self.headers[name]} is in no rule{hint}")
        return matches

    def standing(self, name: str, found: list[Match]) -> list[Match]:
        """Return FOUND, or what fits the original where NAME is the only one of the two that is here.

        `safetensors.torch.save_model` keeps one name of a shared tensor, whichever comes first.
        """
        rule = self.rules[found[0].rule] if len(found) == 1 else None
        if not isinstance(rule, Tie):
            return found
        original = rule.original.fill(found[0].captures)
        wanted = [] if original in self.headers else self.here(original)
        if not wanted or self.stands_for.setdefault(original, name) != name:
            return found
        return wanted

    def allowed(self, found: list[Match]) -> list[Match]:
        """Return those matches that the definitions of their rules allow, all if they allow none."""
        fits = (
            match for match in found if allows(self.expected.get(match.rule, {}), match.captures)
        )
        return list(fits) or found

    def refuse_wrong_side(self, loose: list[str]) -> None:
        """Refuse tensors that fit the other side of the map better."""
        if not loose:
            return
        known = sum(bool(self.there(name)) for name in self.headers)
        total = len(self.headers)
        if total - known < len(loose) and 2 * known >= total:
            side = f"{known} of {total}"
            raise MismatchError(
                f"wrong direction: {side} tensors have the names that the map {self.name} leads"
                " to, as if they were converted already; go the other way, by the inverse map",
                [f"{n} is a name of the other side" for n in sorted(loose) if self.there(n)],
            )

    def step(self, instance: Instance) -> Step | None:
        """Return the step of INSTANCE and note its targets, or note why there is none."""
        if _leads_nowhere(instance.rule):
            self.problems += instance.missing({})
            self.computed += _without_way(instance)
            return None
        known = self.values[instance.number]
        made = make_step(instance, self.headers, known, self.given.sizes)
        if isinstance(made, list):
            self.problems += made
            return None
        for name, header, captures in made.targets:
            self.place(name, header, instance.number, captures)
        return made.step

    def place(self, name: str, header: Header, number: int, captures: dict[str, str]) -> None:
        """Put a target into the layout if the way back leads to where it came from."""
        if name in self.layout:
            self.problems.append(f"{name} is made twice, the second time by {self.line(number)}")
        back = self.there(name)
        if len(back) > 1:
            back = self.allowed(back)
        if [(match.rule, match.captures) for match in back] != [(number, captures)]:
            others = " and ".join(self.line(match.rule) for match in back)
            self.problems.append(
                f"{name} could not come back: {self.line(number)} makes it, and {others} reads it"
            )
        self.layout[name] = header

    def line(self, number: int) -> str:
        """Return rule NUMBER as a problem quotes it."""
        return f"`{first_line(self.rules[number])}`"

    def dropped(self, matches: Mapping[str, Match]) -> Iterator[Dropped]:
        """Yield the tensors that have no counterpart; note ties that cannot hold."""
        for name, match in matches.items():
            rule = self.rules[match.rule]
            if isinstance(rule, Drop):
                yield Dropped(name, rule.policy)
            elif isinstance(rule, Tie):
                original = rule.original.fill(match.captures)
                original = self.stands_for.get(original, original)
                if original not in self.headers:
                    self.problems.append(f"{name} is tied to {original}, which is missing")
                elif self.headers[name] != self.headers[original]:
                    pair = f"{self.headers[name]} and {self.headers[original]}"
                    self.problems.append(f"{name} is tied to {original}, but they are {pair}")
                yield Dropped(name, "tied", original)

    def needed(self) -> Iterator[Dropped]:
        """Yield the tensors of the other side that only the original checkpoint has."""
        rules = (rule for rule in self.rules if isinstance(rule, Drop))
        patterns = [rule for rule in rules if (rule.side, rule.policy) == ("right", "original")]
        if self.given.target is None:
            yield from (Dropped(str(rule.name), "needed") for rule in patterns)
            return
        for name in self.given.target:
            if any(self.rules[match.rule] in patterns for match in self.there(name)):
                yield Dropped(name, "needed")

    def check_updates(self, plan: Plan) -> None:
        """Note the updates that change no tensor, or one of another shape."""
        dropped = {name: policy for name, policy, _ in plan.dropped}
        computed = {
            name: step.rule
            for step in plan.steps
            if plan.updates and isinstance(step.rule, Computed) and step.rule.forward
            for name in step.source_names
        }
        for name, update in plan.updates.items():
            header = self.headers.get(name)
            if header is None:
                hint = nearest(name, self.headers)
                self.problems.append(f"{name} has an update, but no such tensor is here{hint}")
            elif name in dropped:
                self.problems.append(f"{name} has an update, which would be lost: {dropped[name]}")
            elif name in computed:
                rule = first_line(computed[name])
                self.problems.append(f"{name} has an update, but `{rule}` computes with it")
            elif header.shape != update.shape or header.dtype not in FLOATS:
                made = list(update.shape)
                self.problems.append(f"{name} is {header}, but its update is for a weight {made}")

    def check_target(self, plan: Plan, target: Headers) -> None:
        """Note where the layout is not the TARGET, in names and shapes."""
        spare = plan.layout.keys() - target.keys()
        for name in spare:
            others = target.keys() - plan.layout.keys() if len(spare) <= COMPARED else ()
            hint = nearest(name, others)
            self.problems.append(f"{name} {plan.layout[name]} is not in the target{hint}")
        for name, header in target.items():
            made = plan.layout.get(name)
            if made is None and not self.may_lack(name):
                self.problems.append(f"{name} {header} is in the target, but no rule makes it")
            elif made is not None and made.shape != header.shape:
                shapes = f"expected {list(header.shape)}, found {list(made.shape)}"
                self.problems.append(f"{name} has another shape than the target: {shapes}")

    def may_lack(self, name: str) -> bool:
        """Return whether a rule says that the target's NAME is not made."""
        rules = [self.rules[match.rule] for match in self.there(name)]
        return any(isinstance(rule, Drop | Tie) or _leads_nowhere(rule) for rule in rules)


def _leads_nowhere(rule: Rule) -> bool:
    """Return whether RULE says how the tensors here were computed, so that none can be made."""
    return isinstance(rule, Computed) and not rule.forward and not rule.undoable


def _without_way(instance: Instance) -> Iterator[Dropped]:
    """Yield the tensors that a program made, then those that it made them from, or their family."""
    made = (name for members in instance.members for name in members.values())
    yield from (Dropped(name, "computed") for name in made)
    yield from (Dropped(instance.fill(term), "needed") for term in instance.rule.right)


def recorded_sizes(steps: list[Step]) -> dict[str, int]:
    """Return the sizes within products and sums, by axis, or by tensor and axis where they vary."""
    found: dict[str, dict[str, int]] = {}
    for step in steps:
        for axis in step.rule.compound:
            found.setdefault(axis, {})[step.identity] = step.sizes[axis]
    sizes = {}
    for axis, by_tensor in sorted(found.items()):
        if len(set(by_tensor.values())) == 1:
            sizes[axis] = next(iter(by_tensor.values()))
        else:
            sizes |= {f"{tensor}:{axis}": size for tensor, size in by_tensor.items()}
    return sizes
