"""Low-rank adapters where a captured graph uses a weight: steps that compute with the factors.

A weight of shape (out, ...) has ``lora_a``, shape (in, rank), and ``lora_b``, shape (rank, out); an
embedding's rows are inputs. With magnitudes m (DoRA, Liu et al. 2024, equation 5) rows of the sum
are scaled to the length m; their own length counts as a constant of the gradient (section 4.3), as in
PEFT. Factors may be wider than what they meet: they are cast to its dtype. Where a sum is rounded to the
grid of a quantized weight it is formed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import mlx.core as mx

from ..dispatch import Call, Environment, resolve
from ..graph import Graph, Run, Step, weight_of
from ..quantized.value import Quantized, Values, held
from .grids import Rounding


class Slot(NamedTuple):
    """An inserted adapter: names of its parameters, and its scale.

    Attributes:
        down: of ``lora_a``.
        up: of ``lora_b``.
        scale: of the update.
        magnitude: of DoRA's magnitudes, empty without.
        rounding: of the sum of the weight and its update; ``None`` without.
    """

    down: str
    up: str
    scale: float
    magnitude: str = ""
    rounding: Rounding | None = None

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its parameters."""
        return tuple(name for name in (self.down, self.up, self.magnitude) if name)


class Use(NamedTuple):
    """A step that uses an adapted weight.

    Attributes:
        call: the operation as it was recorded.
        run: computes it without the adapter, perhaps with a quantized weight.
        weight: the graph's name of the weight.
        slot: the adapter.
    """

    call: Call
    run: Run
    weight: str
    slot: Slot


def _as(values: Environment, name: str, dtype: mx.Dtype) -> mx.array:
    array: mx.array = values[name]
    return array.astype(dtype)


def _linear(use: Use) -> Run:
    """Run y + scale * (x a) b, the rows of the weight scaled where there are magnitudes."""
    slot = use.slot

    def run(values: Environment) -> mx.array:
        x: mx.array = resolve(use.call.arguments["input_"], values)
        down, up = _as(values, slot.down, x.dtype), _as(values, slot.up, x.dtype)
        output: mx.array = use.run(values)
        update = (slot.scale * ((x @ down) @ up)).astype(output.dtype)
        if not slot.magnitude:
            return mx.add(output, update)
        bias = resolve(use.call.arguments.get("bias"), values)
        own = output if bias is None else output - bias
        scaled = ((own + update) * _row_factor(values, use)).astype(output.dtype)
        return scaled if bias is None else scaled + bias

    return run


def _row_factor(values: Environment, use: Use) -> mx.array:
    """Return magnitude / length for each row of W + scale * (a b)^T, without summing the two.

    A row's square is that of W, twice its product with the update, and the square of the update.
    """
    slot, weight = use.slot, held(values, use.weight)
    down, up = (mx.stop_gradient(_as(values, name, mx.float32)) for name in (slot.down, slot.up))
    dense: mx.array = weight.dense() if isinstance(weight, Quantized) else weight
    wide = mx.stop_gradient(dense.astype(mx.float32))
    both = ((wide @ down) * up.T).sum(1)
    own = ((down.T @ down) @ up * up).sum(0)
    squares = (wide * wide).sum(1) + 2 * slot.scale * both + slot.scale**2 * own
    return _as(values, slot.magnitude, mx.float32) * mx.rsqrt(squares)


def _embedding(use: Use) -> Run:
    """Run y + scale * a[indices] b."""
    slot = use.slot

    def run(values: Environment) -> mx.array:
        indices = resolve(use.call.arguments["indices"], values)
        output: mx.array = use.run(values)
        down = values[slot.down][indices].astype(output.dtype)
        update = down @ _as(values, slot.up, output.dtype)
        return mx.add(output, (slot.scale * update).astype(output.dtype))

    return run


def _with_sum(use: Use) -> Run:
    """Run with the sum of the weight and its update."""

    def run(values: Environment) -> Any:
        weight = summed(values[use.weight], values, use.slot)
        return use.run(Values({**values, use.weight: weight}))

    return run


def summed(weight: mx.array, values: Mapping[str, Any], slot: Slot) -> mx.array:
    """Return WEIGHT with its update in it: ``W + scale * (a b)^T``, by magnitudes scaled by row.

    Leading axes of the factors count matrices, such as the experts of a layer.
    """
    if slot.rounding:
        exact = summed(slot.rounding.weight(), values, slot._replace(rounding=None))
        return slot.rounding.rounded(exact).astype(weight.dtype)
    update = slot.scale * mx.swapaxes(values[slot.down] @ values[slot.up], -1, -2)
    total: mx.array = weight + update.reshape(weight.shape).astype(weight.dtype)
    if not slot.magnitude:
        return total
    lengths = mx.stop_gradient(mx.linalg.norm(total.reshape(len(total), -1), axis=1))
    factor = (values[slot.magnitude] / lengths).astype(weight.dtype)
    scaled: mx.array = factor.reshape(-1, *[1] * (total.ndim - 1)) * total
    return scaled


_FORMS: Final[dict[str, Callable[[Use], Run]]] = {
    "aten.linear.default": _linear,
    "aten.embedding.default": _embedding,
    **{f"aten.conv{n}d.{kind}": _with_sum for n in (1, 2, 3) for kind in ("default", "padding")},
}


def _form(step: Step) -> Callable[[Use], Run] | None:
    return _FORMS.get(step.operation)


def is_embedding(step: Step) -> bool:
    """Tell whether STEP looks rows of a weight up: its adapter lies the other way round."""
    return _form(step) is _embedding


def adaptable(graph: Graph) -> dict[str, Step]:
    """Return graph value of a weight -> a step that an adapter can change."""
    found = ((weight_of(step), step) for step in graph.steps if _form(step))
    return {use[1]: step for use, step in found if use}


def adapted(step: Step, run: Run, slots: Mapping[str, Slot]) -> Run | None:
    """Return what computes STEP, whose own run is RUN, with an adapter of SLOTS (by graph value)."""
    use, form = weight_of(step), _form(step)
    if use is None or form is None or use[1] not in slots:
        return None
    slot = slots[use[1]]
    return (_with_sum if slot.rounding else form)(Use(use[0], run, use[1], slot))
