"""The objective that a configuration chooses: held against the data, judged by the metric asked for."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ...converters.captures.modes import in_mode
from ...converters.common.users_code import called
from ...converters.models.factories import kind_of, named_code
from ...converters.values import Array
from ...errors import BadInputError, MismatchError, UsersCodeError
from ..config import ORIGIN, TrainConfig
from ..configuration.objectives import CustomObjective
from ..data.batches import Dataset
from ..data.rows.guessing import KINDS
from ..evaluation import Measure, Scores, without_answers
from ..steps.base import Step
from .base import Objective, make_objective
from .outputs import looked_at
from .own import kept_as_they_are

POSITIONAL_OR_KEYWORD: Final = inspect.Parameter.POSITIONAL_OR_KEYWORD
ERRORS: Final = frozenset({"loss", "perplexity", "mae"})  # figures that are better where lower
GIVEN: Final = {"query_ids": "pairs", "chosen_ids": "preferences", "ids": "text"}  # by which kind
METRIC: Final = (
    "a metric is a function that is called with (predict, dataset), where predict takes a dictionary of"
    " arrays by name, and returns one number"
)
EXAMPLES: Final = 3  # of the batch that shows what the data holds


def objective_of(config: TrainConfig, kind: Any = None, metric: Any = None) -> Objective:
    """Return the objective of CONFIG, whatever its data; KIND and METRIC are its own where in memory.

    Raises:
        BadInputError: there is no such objective or metric.
        UsersCodeError: the user's module raises as it is imported.
    """
    return _judged(
        make_objective(config.objective.name, _options(config.objective), kind, config.seed),
        config,
        metric,
    )


def fitted(objective: Objective, config: TrainConfig, train: Dataset) -> Objective:
    """Return OBJECTIVE, which is that of CONFIG, for the data that TRAIN is of.

    Raises:
        MismatchError: the data has other inputs than the objective takes.
    """
    given = train.batch(range(min(len(train), EXAMPLES))).inputs
    if problems := [*_missing(objective, given), *_unlike(objective, given)]:
        kind, name = (it.removeprefix(ORIGIN) for it in (config.data.kind, config.objective.name))
        summary = f"data {kind} does not fit the objective {name}"
        raise MismatchError(summary, _other_kind(objective, kind) or problems)
    return taking(objective, given)


def check_labels(objective: Objective, module: Any, splits: Mapping[str, Dataset]) -> None:
    """Refuse data that MODULE, to be trained, has no answer for.

    Raises:
        MismatchError: such as a label that is none of its classes.
    """
    if problems := objective.check(module, splits):
        raise MismatchError("the model does not fit the data of the run", problems)


def try_loss(loss: Any, splits: Mapping[str, Dataset], most: int = 1) -> None:
    """Compute the module LOSS of an example of SPLITS. No buffer of it changes.

    Args:
        loss: of the objective, around the model.
        splits: the data.
        most: examples to try at once where a loss takes no single one, as one of halves of a batch.

    Raises:
        BadInputError: PyTorch cannot compute it, or what is computed is no loss.
    """
    data = next(iter(splits.values()))
    with in_mode(loss, False):
        try:
            _try(loss, data, 1)
        except Exception:  # whatever the user's code raises
            with contextlib.suppress(Exception):
                _try(loss, data, min(most, len(data)))
                return
            raise


def _try(loss: Any, data: Dataset, count: int) -> None:
    """Compute LOSS of the first COUNT examples of DATA."""
    from torch.func import functional_call

    copies = {name: it.clone() for name, it in loss.named_buffers()}
    with kept_as_they_are(loss), looked_at(data.batch(range(count)).inputs) as tensors:
        _require_number(functional_call(loss, copies, (), tensors), type(loss).__name__)


def _require_number(found: Any, name: str) -> None:
    """Refuse what the objective NAME has FOUND where it is no loss.

    Raises:
        UsersCodeError: it is something else than a tensor of one number; says what.
    """
    import torch

    what = kind_of(found)
    if isinstance(found, torch.Tensor):
        if found.is_floating_point() and not found.ndim:
            return
        what = f"{str(found.dtype).removeprefix('torch.')} of shape {[*found.shape]}"
    raise UsersCodeError(
        f"the objective {name} returns {what}; it has to return its loss alone, a float of shape [],"
        " such as the mean over the examples"
    )


def _options(section: Any) -> dict[str, Any]:
    if isinstance(section, CustomObjective):
        return section.options
    return dict(section.model_dump(exclude={"name"}))


def taking(objective: Objective, given: Mapping[str, Array]) -> Objective:
    """Return OBJECTIVE with the inputs GIVEN, where it does not name its own."""
    evaluated, make = objective.evaluated_dynamic, objective.make_evaluated
    if objective.dynamic is not None:
        there = {name: axes for name, axes in objective.dynamic.items() if name in given}
        make_loss = _with_inputs(objective.make_loss, list(there))
        if make and evaluated is not None:
            make = _with_inputs(make, list(evaluated))
        return replace(objective, make_loss=make_loss, make_evaluated=make, dynamic=there)
    if make and evaluated is None:
        evaluated = varying(without_answers(given))
        make = _with_inputs(make, list(evaluated))
    dynamic = varying(given)
    return replace(
        objective,
        make_loss=_with_inputs(objective.make_loss, list(dynamic)),
        make_evaluated=make,
        dynamic=dynamic,
        evaluated_dynamic=evaluated,
    )


def varying(given: Mapping[str, Array]) -> dict[str, dict[int, str]]:
    """Return the sizes of the inputs GIVEN that vary: the number of examples, and of tokens.

    >>> import numpy as np
    >>> varying({"ids": np.zeros((3, 8)), "labels": np.zeros(3)})
    {'ids': {0: 'batch', 1: 'sequence'}, 'labels': {0: 'batch'}}
    """
    sizes: dict[str, dict[int, str]] = {
        name: {0: "batch"} if array.ndim else {} for name, array in given.items()
    }
    texts = given["ids"].shape if "ids" in given else None
    for name, array in given.items():
        if array.shape == texts:
            sizes[name][1] = "sequence"
    return sizes


def _with_inputs(make: Callable[[Any], Any], names: Sequence[str]) -> Callable[[Any], Any]:
    """Let the modules that MAKE makes have the inputs NAMES as parameters, in place of ``**inputs``.

    ``torch.export`` lets only the sizes of named parameters vary.
    """

    def made(model: Any) -> Any:
        module = make(model)
        kind = type(module)
        parameters = inspect.signature(kind.forward).parameters.values()
        if not any(it.kind is it.VAR_KEYWORD for it in parameters):
            return module

        def forward(self: Any, **inputs: Any) -> Any:
            return kind.forward(self, **inputs)

        named = [inspect.Parameter(name, POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
        forward.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        module.__class__ = type(kind.__name__, (kind,), {"forward": forward})
        return module

    return made


def _missing(objective: Objective, given: Mapping[str, Array]) -> list[str]:
    """Return what the data lacks of what the objective wants."""
    if not objective.wanted or not set(objective.wanted).isdisjoint(given):
        return []
    wanted = " or ".join(objective.wanted)
    return [f"{wanted} is an input of the objective, and not in the data: {', '.join(given)}"]


def _other_kind(objective: Objective, kind: str) -> list[str]:
    """Return which kind of data OBJECTIVE learns from, where that is not KIND, one that is read here."""
    inputs = objective.dynamic or ()
    meant = next((it for name, it in GIVEN.items() if name in inputs), kind)
    if ":" in kind or meant == kind:
        return []
    columns = sorted(next(needed for needed, it in KINDS if it == meant))
    start = f"it learns from rows with {', '.join(columns)}: --set data.kind={meant}"
    return [f"{start}; data.columns says what they are called where they have other names"]


def _unlike(objective: Objective, given: Mapping[str, Array]) -> list[str]:
    if objective.dynamic is None:
        return []
    extra = sorted(given.keys() - objective.dynamic.keys())
    missing = sorted(objective.dynamic.keys() - given.keys() - set(objective.optional))
    return [
        *(f"{name} is in the data, and the objective takes no such input" for name in extra),
        *(f"{name} is an input of the objective, and not in the data" for name in missing),
    ]


def _judged(objective: Objective, config: TrainConfig, metric: Any) -> Objective:
    """Return OBJECTIVE with the metric that CONFIG asks for, METRIC where that is in memory."""
    wanted = config.metric
    if wanted is None:
        return objective
    better = config.higher_is_better
    if ":" not in wanted:
        own = objective.higher_is_better if wanted == objective.metric else wanted not in ERRORS
        higher = own if better is None else better
        if wanted == objective.metric:
            return replace(objective, higher_is_better=higher)
        known = objective.figures
        if known and wanted not in known:
            raise BadInputError(_unmeasured(wanted, known))
        measure = _having(objective.measure, wanted)
        return replace(
            objective, metric=wanted, higher_is_better=higher, measure=measure, asked=True
        )
    if objective.make_evaluated is None:
        raise BadInputError(
            f"metric {wanted} has nothing to look at: the objective {config.objective.name} names no"
            " module for evaluation (its attribute evaluated)"
        )
    name = wanted.rpartition(":")[2]
    inputs = () if objective.optional else objective.evaluated_dynamic or ()
    function = metric or named_code(wanted)
    measure = _with_function(objective.measure, wanted, function, inputs)
    higher = better is not False
    return replace(objective, metric=name, higher_is_better=higher, measure=measure, asked=True)


def _having(measure: Measure, metric: str) -> Measure:
    """Return MEASURE that refuses where it does not measure METRIC."""

    def checked(step: Step, dataset: Dataset, size: int) -> Scores:
        scores = measure(step, dataset, size)
        if metric not in scores.metrics:
            raise BadInputError(_unmeasured(metric, scores.metrics))
        return scores

    return checked


def _unmeasured(metric: str, known: Iterable[str]) -> str:
    return f"metric {metric} is not measured; there are {', '.join(known)}"


def _with_function(
    measure: Measure, spec: str, function: Callable[..., Any], inputs: Collection[str]
) -> Measure:
    """Return MEASURE with what FUNCTION finds: of ``predict(inputs) -> array`` and the dataset.

    Args:
        measure: of the objective.
        spec: what the configuration calls the function.
        function: the user's.
        inputs: what ``predict`` takes, by name; empty where the data says.

    Raises:
        UsersCodeError: SPEC names no function; the measure raises it too, where it returns no number.
    """
    if not callable(function):
        raise UsersCodeError(f"metric {spec} is {kind_of(function)}; {METRIC}")

    def extended(step: Step, dataset: Dataset, size: int) -> Scores:
        scores = measure(step, dataset, size)
        predict = partial(_predicted, spec, step, inputs)
        try:
            found = called(f"metric {spec}", function, predict, dataset)
        except UsersCodeError as error:
            raise UsersCodeError(f"{error}; {METRIC}") from error
        try:
            number = float(found)
        except (TypeError, ValueError, RuntimeError):
            raise UsersCodeError(
                f"metric {spec} returns {kind_of(found)}; it has to return one number"
            ) from None
        return scores._replace(metrics={**scores.metrics, spec.rpartition(":")[2]: number})

    return extended


def _predicted(spec: str, step: Step, names: Collection[str], inputs: Any, /) -> Array:
    """Return what STEP finds of INPUTS, those of metric SPEC, which should have NAMES where those are known.

    Raises:
        UsersCodeError: they are no dictionary of those.
    """
    if not isinstance(inputs, Mapping):
        raise UsersCodeError(f"metric {spec} gives predict {kind_of(inputs)}")
    if names and inputs.keys() != {*names}:
        given = ", ".join(map(str, inputs)) or "nothing"
        raise UsersCodeError(f"metric {spec} gives predict {given}; it takes {', '.join(names)}")
    return step.embed(inputs)
