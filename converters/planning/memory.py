"""How much memory a job will need, known from headers alone and reported before it starts.

The figures are measured: ``benchmarks/memory_needs.py`` prints estimates beside the peaks of real runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

from ...errors import TooLittleMemoryError, WeighbridgeError
from ..checkpoints import Header
from ..common import memory
from ..common.memory import VARIABLE, Room, shown
from ..common.policy import PROBES, full_tokens
from ..common.steps import step
from ..models import PROGRAMS, Model

PACKED: Final = 2  # weights in a byte of a packed tensor, at 4 bits
QUICK: Final = 32  # tokens that a quick check reads
COPIES: Final = (
    40  # bytes for each output: the reference's, the source's and the candidate's, compared
)
SECONDS: Final = 2.5e-8  # of a processor for each weight, to read it for every run
PER_TOKEN: Final = 1.6e-10  # ... and for each token


def weights_of(headers: Iterable[Header]) -> int:
    """Return how many weights tensors with HEADERS hold, packed ones at 4 bits.

    >>> weights_of([Header("F32", (2, 3)), Header("U32", (2, 4))])
    70
    """
    return sum(it.nbytes * PACKED if it.dtype == "U32" else prod(it.shape) for it in headers)


def size_of(model: Model) -> int:
    """Return how many weights MODEL has."""
    if model.path is None:
        return module_size(model.factory)
    if model.framework == "mlprogram":
        return sum(it.stat().st_size for it in model.path.rglob("*") if it.is_file()) // 2
    return weights_of(model.checkpoint.headers.values())


def largest_of(model: Model) -> int:
    """Return how many weights the largest tensor of MODEL has."""
    return max((weights_of([it]) for it in model.checkpoint.headers.values()), default=0)


def module_size(module: Any) -> int:
    """Return how many weights a live MODULE has, of torch or MLX."""
    parameters = module.parameters()
    if not isinstance(parameters, dict):
        return sum(parameter.numel() for parameter in parameters)
    from mlx.utils import tree_flatten

    found: Any = tree_flatten(parameters)
    return sum(array.size for _, array in found)


def passes_by(model: Model) -> bool:
    """Say whether MODEL is never whole in memory when it is checked.

    An architecture with a table of ours runs in MLX as a capture, whose weights are in memory.
    """
    try:
        family = model.family
    except WeighbridgeError:  # said elsewhere, where the model is opened
        return False
    on_disk = model.path is not None and model.framework not in PROGRAMS
    return on_disk and family is not None and not family.map and not model.factory


def outputs_of(model: Model, tokens: int) -> int:
    """Return the bytes of MODEL's outputs for TOKENS, in float64 and as they are compared."""
    vocabulary = model.config.get("vocab_size")
    return COPIES * tokens * (vocabulary if isinstance(vocabulary, int) else 0)


class Cost(NamedTuple):
    """What one kind of work takes.

    Attributes:
        base: bytes of the program itself, its libraries loaded.
        each: bytes per weight.
        what: what these are.
        instead: what a user with less memory may do.
        count: how many weights of a model count.
    """

    base: float
    each: float
    what: str
    instead: str
    count: Callable[[Model], int] = size_of


COSTS: Final[Mapping[str, Cost]] = {
    "check": Cost(
        0.42e9,
        25,
        "both sides whole, the reference in float64",
        "write it with --check none, and check it on a machine with more",
    ),
    "check by pieces": Cost(
        0.8e9,
        8,
        "the largest tensor; all others pass by in pieces",
        "write it with --check none, and check it on a machine with more",
        largest_of,
    ),
    "merge into": Cost(0.45e9, 9, "the check of a quantized base", "merge it with --check none"),
    "record": Cost(0.45e9, 29, "the source whole, in float64 and float32", "record on a machine with more"),
    "export": Cost(0.7e9, 20, "the torch module, its graph and the package", "export on a machine with more"),
    "train": Cost(
        0.57e9, 41, "weights and gradients of both backends, two moments", "train adapters, or a smaller model"
    ),
    "train adapters on": Cost(0.57e9, 16, "the weights in both backends", "train a smaller model"),
    "infer the map of": Cost(
        0.5e9, 40, "both sides whole, torch's in float64", "infer it on a smaller model of the same code"
    ),
    "export to GGUF": Cost(
        0.07e9, 4, "in the largest tensor, held whole", "export on a machine with more", largest_of
    ),
}  # fmt: skip


def require_memory(work: str, *models: Model, quick: bool = False) -> None:
    """Refuse WORK, one of ``COSTS``, on the largest of MODELS if it can never fit.

    If it does not fit just now, stderr has a warning. QUICK says that a check runs one small probe.

    Raises:
        TooLittleMemoryError: there can never be as much memory as it needs.
    """
    pieces = work == "check" and all(map(passes_by, models))
    cost = COSTS["check by pieces" if pieces else work]
    weights, model = max(((cost.count(it), it) for it in models), key=lambda pair: pair[0])
    need = cost.base + cost.each * weights
    tokens = QUICK if quick else full_tokens(size_of(model)) or PROBES
    need += outputs_of(model, tokens) if pieces else 0
    message = (
        f"to {work} {model.spec} needs about {shown(need)} of memory at once"
        f" ({weights / 1e6:,.0f} million weights: {cost.what})"
    )
    memory.expect(message)
    if pieces:
        seconds = size_of(model) * (SECONDS + PER_TOKEN * tokens) / (os.cpu_count() or 1)
        step(f"{message} and about {max(1, round(seconds / 60))} min")
    there = memory.room()
    if need > there.limit:
        raise TooLittleMemoryError(
            f"{message}; {there.set_by} {shown(there.limit)}: {cost.instead},"
            f" or set {VARIABLE}=GB to count on more"
        )
    if need > there.free:
        warn(message, there)


def warn(message: str, there: Room) -> None:
    """Say on stderr that memory is short now, which other programs can change."""
    todo = "close other programs if it does not fit"
    sys.stderr.write(f"warning: {message}; {shown(there.free)} are free now: {todo}\n")
