"""Infer a map between a torch model and somebody's port of it: structure, names, values, outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ....errors import BadInputError, MismatchError
from ...common.dtypes import FLOATS
from ..binding.weightmap import WeightMap
from .absent import drops, folded_rules
from .balance import Balance, balances
from .evidence.evidence import Evidence, gather
from .evidence.probing import Runs
from .evidence.remaining import pair_remaining
from .families import Family, fold
from .links import Resolved, links_of, shown
from .matching import Matching, Pair, spoken
from .parts import alignments, parts_of, strangeness
from .sides import Side
from .writing import write

# How much is folded on each side; the first combination in which both sides have the same pieces.
FOLDS: Final = (("all", "all"), ("segments", "all"), ("all", "segments"), ("none", "none"))
SHOWN: Final = 4
NEAR: Final = 0.3  # layouts whose strangeness differs by less are both likely
MUTE: Final = frozenset({"weight", "bias", "layers"})  # concepts that say little of a pair


class Guess(NamedTuple):
    """A pair that is not proven.

    Attributes:
        left: of torch, stars for indices.
        right: of the candidate.
        why: what speaks for it.
        alternatives: what else it could be, the likeliest first.
        ambiguous: whether one of these is about as likely.
    """

    left: str
    right: str
    why: str
    alternatives: tuple[str, ...]
    ambiguous: bool

    def __str__(self) -> str:
        """Return it for a reader.

        >>> print(Guess("h.*.q", "layers.*.k", "both say 0", ("layers.*.q", "layers.*.v"), True))
        h.*.q <-> layers.*.k (both say 0); or layers.*.q, layers.*.v
        """
        others = f"; or {', '.join(self.alternatives[:3])}" if self.alternatives else ""
        return f"{self.left} <-> {self.right} ({self.why}){others}"


@dataclass(frozen=True)
class Draft:
    """A map, and how much of it is known.

    Attributes:
        text: the map in the notation, how each rule is known in comments.
        guesses: what is not proven.
        proofs: tensors of torch by proof: ``value``, ``outputs``, ``shape``, ``guess``.
        notes: what a reader should know of the whole.
    """

    text: str
    guesses: tuple[Guess, ...]
    proofs: Mapping[str, int]
    notes: tuple[str, ...] = ()

    @property
    def ambiguous(self) -> tuple[Guess, ...]:
        """The guesses for which something else is about as likely."""
        return tuple(guess for guess in self.guesses if guess.ambiguous)


class Problem(NamedTuple):
    """Both sides folded, with the cuts that make them equal.

    Attributes:
        left: families of torch.
        right: families of the candidate.
        options: sets of cuts.
        dropped: rules for tensors of torch that the candidate has not.
    """

    left: list[Family]
    right: list[Family]
    options: list[Balance]
    dropped: tuple[str, ...]


def infer(left: Side, right: Side, runs: Runs | None = None) -> Draft:
    """Return the likeliest map from LEFT, a torch model, to RIGHT, a port of it.

    Args:
        left: the torch side.
        right: the candidate; with ``read`` if it was converted, so that its values mean something.
        runs: both modules, where there are any.

    Raises:
        BadInputError: a side has no weights, or the two cannot be the same model.
    """
    for side in (left, right):
        if not side.floats():
            raise BadInputError(f"{side.spec}: there are no floating-point weights in it to pair")
    problem, known = best_known(left, right, runs)
    balance, pairs = by_names(problem, known)
    resolved, guesses = resolve(pairs, known, balance, problem)
    text = checked_text(resolved, problem, left, right)
    proofs = Counter[str]()
    for pair in resolved:
        if pair.left.at == 0:
            proofs[pair.proof] += sum(1 for _ in pair.left.family.names())
    return Draft(
        head(left, right, proofs, known.notes) + text, tuple(guesses), proofs, tuple(known.notes)
    )


def best_known(left: Side, right: Side, runs: Runs | None) -> tuple[Problem, Evidence]:
    """Return both sides folded in the way in which most is proven, and what is.

    Blocks may stand in another order in the candidate, so that nothing agrees while they are folded.

    Raises:
        BadInputError: there is no way.
    """
    held = (left.values(), right.values())
    both = (held[0], held[1]) if held[0] and held[1] else None
    best: tuple[Problem, Evidence] | None = None
    for problem in poses(left, right):
        found = gather((problem.left, problem.right), problem.options, both, runs)
        if best is None or found.balance:
            best = problem, found
        if found.balance or not (both or runs):
            break
    if best is None:
        raise BadInputError(unequal(left, right))
    return best


def poses(left: Side, right: Side) -> Iterator[Problem]:
    """Yield both sides, folded ever less, with the cuts that make them equal."""
    for dropped in drops(left):
        shapes = {name: shape for name, shape in left.floats().items() if name not in dropped}
        found = False
        for mine, theirs in FOLDS:
            families = fold(shapes, mine), fold(right.floats(), theirs)
            if options := balances(*families):
                found = True
                yield Problem(*families, options, tuple(folded_rules(dropped)))
        if found:
            return


def unequal(left: Side, right: Side) -> str:
    """Say in one line why no pairing is possible."""
    mine, theirs = (
        Counter(tuple(sorted(s)) for s in side.floats().values()) for side in (left, right)
    )
    spare = [
        "; ".join(
            f"{name} {list(shape)}"
            for name, shape in list(side.floats().items())
            if (own - other)[tuple(sorted(shape))]
        )
        for side, own, other in ((left, mine, theirs), (right, theirs, mine))
    ]
    cut = [text if len(text) < 160 else f"{text[:160]} ..." for text in spare]
    return (
        f"{left.spec} and {right.spec} cannot be the same model: {mine.total()} and {theirs.total()}"
        f" tensors, whose sizes match in no way. Left over of {left.spec}: {cut[0] or 'none'};"
        f" of {right.spec}: {cut[1] or 'none'}"
    )


def by_names(problem: Problem, known: Evidence) -> tuple[Balance, list[Pair]]:
    """Pair everything by names and structure, around what is known; the best set of cuts wins."""
    options = [known.balance] if known.balance else problem.options
    tried = []
    for balance in options:
        parts = parts_of(problem.left, balance.left), parts_of(problem.right, balance.right)
        proven = {row: pair.column for row, pair in known.pairs.items()}
        pairs = Matching(*parts, proven, known.hints).run()
        tried.append((sum(min(pair.score, 10) for pair in pairs) / len(pairs), balance, pairs))
    _, balance, pairs = max(tried, key=lambda row: row[0])
    return balance, pairs


def resolve(
    pairs: Sequence[Pair], known: Evidence, balance: Balance, problem: Problem
) -> tuple[list[Resolved], list[Guess]]:
    """Choose a layout for every pair, and say what is only a guess."""
    parts = parts_of(problem.left, balance.left), parts_of(problem.right, balance.right)
    place = {part: at for at, part in enumerate(parts[1])}
    pair_remaining(known, parts, {row: place[pair.right] for row, pair in enumerate(pairs)})
    resolved, guesses = [], []
    alone = len(problem.options) == 1
    for row, pair in enumerate(pairs):
        proven = known.pairs.get(row)
        if proven:
            pair = pair._replace(right=parts[1][proven.column])  # noqa: PLW2901
            made = Resolved(
                pair.left, pair.right, proven.way, proven.proof, proven.note, proven.change
            )
        else:
            made = guessed(pair, alone=alone)
        if made.proof == "guess":
            guesses.append(guess_of(made, pair, tried=bool(proven)))
            made = made._replace(note=sentence(guesses[-1]))
        resolved.append(made)
    return resolved, guesses


def guessed(pair: Pair, *, alone: bool) -> Resolved:
    """Return a pair in its likeliest layout; by shape if there is nothing else it could be."""
    ways = alignments(pair.left, pair.right)
    forced = not pair.rivals and len(ways) == 1 and not pair.left.cut and not pair.right.cut
    return Resolved(pair.left, pair.right, ways[0], "shape" if forced and alone else "guess")


def guess_of(made: Resolved, pair: Pair, *, tried: bool) -> Guess:
    """Describe a pair that is not proven."""
    left, right = made.left, made.right
    if tried:
        return Guess(shown(left), shown(right), made.note, (), ambiguous=True)
    ways = alignments(left, right)
    near = [
        w
        for w in ways[1:]
        if strangeness(left, right, w) - strangeness(left, right, ways[0]) < NEAR
    ]
    others = [shown(part) for part in pair.rivals[:SHOWN]] + [
        "the same with axes in another order"
    ] * bool(near)
    others += ["another order of pieces"] * bool(left.cut or right.cut)
    vague = pair.ambiguous or bool(near)
    return Guess(shown(left), shown(right), reason(pair), tuple(others), vague)


def reason(pair: Pair) -> str:
    """Say what speaks for a pair."""
    shared = [
        c for c in dict.fromkeys(spoken(pair.left)) if c in spoken(pair.right) and c not in MUTE
    ]
    names = f"both say {', '.join(shared[:3])}" if shared else "by its surroundings"
    return f"{names}, ahead by {pair.margin:.2f}" if pair.rivals else f"{names}, alone in its sizes"


def sentence(guess: Guess) -> str:
    """Return a guess as a comment."""
    others = f"; or {', '.join(guess.alternatives)}" if guess.alternatives else ""
    return f"{'AMBIGUOUS, ' if guess.ambiguous else ''}{guess.why}{others}"


def head(left: Side, right: Side, proofs: Mapping[str, int], notes: Sequence[str]) -> str:
    """Return the comment at the top of a map."""
    counts = ", ".join(f"{count} by {proof}" for proof, count in sorted(proofs.items()))
    lines = [
        f"Inferred from {left.spec} and {right.spec}; tensors known: {counts}.",
        "A guess is only a guess until parity passes with this map.",
        *notes,
    ]
    return "".join(f"# {line}\n" for line in lines)


def checked_text(resolved: Sequence[Resolved], problem: Problem, left: Side, right: Side) -> str:
    """Return the text of the map, folded if it then still says the same.

    Raises:
        MismatchError: the map does not lead from one side to the other.
    """
    links = links_of(resolved)
    target = {n: head for n, head in right.headers.items() if head.dtype in FLOATS}
    for folded in (True, False):
        text = write(links, problem.dropped, fold=folded)
        try:
            WeightMap.parse(text, "inferred").bind(left.headers, target=target)
        except MismatchError:
            if not folded:
                raise
        else:
            return text
    raise AssertionError
