"""Training what is in memory: a torch module, an objective and data that no configuration can name."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..converters.models.factories import copied_together, framework_or_none, kind_of
from ..errors import BadInputError
from .checks.decisions import require_no_parameter_hooks
from .config import ORIGIN, TrainConfig, validate
from .data.batches import Batch, Dataset
from .data.given import Given, Orders
from .data.series import Series
from .objectives.base import CLASSES, objective_class
from .objectives.order import input_orders

HELD_OUT: Final = 0.1  # of the examples, where data is one dataset without splits
SPLITS: Final = ("train", "validation", "test")


@dataclass(frozen=True)
class Live:
    """What is in memory.

    Attributes:
        module: the torch module.
        objective: class, or what is called like one; ``None`` where the configuration names it.
        metric: a function; ``None`` where the configuration names it, or nobody does.
        splits: the data by split; ``None`` where the configuration names them.
    """

    module: Any
    objective: Any = None
    metric: Any = None
    splits: Mapping[str, Dataset] | None = None


def live(
    module: Any, objective: Any, data: Any, settings: Mapping[str, Any]
) -> tuple[TrainConfig, Live]:
    """Return the configuration of a run and what of it is in memory.

    Args:
        module: a ``torch.nn.Module``; the run works on a copy of it.
        objective: its name, its section as a mapping, a class, or an instance that keeps MODULE as its
            attribute ``model``.
        data: a section as a mapping, a dataset, or a mapping of splits to datasets. A dataset has
            ``__len__`` and ``batch(rows)`` or ``__getitem__``, or is a mapping of arrays, one row an example.
        settings: the rest of the configuration; ``metric`` may be a function.

    Raises:
        BadInputError: MODULE or DATA is none of these.
        MismatchError: a setting is wrong.
        UnsupportedError: MODULE, or an instance, has hooks of parameters.
    """
    if framework_or_none(module) != "torch":
        raise BadInputError(f"module is {kind_of(module)}; give a torch.nn.Module")
    require_no_parameter_hooks(module)
    metric = settings.get("metric")
    if not callable(metric):
        metric = None
    named = isinstance(objective, str | Mapping)
    kind = None if named else objective if isinstance(objective, type) else Copies(objective)
    orders = input_orders(_class_of(objective, kind), module)
    section = isinstance(data, Mapping) and "kind" in data
    splits = None if section else dict(_splits(data, settings, orders))
    config = validate(
        {
            "model": f"{ORIGIN}{type(module).__name__}",
            **settings,
            **({"metric": f"{ORIGIN}{_name(metric)}"} if metric else {}),
            "objective": objective if named else {"name": f"{ORIGIN}{_name(objective)}"},
            "data": data if splits is None else {"kind": f"{ORIGIN}{type(data).__name__}"},
        }
    )
    module, *instances = copied_together(module, *([objective] if isinstance(kind, Copies) else []))
    return config, Live(module, Copies(*instances) if instances else kind, metric, splits)


class Copies:
    """An objective of a module as an INSTANCE is one of its own: the instance, and a copy around any other."""

    def __init__(self, instance: Any) -> None:
        if not hasattr(instance, "model"):
            raise BadInputError(
                f"objective: {type(instance).__name__} has no attribute model, the module that it is"
                " the loss of; give its class, or a name"
            )
        require_no_parameter_hooks(instance)
        self._instance = instance

    def __call__(self, model: Any) -> Any:
        """Return the objective of MODEL."""
        own = self._instance
        return own if own.model is model else copy.deepcopy(own, {id(own.model): model})

    def __getattr__(self, name: str) -> Any:
        """Return what the class says of itself."""
        return getattr(type(self._instance), name)


class Part:
    """Some ROWS of a dataset."""

    def __init__(self, whole: Given, rows: Sequence[int]) -> None:
        self._whole, self._rows = whole, rows
        self.report = {"examples": len(rows)}
        self.digest = f"{whole.digest}-{len(rows)}-{rows[0]}"

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self._rows)

    def batch(self, rows: Sequence[int]) -> Batch:
        """Return the examples ROWS of the part."""
        return self._whole.batch([self._rows[row] for row in rows])

    def length(self, row: int) -> int:
        """Return how long an example is."""
        return self._whole.length(self._rows[row])

    def keys(self, row: int) -> tuple[Any, ...]:
        """Return what no other example of a batch may share with this one."""
        return self._whole.keys(self._rows[row])


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", type(kind).__name__)


def _class_of(objective: Any, kind: Any) -> Any:
    """Return the class of an OBJECTIVE that is a name or a section, KIND of any other; ``None`` of no known name."""
    name = objective.get("name") if isinstance(objective, Mapping) else objective
    return kind or (objective_class(str(name)) if name in CLASSES else None)


def _splits(
    data: Any, settings: Mapping[str, Any], orders: Orders
) -> Iterator[tuple[str, Dataset]]:
    if isinstance(data, Mapping) and data.keys() & set(SPLITS):
        if missing := {"train", "validation"} - data.keys():
            raise BadInputError(f"data has no split {', '.join(sorted(missing))}")
        yield from ((name, _dataset(it, f"data.{name}", orders)) for name, it in data.items())
        return
    whole = _dataset(data, "data", orders)
    drawn = np.random.default_rng(int(settings.get("seed", 0))).permutation(len(whole)).tolist()
    if len(whole) < 2:
        raise BadInputError(f"data has {len(whole)} examples; two are the least to train on one")
    count = max(1, round(HELD_OUT * len(whole)))
    yield "train", Part(whole, sorted(drawn[count:]))
    yield "validation", Part(whole, sorted(drawn[:count]))


def _dataset(given: Any, name: str, orders: Orders) -> Any:
    if isinstance(given, Mapping):
        arrays = {key: np.asarray(array) for key, array in given.items()}
        rows = {key: len(it) if it.ndim else "none" for key, it in arrays.items()}
        if len({*rows.values()}) != 1 or "none" in rows.values():
            counts = ", ".join(f"{key} has {count}" for key, count in rows.items()) or "it is empty"
            raise BadInputError(
                f"{name} is no mapping of arrays with one row for each example: {counts}"
            )
        return Series(arrays)
    return Given(given, name, orders)
