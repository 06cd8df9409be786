"""Operations without a handler, written by torch itself as others: its own table of decompositions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, cast
from unittest import mock

import torch
from torch._decomp import decomposition_table
from torch._export.utils import _get_decomp_for_cia
from torch._ops import OpOverload
from torch.export import ExportedProgram

from ...tracing import composites_kept
from .registry import SIZES, handlers

Table = dict[OpOverload, Callable[..., Any]]

_ROUNDS: Final = 6  # a decomposition may be made of operations that need one in turn
_LOSSES: Final = (torch.ops.aten.nll_loss.default, torch.ops.aten.nll_loss.out)


def _decomposition(target: OpOverload) -> Callable[..., Any] | None:
    if target in decomposition_table:
        return decomposition_table[target]
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    known = torch._C._dispatch_has_kernel_for_dispatch_key(target._name, composite)
    return _get_decomp_for_cia(target) if known else None


def _nodes(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            yield from module.graph.nodes


def _missing(program: ExportedProgram, refused: set[OpOverload]) -> Table:
    """Return operation -> decomposition for those in PROGRAM that have no handler."""
    table = handlers()
    calls = {
        node.target
        for node in _nodes(program)
        if isinstance(node.target, OpOverload) and str(node.target) not in SIZES
    }
    found = {call: _decomposition(call) for call in calls - refused if str(call) not in table}
    return {call: function for call, function in found.items() if function is not None}


def _within() -> Table:
    """Return the decompositions of all that decompositions may be made of and that has no handler."""
    known = handlers().keys() | SIZES
    return {
        call: function
        for call, function in decomposition_table.items()
        if isinstance(call, OpOverload) and str(call) not in known and call not in _LOSSES
    }


def _updating(program: ExportedProgram) -> Table:
    """Return the decompositions of operations in PROGRAM that update running statistics, and do not say so.

    All others stay whole when updates in place are written as new tensors: their schemas tell.
    """
    norm = torch.ops.aten.instance_norm.default
    norms = [node.args for node in _nodes(program) if node.target is norm]
    tracked = any(by_the_input and mean is not None for _, _, _, mean, _, by_the_input, *_ in norms)
    return {norm: _get_decomp_for_cia(norm)} if tracked else {}


def _traced(program: ExportedProgram, table: Table) -> ExportedProgram:
    """Return PROGRAM as torch records it again, with what TABLE names decomposed and nothing in place.

    torch's own ``nll_loss`` in Python has other arguments in order than the operation: its shape would be that of a sum.
    """
    with mock.patch.dict(decomposition_table), composites_kept():
        for loss in _LOSSES:
            decomposition_table.pop(loss, None)
        return cast(ExportedProgram, program.run_decompositions(table))


def _attempt(program: ExportedProgram, table: Table) -> ExportedProgram | None:
    """Return PROGRAM with what TABLE names decomposed, if that can be recorded."""
    with suppress(Exception):  # of any kind: the census names the operation
        return _traced(program, table)
    return None


def _with_copies(program: ExportedProgram, table: Table) -> ExportedProgram | None:
    """Return PROGRAM, without updates in place, as ``_attempt`` does, with views as copies where no view can be taken.

    A decomposition may leave its result in another order of memory, which no view takes as recorded.
    """
    views = [node for node in program.graph.nodes if node.target is torch.ops.aten.view.default]
    for node in views:
        node.target = torch.ops.aten.reshape.default
    try:
        return _attempt(program, table)
    finally:
        for node in views:
            node.target = torch.ops.aten.view.default


def _with_either(program: ExportedProgram, table: Table) -> ExportedProgram | None:
    """Return PROGRAM with what TABLE names decomposed, with its views or, where these fail, with copies."""
    return _attempt(program, table) or _with_copies(program, table)


def decomposed(program: ExportedProgram) -> ExportedProgram:
    """Return PROGRAM with operations that have no handler replaced by torch's own decompositions.

    One whose decomposition cannot be recorded (it reads values, say) stays: the census names it. What it gives in
    the example may be all that is asked of it: the last trace, which decomposes nothing, has the number in its place.
    """
    refused: set[OpOverload] = set()
    before: set[OpOverload] = set()
    for _ in range(_ROUNDS):
        table = _missing(program, refused)
        if before == set(table):  # nothing left, or what stays what it is
            break
        before = set(table)
        whole = _with_either(program, _within() | table if table else table)
        if whole is not None:
            program = whole
            continue
        for call, function in table.items():
            alone = _with_either(program, {call: function})
            program, refused = (program, refused | {call}) if alone is None else (alone, refused)
    return program


def functional(program: ExportedProgram) -> ExportedProgram:
    """Return PROGRAM as ``decomposed`` does, and without updates in place: in one trace, where that can be recorded."""
    updates, missing = _updating(program), _missing(program, set())
    whole = _attempt(program, _within() | missing | updates) if missing else None
    return decomposed(whole or _traced(program, updates))
