"""Low-rank adapters, inserted into a captured graph where it uses a weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import mlx.core as mx

from ....errors import MismatchError
from ...values import Array, LowRank
from .dispatch import Call, Environment, resolve
from .graph import Graph, Run, Step, weight_of

FACTORS: Final = ("lora_a", "lora_b")


class Slot(NamedTuple):
    """An inserted adapter: the graph's names of its weight and factors, and its scale."""

    weight: str
    down: str
    up: str
    scale: float


class Sum(NamedTuple):
    """An update of a parameter that its uses see: ``W + scale * b @ a``, by DoRA scaled by row.

    For whatever is not called with what an update applies to: a ``Conv1D``, the experts of a layer.
    """

    a: mx.array
    b: mx.array
    scale: float
    magnitude: mx.array | None

    def applied_to(self, weight: mx.array) -> mx.array:
        """Return WEIGHT with the update in it."""
        update = (self.scale * (self.b @ self.a)).reshape(weight.shape)
        total = weight + update.astype(weight.dtype)
        if self.magnitude is None:
            return total
        norms = mx.linalg.norm(total.reshape(len(total), -1), axis=1)
        factor = (self.magnitude / norms).astype(weight.dtype)
        return factor.reshape(-1, *[1] * (total.ndim - 1)) * total


def _linear(call: Call, slot: Slot) -> Run:
    """Run y + scale * (x a) b."""

    def run(values: Environment) -> mx.array:
        x: mx.array = resolve(call.arguments["input_"], values)
        update = (x @ values[slot.down]) @ values[slot.up]
        output: mx.array = call(values)
        return mx.add(output, (slot.scale * update).astype(output.dtype))

    return run


def _embedding(call: Call, slot: Slot) -> Run:
    """Run y + scale * a[indices] b."""

    def run(values: Environment) -> mx.array:
        indices = resolve(call.arguments["indices"], values)
        update = values[slot.down][indices] @ values[slot.up]
        output: mx.array = call(values)
        return mx.add(output, (slot.scale * update).astype(output.dtype))

    return run


def _convolution(call: Call, slot: Slot) -> Run:
    """Run with the weight W + scale * (a b)^T, reshaped to W's axes."""

    def run(values: Environment) -> mx.array:
        weight = values[slot.weight]
        update = slot.scale * (values[slot.down] @ values[slot.up]).T.reshape(weight.shape)
        output: mx.array = call({**values, slot.weight: weight + update.astype(weight.dtype)})
        return output

    return run


_FORMS: Final[dict[str, Callable[[Call, Slot], Run]]] = {
    "aten.linear.default": _linear,
    "aten.embedding.default": _embedding,
    **{f"aten.conv{n}d.{kind}": _convolution for n in (1, 2, 3) for kind in ("default", "padding")},
}


def _form(step: Step) -> Callable[[Call, Slot], Run] | None:
    return _FORMS.get(step.label.split()[0])


def adaptable(graph: Graph) -> dict[str, Step]:
    """Return graph value of a weight -> a step that an adapter can change."""
    found = ((weight_of(step), step) for step in graph.steps if _form(step))
    return {use[1]: step for use, step in found if use}


def insert(graph: Graph, slots: Mapping[str, Slot]) -> Graph:
    """Return GRAPH with the adapters of SLOTS (by graph value of the weight) in its steps."""

    def rewrite(step: Step) -> Run | None:
        use, form = weight_of(step), _form(step)
        if use is None or form is None or use[1] not in slots:
            return None
        return form(use[0], slots[use[1]])

    return graph.rewritten(rewrite)


def factors(step: Step, update: LowRank) -> tuple[Array, Array]:
    """Return ``lora_a`` and ``lora_b`` of UPDATE, which has the layout of the weight that STEP uses."""
    return (update.b, update.a) if _form(step) is _embedding else (update.a.T, update.b.T)


def as_update(step: Step, down: Array, up: Array, scale: float) -> LowRank:
    """Return what :func:`factors` has taken apart."""
    return LowRank(up, down, scale) if _form(step) is _embedding else LowRank(down.T, up.T, scale)


def _factor_shapes(
    step: Step, shape: tuple[int, ...], rank: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of ``lora_a`` (in, rank) and ``lora_b`` (rank, out) for a weight of SHAPE.

    An embedding's weight lies the other way round: its rows are inputs.
    """
    if _form(step) is _embedding:
        return (shape[0], rank), (rank, shape[1])
    return (math.prod(shape[1:]), rank), (rank, shape[0])


def initial(step: Step, weight: mx.array, rank: int, key: mx.array) -> tuple[mx.array, mx.array]:
    """Return ``lora_a`` uniform within 1 / sqrt(in), and ``lora_b`` zero: the update starts at 0."""
    down, up = _factor_shapes(step, weight.shape, rank)
    bound = 1 / math.sqrt(down[0])
    a = mx.random.uniform(-bound, bound, down, key=key).astype(weight.dtype)
    return a, mx.zeros(up, weight.dtype)


def check_names(wanted: Mapping[str, Any], available: Mapping[str, Any]) -> None:
    """Refuse weights that no adapter can change, all together."""
    problems = []
    for name in sorted(set(wanted) - set(available)):
        near = get_close_matches(name, available, 1, cutoff=0.4)
        hint = f", did you mean {near[0]}?" if near else ""
        problems.append(f"{name} is no weight of a linear layer, embedding or convolution{hint}")
    if problems:
        raise MismatchError("adapters do not fit the captured module", problems)
