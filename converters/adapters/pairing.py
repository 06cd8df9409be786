"""Bring together what belongs together: both halves of every update, whatever their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from ...errors import BadInputError, MismatchError
from ..checkpoints import Checkpoint, Header
from ..common.dtypes import FLOATS
from ..values import Array, LowRank
from .forms import Form

Halves = dict[str, str]  # role -> tensor name
PARTS: Final = ("a", "b")
SETTINGS: Final = "adapter_config.json"


class Dialect(NamedTuple):
    """How a library names the tensors of an adapter.

    Attributes:
        name: the library.
        prefix: what stands before a module's path.
        leaves: role -> what stands after it. A role is ``a``, ``b`` or ``magnitude``, after a word
            and a colon if the update is of another kind than the rest: ``embedding:a``.
    """

    name: str
    prefix: str
    leaves: Mapping[str, str]

    def leaf(self, kind: str, role: str) -> str:
        """Return what stands after the path in the name of the tensor for ROLE."""
        return self.leaves.get(f"{kind}:{role}", self.leaves.get(role, f".{role}"))


class Terms(NamedTuple):
    """What a configuration says of one module."""

    rank: int
    scale: float
    magnitude: bool


class Pair(NamedTuple):
    """The tensors of one update.

    Attributes:
        module: its path in the file.
        kind: word before the colon of its roles; mostly empty.
        halves: role -> tensor name.
        form: how the halves lie.
        terms: what the configuration says of it.
        parameter: what it changes.
    """

    module: str
    kind: str
    halves: Mapping[str, str]
    form: Form
    terms: Terms
    parameter: str


class Found(NamedTuple):
    """The names of a file, sorted: modules by (path, kind), and what is no part of an update."""

    modules: Mapping[tuple[str, str], Halves]
    others: tuple[str, ...]


def group(names: Iterable[str], dialect: Dialect) -> Found:
    """Return which of NAMES belong together.

    >>> dialect = Dialect("mlx", "", {"a": ".lora_a", "b": ".lora_b"})
    >>> group(["q.lora_b", "q.lora_a", "q.bias"], dialect)
    Found(modules={('q', ''): {'a': 'q.lora_a', 'b': 'q.lora_b'}}, others=('q.bias',))
    """
    modules: dict[tuple[str, str], Halves] = {}
    others = []
    for name in sorted(names):
        roles = [role for role, leaf in dialect.leaves.items() if name.endswith(leaf)]
        if not roles or not name.startswith(dialect.prefix):
            others.append(name)
            continue
        kind, _, role = roles[0].rpartition(":")
        module = name.removeprefix(dialect.prefix).removesuffix(dialect.leaves[roles[0]])
        modules.setdefault((module, kind), {})[role] = name
    return Found(modules, tuple(others))


def require_tensors(checkpoint: Checkpoint) -> None:
    """Refuse a file without tensors.

    Raises:
        BadInputError: there are none.
    """
    if not checkpoint.headers:
        raise BadInputError(f"{checkpoint.path}: holds no tensors; save the adapter again")


def read_pairs(
    checkpoint: Checkpoint, dialect: Dialect, pairs: Iterable[Pair], problems: Iterable[str] = ()
) -> dict[str, LowRank]:
    """Return the updates of PAIRS by parameter.

    Headers are checked first; tensors are read only if nothing is wrong with them.

    Raises:
        MismatchError: there are PROBLEMS already, halves are missing, shapes do not go together, or
            numbers are not finite; all of them together.
    """
    pairs, found = list(pairs), list(problems)
    for pair in pairs:
        found += _problems(pair, checkpoint.headers, dialect)
    updates = {} if found else {pair.parameter: _update(checkpoint, pair) for pair in pairs}
    for pair in pairs:
        if updates and (bad := not_finite(updates[pair.parameter])):
            found.append(f"{dialect.prefix}{pair.module}: {bad}")
    if found:
        raise MismatchError(f"{checkpoint.path} is not a whole {dialect.name} adapter", found)
    return updates


def read_whole(checkpoint: Checkpoint, names: Mapping[str, str]) -> dict[str, Array]:
    """Return the tensors that NAMES calls so, by what it calls them.

    Raises:
        MismatchError: numbers are not finite.
    """
    saved = {new: checkpoint.read(old) for new, old in names.items()}
    bad = [f"{names[new]}: {what}" for new, array in saved.items() if (what := odd_numbers(array))]
    if bad:
        raise MismatchError(f"{checkpoint.path} holds numbers that no training leaves", bad)
    return saved


def odd_numbers(array: Array) -> str:
    """Say how many numbers of ARRAY are not finite; nothing if all are.

    >>> odd_numbers(np.array([1.0, np.nan, -np.inf]))
    '1 NaN and 1 infinite of 3 numbers'
    """
    if not np.issubdtype(array.dtype, np.floating) and array.dtype.kind in "iub":
        return ""
    nan, infinite = (int(np.count_nonzero(test(array))) for test in (np.isnan, np.isinf))
    return f"{nan} NaN and {infinite} infinite of {array.size} numbers" if nan or infinite else ""


def not_finite(update: LowRank) -> str:
    """Say which parts of UPDATE hold numbers that are not finite; nothing if all are."""
    parts = {"a": update.a, "b": update.b, "magnitude": update.magnitude}
    found = {role: odd_numbers(array) for role, array in parts.items() if array is not None}
    return "; ".join(f"{what} ({role})" for role, what in found.items() if what)


def _problems(pair: Pair, headers: Mapping[str, Header], dialect: Dialect) -> list[str]:
    """Return what is wrong with the update of PAIR."""
    wanted = (*PARTS, "magnitude") if pair.terms.magnitude else PARTS
    missing = [
        f"{dialect.prefix}{pair.module}{dialect.leaf(pair.kind, role)} is missing"
        for role in wanted
        if role not in pair.halves
    ]
    found = {role: headers[name] for role, name in pair.halves.items()}
    return missing or [
        f"{dialect.prefix}{pair.module}: {what}" for what in _misfits(found, pair.form, pair.terms)
    ]


def _misfits(found: Mapping[str, Header], form: Form, terms: Terms) -> list[str]:
    a, b = found["a"], found["b"]
    if len(a.shape) != form.axes or len(b.shape) != form.axes:
        what = "matrices" if form.axes == 2 else f"of {form.axes} axes"
        return [f"{a} and {b} are not {what}; only linear layers, embeddings and experts are read"]
    magnitude = found.get("magnitude")
    checks = (
        *_ranks(a, b, form, terms),
        (all(h.dtype in FLOATS for h in found.values()), f"not floating point ({a}, {b})"),
        (
            terms.magnitude or magnitude is None,
            f"has DoRA magnitudes, but {SETTINGS} says LoRA",
        ),
        (
            magnitude is None or magnitude.shape == (b.shape[form.out],),
            f"magnitudes {magnitude}, expected shape [{b.shape[form.out]}]",
        ),
    )
    return [what for holds, what in checks if not holds]


def _ranks(a: Header, b: Header, form: Form, terms: Terms) -> list[tuple[bool, str]]:
    """Return what must hold of the ranks of both halves, and what to say if it does not."""
    first, second = a.shape[form.rank[0]], b.shape[form.rank[1]]
    same = (first == second, f"the halves have ranks {first} and {second} ({a}, {b})")
    if form.shared:
        detail = f"{first} is not a multiple of rank {terms.rank} in {SETTINGS} ({a})"
        return [same, (first > 0 and first % terms.rank == 0, detail)]
    right = (first == terms.rank, f"rank {first}, but {SETTINGS} says {terms.rank}")
    if form.lead is None:
        return [same, right]
    counts = (a.shape[form.lead], b.shape[form.lead])
    lead = (counts[0] == counts[1], f"the halves are of {counts[0]} and {counts[1]} experts")
    return [same, right, lead]


def _update(checkpoint: Checkpoint, pair: Pair) -> LowRank:
    arrays = {role: checkpoint.read(name) for role, name in pair.halves.items()}
    a, b = pair.form.read(arrays["a"], arrays["b"], pair.terms.rank)
    return LowRank(a, b, pair.terms.scale, arrays.get("magnitude"))
