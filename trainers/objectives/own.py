"""The parameters that an objective has besides those of the model, such as a learnable temperature."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from ...errors import MismatchError, UnsupportedError
from ..adapters import select_parameters

PREFIX: Final = "model."  # of the model's own names inside its loss module
NAMED: Final = "objective."  # of patterns that name the objective's own
FILE: Final = (
    "objective.safetensors"  # of a run, beside the model or adapter that does not hold them
)
T = TypeVar("T")


def own_parameters(module: Any) -> dict[str, Any]:
    """Return the parameters that train of MODULE, an objective's, and are none of its model's, by name."""
    return {
        name: it
        for name, it in module.named_parameters()
        if it.requires_grad and not name.startswith(PREFIX)
    }


def parted(parameters: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """Return PARAMETERS of a loss module as those of the model, and the objective's own."""
    own = {name: it for name, it in parameters.items() if not name.startswith(PREFIX)}
    return {name: it for name, it in parameters.items() if name not in own}, own


def select_in(names: Iterable[str], patterns: Sequence[str], setting: str) -> set[str]:
    """Return which NAMES, of parameters in a loss module, PATTERNS of SETTING mean.

    The model's go by the names that they have there, the objective's own by these after ``objective.``.

    Raises:
        MismatchError: patterns that mean nothing, with the nearest name.

    >>> sorted(select_in(["model.head.bias", "mix.bias", "mix.weight"], ["head", "objective.*.bias"], "freeze"))
    ['mix.bias', 'model.head.bias']
    """
    model, own = parted({name: name for name in names})
    known = {name.removeprefix(PREFIX): name for name in model}
    known |= {NAMED + name: name for name in own}
    return {known[it] for it in select_parameters(known, patterns, setting)}


def keep_frozen(loss: Any, train: Sequence[str], freeze: Sequence[str]) -> list[str]:
    """Freeze what the settings TRAIN and FREEZE keep of LOSS's own parameters, its model's being frozen already.

    Returns:
        the names of those that stay only because TRAIN names others.

    Raises:
        MismatchError: patterns that mean no parameter of it, or of TRAIN some that leave nothing to train.
    """
    parameters, own = dict(loss.named_parameters()), own_parameters(loss)
    frozen = select_in(parameters, freeze, "freeze")
    left = set(own) - select_in(parameters, train, "train") - frozen if train else set()
    for name in own.keys() & (frozen | left):
        own[name].requires_grad_(False)
    trained = {name for name, it in parameters.items() if it.requires_grad}
    idle = [it for it in train if trained.isdisjoint(select_in(parameters, [it], "train"))]
    if idle:
        raise MismatchError(
            "train names what stays frozen, by freeze or by requires_grad_(False) in its own code",
            idle,
        )
    return [name for name in own if name in left]


def tie(evaluated: Any, loss: Any) -> None:
    """Let the module that evaluation runs have the objective's own of LOSS for those of the same names."""
    _, there = parted({**dict(loss.named_parameters()), **dict(loss.named_buffers())})
    names = [name for name, _ in (*evaluated.named_parameters(), *evaluated.named_buffers())]
    for name in filter(there.__contains__, names):
        path, _, last = name.rpartition(".")
        setattr(evaluated.get_submodule(path), last, there[name])


def require_trained(loss: Any, evaluated: Any, *, cached: bool) -> None:
    """Refuse an objective some of whose own parameters would not train though they could.

    Args:
        loss: its module.
        evaluated: the one that evaluation runs.
        cached: whether the loss is computed from embeddings (``grad_cache``).

    Raises:
        MismatchError: names them, and says what to do.
    """
    own, problems = own_parameters(loss), []
    if own and cached:
        problems.append(f"{', '.join(own)} of the objective would not train; leave grad_cache out")
    elif names := [it for it in own_parameters(evaluated) if it not in own]:
        text = "evaluation has it and the loss does not, so it would not train; give it one name in both"
        problems.append(f"{', '.join(names)}: {text}")
    if problems:
        raise MismatchError("parameters of the objective would not train", problems)


@contextmanager
def kept_as_they_are(loss: Any) -> Iterator[None]:
    """Refuse a LOSS that changes parameters as it computes in the block: no checkpoint would hold what it makes of them.

    Raises:
        UnsupportedError: names them, and says what to do.
    """
    before = {name: it._version for name, it in loss.named_parameters()}
    yield
    if changed := [name for name, it in loss.named_parameters() if it._version != before[name]]:
        more = f" and {len(changed) - 1} more" if changed[1:] else ""
        raise UnsupportedError(
            f"the objective changes the parameter {changed[0]}{more} as it computes, and no checkpoint would"
            " hold that; let what follows the model, such as a teacher, be buffers (register_buffer)"
        )


def note(own: Mapping[str, Any], left: Sequence[str]) -> list[str]:
    """Return what a user should know of OWN parameters of the objective that train, and of those LEFT out."""
    trains = f"of its own train with the model; the run will keep them in {FILE}, no model or adapter does"
    stays = "of its own stay as they are, since train names others; to train them add"
    notes = [f"objective: {', '.join(own)} {trains}"] if own else []
    more = ", ".join(NAMED + name for name in left)
    return [*notes, f"objective: {', '.join(left)} {stays} {more}"] if left else notes
