"""Adapters that a model has in it: recorded where they are merged, and refused a second time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...converters.models import MANIFEST, Model
from ...converters.planning.adapter_names import carried, crossing
from ...converters.planning.manifest import manifest_of
from ...converters.values import Array, LowRank
from ...errors import BadInputError, MismatchError, WeighbridgeError
from ...parity.weights.sketches.sketch import PROJECTIONS, projections, signs

KEY: Final = "adapters"
CLOSE: Final = 2.0**-7  # twice the unit roundoff of bfloat16: one adapter, stored in another dtype
FRAMEWORKS: Final = ("torch", "mlx")
DELTA, MAGNITUDE = "delta", "magnitude"
Record = Mapping[str, Any]
Projected = Mapping[str, list[float]]


def adapters_in(model: Model) -> list[Record]:
    """Return what the directory of MODEL records of the adapters merged into it, the oldest first.

    Raises:
        BadInputError: the record is damaged.
    """
    records = manifest_of(model).get(KEY) or []
    if not isinstance(records, list) or not all(map(is_record, records)):
        raise BadInputError(
            f"{model.path}/{MANIFEST} is damaged ({KEY}); merge into the base again"
        )
    return records


def is_record(record: Any) -> bool:
    """Say whether RECORD is what :func:`record_of` returns."""
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(key), str) for key in ("spec", "hash"))
        and record.get("framework") in FRAMEWORKS
        and isinstance(record.get("updates"), dict)
        and all(is_projected(update) for update in record["updates"].values())
    )


def is_projected(record: Any) -> bool:
    """Say whether RECORD is what :func:`projected` returns."""
    return (
        isinstance(record, dict)
        and DELTA in record
        and all(
            isinstance(numbers, list)
            and len(numbers) == PROJECTIONS
            and all(type(number) is float for number in numbers)
            for numbers in record.values()
        )
    )


def adapters_recorded(model: Model, *others: Model) -> dict[str, Any]:
    """Return what a manifest says of the adapters in MODEL, the one live on it merged: oldest first.

    OTHERS are models that the result is made from too; what is in them is listed once. Empty where
    there is none.
    """
    known = [record for one in (model, *others) for record in adapters_in(one)]
    found = {record["hash"]: record for record in known}
    if model.adapter:
        found[model.adapter.digest] = record_of(model)
    return {KEY: list(found.values())} if found else {}


def record_of(model: Model) -> dict[str, Any]:
    """Return what is recorded of the adapter that is live on MODEL.

    Its hash, and 16 random projections of each update in the names and layout of MODEL's weights: they
    depend neither on the dialect nor on how the update is factored, and linear as they are, a
    rounding of the factors moves them by no more than itself.
    """
    adapter = model.adapter
    assert adapter is not None  # noqa: S101  (it is merged)
    return {
        "spec": str(adapter.path),
        "dialect": adapter.dialect,
        "hash": adapter.digest,
        "framework": model.framework,
        "updates": {name: projected(it) for name, it in sorted(adapter.updates.items())},
    }


def updates_in(model: Model, framework: str) -> dict[str, Projected]:
    """Return the updates live on MODEL, projected in the layout of FRAMEWORK; none if no map leads there."""
    assert model.adapter is not None  # noqa: S101
    try:
        plans = tuple(leg.plan for leg in crossing(replace(model, adapter=None), framework))
        updates, _ = carried(plans, model.adapter.updates, {})
    except WeighbridgeError:
        return {}
    return {name: projected(update) for name, update in updates.items()}


def projected(update: LowRank) -> dict[str, list[float]]:
    """Return 16 random projections of the matrix that UPDATE adds, and of its magnitudes if it has any.

    >>> one = LowRank(np.ones((1, 2)), np.ones((2, 1)), 2.0)
    >>> other = LowRank(np.ones((1, 2)), 2 * np.ones((2, 1))).padded(3)
    >>> projected(one) == projected(other)
    True
    """
    columns = update.a.astype(np.float64) @ signs(1, update.shape[-1])
    rows = (update.b.astype(np.float64) @ columns).reshape(-1, PROJECTIONS)
    found = {DELTA: update.scale * np.sum(rows * signs(2, len(rows)), axis=0)}
    if update.magnitude is not None:
        found[MAGNITUDE] = projections(update.magnitude.astype(np.float64))
    return {part: [float(f"{number:.9g}") for number in it] for part, it in found.items()}


def repeated(model: Model) -> tuple[Record, list[str]] | None:
    """Return which adapter in MODEL is the one live on it, and the updates that are in it already."""
    adapter, seen = model.adapter, dict[str, dict[str, Projected]]()
    for record in adapters_in(model) if adapter else ():
        framework, then = record["framework"], record["updates"]
        if framework not in seen:
            seen[framework] = updates_in(model, framework)
        now = seen[framework]
        again = sorted(name for name in now.keys() & then.keys() if same(now[name], then[name]))
        if again or (adapter and record["hash"] == adapter.digest):
            return record, again or sorted(then)
    return None


def same(one: Projected, other: Projected) -> bool:
    """Say whether two updates are one, to the rounding of its factors; two of nothing are not."""
    return (
        any(one[DELTA])
        and one.keys() == other.keys()
        and all(near(np.array(one[part]), np.array(other[part])) for part in one)
    )


def near(one: Array, other: Array) -> bool:
    """Say whether two vectors differ by rounding alone."""
    return bool(np.linalg.norm(one - other) <= CLOSE * np.linalg.norm(other))


def refuse_recorded(model: Model) -> None:
    """Refuse to merge the adapter that is live on MODEL if it was merged into it before.

    Raises:
        MismatchError: it was; names the updates.
    """
    if (found := repeated(model)) is None:
        return
    record, names = found
    assert model.adapter is not None  # noqa: S101
    raise MismatchError(
        f"{model.adapter.path} is merged into {model.path} already (as {record['spec']}, says its"
        f" {MANIFEST}), and would be applied twice; use the merged model as it is",
        names,
    )
