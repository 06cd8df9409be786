"""Bring together what belongs together: both halves of every update, whatever their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ...errors import BadInputError, MismatchError
from ..checkpoints import Checkpoint, Header
from ..dtypes import FLOATS
from ..values import LowRank

Halves = dict[str, str]  # role -> tensor name
PARTS: Final = ("a", "b")


class Dialect(NamedTuple):
    """How a library names and lays out the tensors of an adapter.

    Attributes:
        name: the library.
        prefix: what stands before a module's path.
        leaves: role -> what stands after it.
        transposed: whether ``a`` is stored as ``(in, rank)`` and ``b`` as ``(rank, out)``.
    """

    name: str
    prefix: str
    leaves: Mapping[str, str]
    transposed: bool


class Terms(NamedTuple):
    """What a configuration says of one module."""

    rank: int
    scale: float
    magnitude: bool


TermsOf = Callable[[str], Terms]


def pair(checkpoint: Checkpoint, dialect: Dialect, terms_of: TermsOf) -> dict[str, LowRank]:
    """Return the updates in CHECKPOINT by weight name, in the order of their names.

    Headers are paired and checked first; tensors are read only if nothing is wrong.

    Raises:
        BadInputError: there are no tensors.
        MismatchError: halves are missing, shapes do not go together, or tensors are unknown.
    """
    if not checkpoint.headers:
        raise BadInputError(f"{checkpoint.path}: holds no tensors; save the adapter again")
    modules, problems = group(checkpoint.headers, dialect)
    for module, halves in modules.items():
        problems += _problems(module, halves, checkpoint.headers, dialect, terms_of(module))
    if problems:
        raise MismatchError(f"{checkpoint.path} is not a whole {dialect.name} adapter", problems)
    return {
        f"{module}.weight": _update(checkpoint, halves, dialect, terms_of(module))
        for module, halves in modules.items()
    }


def group(names: Iterable[str], dialect: Dialect) -> tuple[dict[str, Halves], list[str]]:
    """Return module -> role -> tensor name, and a problem for every name that has no role.

    >>> dialect = Dialect("mlx", "", {"a": ".lora_a", "b": ".lora_b"}, transposed=True)
    >>> group(["q.lora_b", "q.lora_a", "q.bias"], dialect)
    ({'q': {'a': 'q.lora_a', 'b': 'q.lora_b'}}, ['q.bias is not part of a mlx LoRA of linear layers'])
    """
    modules: dict[str, Halves] = {}
    problems = []
    for name in sorted(names):
        roles = [role for role, leaf in dialect.leaves.items() if name.endswith(leaf)]
        if not roles or not name.startswith(dialect.prefix):
            problems.append(f"{name} is not part of a {dialect.name} LoRA of linear layers")
            continue
        module = name.removeprefix(dialect.prefix).removesuffix(dialect.leaves[roles[0]])
        modules.setdefault(module, {})[roles[0]] = name
    return modules, problems


def _problems(
    module: str, halves: Halves, headers: Mapping[str, Header], dialect: Dialect, terms: Terms
) -> list[str]:
    """Return what is wrong with the update of MODULE."""
    wanted = (*PARTS, "magnitude") if terms.magnitude else PARTS
    missing = [
        f"{dialect.prefix}{module}{dialect.leaves[role]} is missing"
        for role in wanted
        if role not in halves
    ]
    found = {role: headers[name] for role, name in halves.items()}
    return missing or [
        f"{dialect.prefix}{module}: {what}" for what in _misfits(found, dialect, terms)
    ]


def _misfits(found: Mapping[str, Header], dialect: Dialect, terms: Terms) -> list[str]:
    a, b = found["a"], found["b"]
    if len(a.shape) != 2 or len(b.shape) != 2:
        return [f"{a} and {b} are not matrices; expert-wise updates are not supported"]
    ranks = (a.shape[1], b.shape[0]) if dialect.transposed else (a.shape[0], b.shape[1])
    out = b.shape[1 if dialect.transposed else 0]
    magnitude = found.get("magnitude")
    checks = (
        (ranks[0] == ranks[1], f"the halves have ranks {ranks[0]} and {ranks[1]} ({a}, {b})"),
        (ranks[0] == terms.rank, f"rank {ranks[0]}, but adapter_config.json says {terms.rank}"),
        (all(h.dtype in FLOATS for h in found.values()), f"not floating point ({a}, {b})"),
        (
            terms.magnitude or magnitude is None,
            "has DoRA magnitudes, but adapter_config.json says LoRA",
        ),
        (
            magnitude is None or magnitude.shape == (out,),
            f"magnitudes {magnitude}, expected shape [{out}]",
        ),
    )
    return [what for holds, what in checks if not holds]


def _update(checkpoint: Checkpoint, halves: Halves, dialect: Dialect, terms: Terms) -> LowRank:
    arrays = {role: checkpoint.read(name) for role, name in halves.items()}
    a, b = (arrays[role].T if dialect.transposed else arrays[role] for role in PARTS)
    return LowRank(a, b, terms.scale, arrays.get("magnitude"))
