"""Decisions by a mask, taken as they are with the example: another mask that decides otherwise gives NaN.

Whether they hold is the last output of such a graph, behind those of the module.

Models ask of masks whether anything is hidden at all, or whether some tokens see everything. ``torch.export`` can go on
from there with the example's values, and then records what it took for granted.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from functools import reduce
from typing import Any, Final, cast
from unittest import mock

import torch
from torch._functorch import config
from torch._subclasses import fake_tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_symbols
from torch.utils import _pytree as pytree

from ..failures import causes
from ..sources import user_inputs

DECIDED: Final = "decided"  # in the graph's meta
_ATEN: Final = torch.ops.aten
_COMPARISON: Final = "_maybe_infer_fake_kernel_from_pytree_out"
_BY_VALUES: Final = (GuardOnDataDependentSymNode, fake_tensor.DataDependentOutputException)
_COMPARED: Final = {
    operator.eq: _ATEN.eq.Scalar,
    operator.ne: _ATEN.ne.Scalar,
    operator.lt: _ATEN.lt.Scalar,
    operator.le: _ATEN.le.Scalar,
    operator.gt: _ATEN.gt.Scalar,
    operator.ge: _ATEN.ge.Scalar,
}


class Undecided(Exception):  # noqa: N818 - never leaves this folder
    """A decision is made of something else than a mask."""


def is_decision(error: BaseException) -> bool:
    """Tell whether recording failed by ERROR for a decision by values."""
    return any(isinstance(cause, _BY_VALUES) for cause in causes(error))


def is_mask(name: str) -> bool:
    """Tell whether the input NAME says what is hidden."""
    return name.endswith("mask")


@contextlib.contextmanager
def as_the_example() -> Iterator[None]:
    """Let decisions be taken by the values of the example while ``torch.export`` records.

    torch then compares with these what it knows of each result, and fixes how many rows a mask chooses by that: left out.
    """
    disabled, fake_tensor.log.disabled = fake_tensor.log.disabled, True
    own = fake_tensor.FakeTensorMode
    unseen = mock.patch.object(own, _COMPARISON, lambda *given: given[4])
    try:
        with config.patch(fake_tensor_propagate_real_tensors=True), unseen:
            yield
    finally:
        fake_tensor.log.disabled = disabled


def held(program: ExportedProgram) -> bool:
    """Let PROGRAM give NaN where its decisions do not hold; tell whether all of them are by masks."""
    graph = program.graph_module.graph
    checks = [n for n in graph.nodes if n.target is _ATEN._assert_scalar.default]
    masks = from_masks(program)
    checks = [node for node in checks if not _decided(node.args[0])]
    if not checks:
        return DECIDED in program.graph_module.meta
    try:
        with graph.inserting_before(next(iter(reversed(graph.nodes)))):
            decide(program, [_value(node.args[0], masks) for node in checks])
    except Undecided:
        return False
    return True


def from_masks(program: ExportedProgram) -> set[str]:
    """Return the names of inputs and constants of PROGRAM that may decide."""
    specs = program.graph_signature.input_specs
    masks = {name for name in user_inputs(program) if is_mask(name)}
    return masks | {spec.arg.name for spec in specs if spec.kind.name == "CONSTANT_TENSOR"}


def decide(program: ExportedProgram, conditions: list[Node]) -> None:
    """Let PROGRAM give NaN where one of CONDITIONS, nodes before its results, does not hold.

    Raises:
        Undecided: it has no floating result, so that nothing would show it.
    """
    results: Any = next(iter(reversed(program.graph_module.graph.nodes)))
    holds = reduce(lambda a, b: call(_ATEN.logical_and.default, a, b), conditions)
    _blank(program, results, holds)
    outputs = list(results.args[0])
    if DECIDED in program.graph_module.meta:
        holds = call(_ATEN.logical_and.default, outputs.pop(), holds)
    results.args = ((*outputs, holds),)
    program.graph_module.meta[DECIDED] = True
    program.graph_module.recompile()


def _decided(check: Any) -> bool:
    """Tell whether CHECK is that a size is not negative, or of one that is fixed by now, as ``counted`` fixes them."""
    size: Any = check.args[0] if check.target in _COMPARED else None
    if getattr(size, "target", None) is not _ATEN.sym_size.int:
        return False
    none = check.target is operator.ge and check.args[1] == 0
    return none or not free_symbols(size.args[0].meta["val"].shape[size.args[1]])


def _blank(program: ExportedProgram, results: Node, holds: Node) -> None:
    """Return NaN for floating results of the module where HOLDS does not.

    Raises:
        Undecided: it has none, so that nothing would show it.
    """
    shown = False
    for node in results.all_input_nodes:
        specs = [it for it in program.graph_signature.output_specs if it.arg.name == node.name]
        own = any(it.kind.name == "USER_OUTPUT" for it in specs)
        if own and node.meta["val"].is_floating_point():
            held = call(_ATEN.where.ScalarOther, holds, node, float("nan"))
            results.replace_input_with(node, held)
            for spec in specs:  # a result may be an input, which keeps its name
                spec.arg = TensorArgument(name=held.name)
            shown = True
    if not shown:
        raise Undecided


def call(target: Any, *args: Any, **kwargs: Any) -> Node:
    """Return a new call, where the graph of its first argument inserts."""
    made = args[0].graph.call_function(target, args, kwargs)
    values = pytree.tree_map_only(Node, lambda node: node.meta["val"], args)
    with values[0].fake_mode:
        made.meta["val"] = target(*values, **kwargs)
    return cast(Node, made)


def _value(node: Any, masks: set[str]) -> Node:
    """Return the number or truth value of NODE, Python's, as a tensor of the graph.

    Raises:
        Undecided: it is none of a mask, or computed in a way that is not known here.
    """
    if node.target is _ATEN.item.default and origins(node) <= masks:
        return call(_ATEN.view.default, node.args[0], [])
    if node.target is torch.sym_ite and tuple(node.args[1:]) == (1, 0):
        return call(_ATEN._to_copy.default, _value(node.args[0], masks), dtype=torch.int64)
    if node.target is torch.sym_not:
        return call(_ATEN.logical_not.default, _value(node.args[0], masks))
    compared = _COMPARED.get(node.target)
    if compared is None or isinstance(node.args[1], Node):
        raise Undecided
    return call(compared, _value(node.args[0], masks), node.args[1])


def origins(node: Node) -> set[str]:
    """Return the names of all inputs and constants that NODE is computed from."""
    seen: set[Node] = set()
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            waiting += each.all_input_nodes
    return {each.name for each in seen if each.op in ("placeholder", "get_attr")}
