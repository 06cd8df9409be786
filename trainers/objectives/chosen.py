"""The objective that a configuration chooses: held against the data, judged by the metric asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...converters.models.factories import named_code
from ...converters.values import Array
from ...errors import BadInputError, MismatchError
from ..config import TrainConfig
from ..configuration.objectives import CustomObjective
from ..data.batches import Dataset
from ..evaluation import Measure, Scores
from ..steps.base import Step
from .base import Objective, make_objective

EXAMPLES: Final = 3  # of the batch that shows what the data holds


def objective_of(config: TrainConfig, train: Dataset) -> Objective:
    """Return the objective of CONFIG for the data that TRAIN is of.

    Raises:
        MismatchError: the data has other inputs than the objective takes.
        BadInputError: there is no such objective or metric.
        UsersCodeError: the user's module raises as it is imported.
    """
    objective = make_objective(config.objective.name, _options(config.objective))
    given = train.batch(range(min(len(train), EXAMPLES))).inputs
    dynamic = objective.dynamic if objective.dynamic is not None else _by_rows(given)
    if problems := [*_unlike(set(given), set(dynamic))]:
        summary = f"data {config.data.kind} does not fit the objective {config.objective.name}"
        raise MismatchError(summary, problems)
    return _judged(replace(objective, dynamic=dynamic), config)


def _options(section: Any) -> dict[str, Any]:
    if isinstance(section, CustomObjective):
        return section.options
    return dict(section.model_dump(exclude={"name"}))


def _by_rows(given: Mapping[str, Array]) -> dict[str, dict[int, str]]:
    """Return the number of examples as the one size of the inputs GIVEN that varies."""
    return {name: {0: "batch"} if array.ndim else {} for name, array in given.items()}


def _unlike(given: set[str], taken: set[str]) -> list[str]:
    extra = [f"{name} is in the data, and the objective takes no such input" for name in given]
    missing = [f"{name} is an input of the objective, and not in the data" for name in taken]
    return sorted(
        line for line in (*extra, *missing) if line.partition(" ")[0] not in given & taken
    )


def _judged(objective: Objective, config: TrainConfig) -> Objective:
    """Return OBJECTIVE with the metric that CONFIG asks for."""
    wanted = config.metric
    if wanted is None:
        return objective
    better = config.higher_is_better
    if ":" not in wanted:
        higher = wanted != "loss" if better is None else better
        measure = _having(objective.measure, wanted)
        return replace(objective, metric=wanted, higher_is_better=higher, measure=measure)
    if objective.make_evaluated is None:
        raise BadInputError(
            f"metric {wanted} has nothing to look at: the objective {config.objective.name} names no"
            " module for evaluation (its attribute evaluated)"
        )
    name = wanted.rpartition(":")[2]
    measure = _with_function(objective.measure, name, named_code(wanted))
    return replace(objective, metric=name, higher_is_better=better is not False, measure=measure)


def _having(measure: Measure, metric: str) -> Measure:
    """Return MEASURE that refuses where it does not measure METRIC."""

    def checked(step: Step, dataset: Dataset, size: int) -> Scores:
        scores = measure(step, dataset, size)
        if metric not in scores.metrics:
            known = ", ".join(scores.metrics)
            raise BadInputError(f"metric {metric} is not measured; there are {known}")
        return scores

    return checked


def _with_function(measure: Measure, name: str, function: Callable[..., Any]) -> Measure:
    """Return MEASURE with what FUNCTION finds: of ``predict(inputs) -> array`` and the dataset."""

    def extended(step: Step, dataset: Dataset, size: int) -> Scores:
        scores = measure(step, dataset, size)
        found = float(function(step.embed, dataset))
        return Scores({**scores.metrics, name: found}, scores.per_example)

    return extended
