"""Operations on quantized weights: what computes with codes, and what hands them on as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, Final

import mlx.core as mx

from ..dispatch import Call, Environment, Reference, resolve
from ..dtypes import cast
from ..graph import Graph, Run, Step
from ..operations.layers.experts import rows_in_groups
from .value import Quantized, held

Form = Callable[..., Any]  # (weight, other arguments by name); NotImplemented: compute it dense


def _linear(weight: Quantized, input_: mx.array, bias: mx.array | None = None) -> mx.array:
    product = weight.transposed.after(input_)
    return product if bias is None else product + bias


def _embedding(weight: Quantized, indices: mx.array, **_: Any) -> Any:
    return NotImplemented if weight.turned else weight.at(indices).dense()


def _product(weight: Quantized, **first: mx.array) -> mx.array:
    """Return x @ weight."""
    [x] = first.values()
    return weight.after(x)


def _product_before(weight: Quantized, **second: mx.array) -> Any:
    """Return weight @ x."""
    [x] = second.values()
    if x.ndim < 2:
        return NotImplemented
    return mx.swapaxes(weight.transposed.after(mx.swapaxes(x, -1, -2)), -1, -2)


def _addmm(
    weight: Quantized, self: mx.array, mat1: mx.array, beta: float = 1, alpha: float = 1
) -> mx.array:
    return beta * self + alpha * weight.after(mat1)


def _in_groups(weight: Quantized, offs: mx.array | None, x: mx.array) -> Any:
    """Return the rows of X times the matrices of a stack, a group of rows each."""
    if offs is None or x.ndim != 2 or weight.ndim != 3 or weight.chosen is not None:
        return NotImplemented
    groups = weight.parts.weight.shape[0]
    return rows_in_groups(x, groups, offs, lambda a, group: replace(weight, chosen=group).after(a))


def _grouped_fallback(weight: Quantized, input_: mx.array, offs: mx.array) -> Any:
    return _in_groups(weight, offs, input_)


def _grouped(
    weight: Quantized,
    self: mx.array,
    offs: mx.array | None = None,
    bias: mx.array | None = None,
    out_dtype: object = None,  # noqa: ARG001 - as of the dense one
) -> Any:
    product = _in_groups(weight, offs, self)
    return product if bias is None or product is NotImplemented else product + bias


def _turned(weight: Quantized, **_: Any) -> Any:
    return NotImplemented if weight.ndim != 2 else weight.transposed


def _swapped(weight: Quantized, dim0: int, dim1: int) -> Any:
    axes = {dim0 % weight.ndim, dim1 % weight.ndim}
    last = {weight.ndim - 1, weight.ndim - 2}
    return weight.transposed if axes == last else NotImplemented


def _permuted(weight: Quantized, dims: list[int]) -> Any:
    *lead, row, column = range(weight.ndim)
    order = [dim % weight.ndim for dim in dims]
    return weight.transposed if order == [*lead, column, row] else NotImplemented


def _chosen(weight: Quantized, indices: list[mx.array | None]) -> Any:
    """Return weight[indices]: matrices of a stack, or rows."""
    [index] = indices if len(indices) == 1 else [None]
    if index is None or index.dtype == mx.bool_ or weight.chosen is not None:
        return NotImplemented
    if weight.ndim == 3 and index.ndim == 1:
        return Quantized(weight.parts, weight.scheme, weight.dtype, weight.turned, index)
    return NotImplemented if weight.turned and weight.ndim == 2 else weight.at(index).dense()


def _selected(weight: Quantized, dim: int, index: mx.array | int) -> Any:
    """Return matrices of a stack, or one of them."""
    if dim or weight.ndim != 3 or weight.chosen is not None:
        return NotImplemented
    return weight.at(mx.array(index)) if isinstance(index, int) else _chosen(weight, [index])


def _same(weight: Quantized, **_: Any) -> Quantized:
    return weight


FORMS: Final[dict[str, dict[str, Form]]] = {  # operation -> which argument the weight is -> form
    "aten.linear.default": {"weight": _linear},
    "aten.embedding.default": {"weight": _embedding},
    "aten.mm.default": {"mat2": _product, "self": _product_before},
    "aten.bmm.default": {"mat2": _product, "self": _product_before},
    "aten.matmul.default": {"other": _product, "self": _product_before},
    "aten.addmm.default": {"mat2": _addmm},
    "aten._grouped_mm.default": {"mat2": _grouped},
    "transformers.grouped_mm_fallback.default": {"weight": _grouped_fallback},
}
KEEPING: Final[dict[str, dict[str, Form]]] = {  # the same, of what makes another quantized weight
    "aten.t.default": {"self": _turned},
    "aten.transpose.int": {"self": _swapped},
    "aten.permute.default": {"self": _permuted},
    "aten.index.Tensor": {"self": _chosen},
    "aten.index_select.default": {"self": _selected},
    "aten.select.int": {"self": _selected},
    **{f"aten.{name}.default": {"self": _same} for name in ("detach", "alias", "contiguous")},
}


def _taken(step: Step, names: Collection[str]) -> Iterator[tuple[str, Form, Call]]:
    """Yield which argument of STEP is among NAMES, where it has a form for it."""
    if not isinstance(step.run, Call) or (step.operation in KEEPING and step.sites):
        return  # what a site shows is an array
    forms = {**FORMS.get(step.operation, {}), **KEEPING.get(step.operation, {})}
    for which, form in forms.items():
        argument = step.run.arguments.get(which)
        if isinstance(argument, Reference) and argument.name in names:
            yield which, form, step.run


def _run(which: str, form: Form, call: Call) -> Run:
    name = call.arguments[which].name

    def run(values: Environment) -> Any:
        weight = held(values, name)
        if not isinstance(weight, Quantized):
            return call(values)
        others = {key: resolve(x, values) for key, x in call.arguments.items() if key != which}
        result = form(weight, **others)
        if result is NotImplemented:
            return call(values)
        return result if isinstance(result, Quantized) else cast(result, call.dtypes)

    return run


def quantized_runs(graph: Graph, names: Collection[str]) -> dict[str, Run]:
    """Return step -> what computes it with the quantized weights NAMES, for steps that have a form."""
    quantized, runs = set(names), dict[str, Run]()
    for step in graph.steps:
        for which, form, call in _taken(step, quantized):
            if step.operation in KEEPING:
                quantized.add(step.name)
            runs[step.name] = _run(which, form, call)
    return runs


def computed_with(graph: Graph, names: Collection[str]) -> set[str]:
    """Return those of the weights NAMES with whose codes a step would compute if they were quantized."""
    origin, found = {name: name for name in names}, set[str]()
    for step in graph.steps:
        for which, _, call in _taken(step, origin):
            source = origin[call.arguments[which].name]
            if step.operation in KEEPING:
                origin[step.name] = source
            else:
                found.add(source)
    return found
