"""``weighbridge.train``: by a recipe, or what is in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from ...converters.common.arguments import as_kind, typed
from .live import train_live
from .recipes import train as train_recipe

if TYPE_CHECKING:
    from ...trainers.runs.result import TrainResult

Location = str | Path


@overload
def train(
    target: Location,
    recipe: Location | None = None,
    *,
    backend: str | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> TrainResult: ...


@overload
def train(
    module: Any,
    objective: Any,
    data: Any,
    config: Mapping[str, Any] | None = None,
    *,
    target: Location | None = None,
    backend: str | None = None,
    resume: bool = False,
) -> TrainResult: ...


def train(
    *given: Any, backend: str | None = None, resume: bool = False, **named: Any
) -> TrainResult:
    """Train by a recipe, ``train(target, recipe)``, or what is in memory, ``train(module, objective, data)``.

    The first is ``weighbridge train`` and leaves an adapter, or whole weights, in TARGET. The second
    does the same in TARGET (``run`` where none is given) and gives MODULE the best parameters; with
    adapters it leaves MODULE as it is.

    Args:
        given: TARGET and RECIPE: the run's folder, and the name of a recipe in ``trainers/recipes`` or
            a YAML or TOML file. Or MODULE, a ``torch.nn.Module``; OBJECTIVE: a name, a section, a class
            called with the module, or an instance around it; DATA: a section, a dataset, or a mapping of
            ``train`` and ``validation`` to datasets (``__len__`` and ``batch(rows)`` or ``__getitem__``, as a
            ``TensorDataset``, or a mapping of arrays); CONFIG: the other settings as in a recipe, ``metric`` perhaps a function.
        backend: ``mlx`` or ``torch``, ``mlx`` if not given; the same data, order and seeds in both.
        resume: go on where the run in TARGET stopped, in its backend.
        named: any of these by name, and with a recipe ``settings``: dotted setting -> value.

    Returns:
        ``.before`` and ``.best`` validation figures, ``.best_step``, ``.out``.

    Raises:
        BadInputError: a setting that is unknown, or data that is not what it should be.
        DivergedError: loss or gradient was not finite too many times in a row.
        TargetExistsError: TARGET is there.

    Example::

        data = {f"data.{part}": "pairs.jsonl" for part in ("train", "validation", "test")}
        run = weighbridge.train("run", "minilm-lora", settings={"model": "encoder", "steps": 2, **data})
        assert run.steps == 2

        rows = {"input": numpy.ones((64, 3), "f4"), "target": numpy.ones((64, 1), "f4")}
        run = weighbridge.train(torch.nn.Linear(3, 1), "regression", rows, {"steps": 2}, target="fit")
        assert run.best["loss"] < run.before["loss"]
    """
    live = "module" in named or (given and not isinstance(given[0], str | Path | None))
    way: Any = _train_live if live else _train_recipe
    return cast("TrainResult", way(*given, how=_how(backend, resume=resume), **named))


def _how(backend: object, *, resume: object) -> dict[str, object]:
    given = {"backend": as_kind(backend, str | None, "backend")}
    return given | {"resume": as_kind(resume, bool, "resume")}


@typed
def _train_recipe(
    target: Location,
    recipe: Location | None = None,
    *,
    how: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
) -> Any:
    pairs = [f"{key}={value}" for key, value in (settings or {}).items()]
    return train_recipe(Path(target), recipe=recipe, overrides=pairs, **how)


@typed
def _train_live(
    module: Any,
    objective: Any,
    data: Any,
    config: Mapping[str, Any] | None = None,
    *,
    how: Mapping[str, Any],
    target: Location | None = None,
) -> Any:
    given = module, objective, data, config or {}
    return train_live(given, Path(target) if target else None, **how)
