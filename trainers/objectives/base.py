"""What a run minimises, as the loop sees it: torch modules around the model, and how they are judged.

An objective is a torch module class, called with the model, which it keeps as its attribute ``model``,
and its settings. Its ``forward`` takes the arrays of a batch by name and returns the loss. What else it says of itself are class attributes,
all optional, of the names and meanings of :class:`Objective`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

import numpy as np

from ...converters.common.users_code import called
from ...converters.models.factories import framework_or_none, kind_of, named_code
from ...errors import UsersCodeError
from ..data.batches import Batch, Dataset
from ..evaluation import Measure, measure_loss

Dynamic = Mapping[str, Mapping[int, str]]
WANTED: Final = "an objective is a torch.nn.Module class, called with the model and its options"
IGNORED: Final = -100  # a label that torch's cross entropy leaves out
CLASSES: Final[Mapping[str, str]] = {  # objective -> its module here and its class
    "causal_lm": "tokens:CausalLM",
    "classification": "classification:Classification",
    "contrastive": "contrastive:Contrastive",
    "distillation": "distillation:Distillation",
    "dpo": "preferences:DPO",
    "margin": "contrastive:Margin",
    "masked_lm": "tokens:MaskedLM",
    "maxsim": "maxsim:MaxSim",
    "regression": "regression:Regression",
    "seq2seq_lm": "tokens:Seq2SeqLM",
    "triplet": "contrastive:Triplet",
}


def rows(batch: Batch) -> float:
    """Return the number of examples: the loss is a mean over them."""
    return float(batch.rows)


def labels(batch: Batch) -> float:
    """Return the number of ``labels`` that count, all but -100: the loss is a mean over them."""
    return float(np.count_nonzero(batch.inputs["labels"] != IGNORED))


@dataclass(frozen=True)
class Objective:
    """How a model is trained and judged.

    Attributes:
        make_loss: the model to the torch module that returns the loss of a batch.
        make_evaluated: the model to the torch module that evaluation runs; that of the loss where
            there is no other (``evaluated`` as a class attribute; it is given the settings that
            ``evaluated_options`` names).
        dynamic: sizes of the loss module's inputs that vary: input -> axis -> name of the size. They
            are all of its inputs, but those that are optional; ``None`` where those of the data are.
        evaluated_dynamic: the same for the inputs of the module for evaluation.
        weight: the number of things that the loss of a batch is a mean over, such as examples.
        metric: the figure that chooses the best checkpoint.
        higher_is_better: which way it improves.
        measure: takes the figures of a split.
        optional: inputs that the data need not have.
        wanted: what the data has to hold one of, where the inputs are else those of the data.
        make_from_embeddings: makes the torch module that returns the loss of a batch from its arrays and the
            ``*_embeddings`` of its texts, as the module for evaluation makes them; ``None`` where the
            loss is no function of those (``from_embeddings`` of the class, given the settings).
        check: the torch module and the splits to what is wrong with them, a line each.
        asked: whether the metric is one that was asked for, so that it may not be measured.
        apart: whether examples of the data that share a key may not meet in a batch.
        figures: all that ``measure`` may find, which depends on the data; empty where nobody says.
    """

    make_loss: Callable[[Any], Any]
    make_evaluated: Callable[[Any], Any] | None
    dynamic: Dynamic | None
    evaluated_dynamic: Dynamic | None
    weight: Callable[[Batch], float]
    metric: str
    higher_is_better: bool
    measure: Measure
    optional: Collection[str] = ()
    wanted: Sequence[str] = ()
    make_from_embeddings: Callable[[], Any] | None = None
    check: Callable[[Any, Mapping[str, Dataset]], list[str]] = lambda *_: []
    asked: bool = False
    apart: bool = True
    figures: Sequence[str] = ()


def make_objective(
    name: str, options: Mapping[str, Any], given: Any = None, seed: int = 0
) -> Objective:
    """Return the objective NAME, one of ``CLASSES`` or ``module:Class`` of a user's.

    Args:
        name: the objective.
        options: its settings, which its class and its ``measure`` take by name.
        given: the class, where it is in memory.
        seed: of what it draws as it is made, so that it begins the same however often that is.

    Raises:
        UsersCodeError: the user's module raises as it is imported.
        BadInputError: there is no such thing.
    """
    kind = objective_class(name, given)
    measure: Any = getattr(kind, "measure", None)
    evaluated: Any = getattr(kind, "evaluated", None)
    of_embeddings: Any = getattr(kind, "from_embeddings", None)
    passed = {key: options[key] for key in getattr(kind, "evaluated_options", ()) if key in options}
    around = partial(_around, seed)
    return Objective(
        make_loss=lambda model: around(model, name, kind, options),
        make_evaluated=evaluated
        and (lambda model: around(model, f"{name}.evaluated", evaluated, passed)),
        dynamic=getattr(kind, "dynamic", None),
        evaluated_dynamic=getattr(kind, "evaluated_dynamic", None),
        weight=getattr(kind, "weight", rows),
        metric=getattr(kind, "metric", "loss"),
        higher_is_better=getattr(kind, "higher_is_better", False),
        measure=partial(measure or measure_loss, **(options if measure else {})),
        optional=getattr(kind, "optional", ()),
        wanted=getattr(kind, "wanted", ()),
        make_from_embeddings=of_embeddings and partial(of_embeddings, **options),
        check=getattr(kind, "check", Objective.check),
        apart=getattr(kind, "apart", True),
        figures=getattr(measure or measure_loss, "figures", ()),
    )


def objective_class(name: str, given: Any = None) -> Any:
    """Return the class of the objective NAME, or what is GIVEN in its place; see ``make_objective``."""
    return given or (_ours(CLASSES[name]) if name in CLASSES else named_code(name))


def _around(seed: int, model: Any, name: str, kind: Any, options: Mapping[str, Any] = {}) -> Any:
    """Return the module that KIND makes of MODEL, with torch's random numbers of SEED.

    Raises:
        UsersCodeError: it raises, or does not keep MODEL where its parameters are looked for.
    """
    if not callable(kind):
        raise UsersCodeError(f"{name} is {kind_of(kind)}; {WANTED}")
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = called(name, kind, model, **options)
    if framework_or_none(module) != "torch":
        raise UsersCodeError(f"{name} makes {kind_of(module)}; {WANTED}")
    if getattr(module, "model", None) is not model:
        raise UsersCodeError(
            f"{name} has to keep the model that it is given as its attribute model"
        )
    return module


def _ours(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f".{module}", __package__), name)
