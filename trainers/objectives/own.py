"""The parameters that an objective has besides those of the model, such as a learnable temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from .base import Objective

PREFIX: Final = "model."  # of the model's own names inside its loss module
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


def tie(module: Any, own: Mapping[str, Any]) -> None:
    """Let MODULE, which evaluation runs, have the parameters OWN of the loss for those of the same names."""
    for name in own_parameters(module).keys() & own.keys():
        path, _, last = name.rpartition(".")
        setattr(module.get_submodule(path), last, own[name])


def untrained(objective: Objective, module: Any, *, cached: bool) -> list[str]:
    """Return which of OBJECTIVE's own parameters around MODULE would not train though they could.

    Args:
        objective: of the run.
        module: the torch module to be trained.
        cached: whether the loss is computed from embeddings (``grad_cache``).
    """
    own = own_parameters(objective.make_loss(module))
    if own and cached:
        return [f"{', '.join(own)} of the objective would not train; leave grad_cache out"]
    evaluated = objective.make_evaluated
    names = [it for it in own_parameters(evaluated(module)) if it not in own] if evaluated else []
    text = (
        "evaluation has it and the loss does not, so it would not train; give it one name in both"
    )
    return [f"{', '.join(names)}: {text}"] if names else []


def note(own: Mapping[str, Any]) -> list[str]:
    """Return what a user should know of OWN parameters of the objective, where there are some."""
    text = f"of its own train with the model; the run will keep them in {FILE}, no model or adapter does"
    return [f"objective: {', '.join(own)} {text}"] if own else []
