"""Reads by a mask whose number of rows was taken as the example has it: another number gives NaN, as in ``masks``.

Lengths that are known may say how many rows a mask chooses. Then ``torch.export`` fixes their number, and only a
check that nobody runs remembers that it was the mask's.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_symbols

from ...census import live_nodes
from ..blocks import replace
from .masks import Undecided, call, decide, from_masks, origins

_ATEN: Final = torch.ops.aten


def count_reads(program: ExportedProgram) -> None:
    """Let PROGRAM read so many rows as were recorded, where masks of the inputs choose them; it checks that."""
    names = from_masks(program)
    reads = [(it, mask) for it in live_nodes(program.graph) if (mask := _mask(it)) is not None]
    reads = [(node, mask) for node, mask in reads if origins(mask) <= names]
    if not reads:
        return
    with contextlib.suppress(Undecided):
        with program.graph.inserting_before(next(iter(reversed(program.graph.nodes)))):
            decide(program, [_fits(mask, int(node.meta["val"].shape[0])) for node, mask in reads])
        for node, mask in reads:
            with program.graph.inserting_before(node):
                replace(program, node, _read(node, mask))
        program.graph_module.recompile()


def _mask(node: Any) -> Node | None:
    """Return the mask by which NODE reads a number of rows that was fixed."""
    if node.target is _ATEN.nonzero.default:
        mask = node.args[0]
    elif node.target is _ATEN.index.Tensor and len(node.args[1]) == 1:
        mask = node.args[1][0]
    else:
        return None
    by_mask = node.target is _ATEN.nonzero.default or mask.meta["val"].dtype == torch.bool
    return mask if by_mask and not free_symbols(node.meta["val"].shape[0]) else None


def _fits(mask: Node, count: int) -> Node:
    """Return whether MASK chooses COUNT."""
    chosen = call(_ATEN.ne.Scalar, mask, 0)
    return call(_ATEN.eq.Scalar, call(_ATEN.sum.default, chosen), count)


def _read(node: Any, mask: Node) -> Node:
    """Return what NODE reads, as many places as it was recorded with."""
    places = call(_ATEN.nonzero_static.default, mask, size=int(node.meta["val"].shape[0]))
    if node.target is _ATEN.nonzero.default:
        return places
    axes = range(mask.meta["val"].ndim)
    columns = [call(_ATEN.select.int, places, 1, axis) for axis in axes]
    return call(_ATEN.index.Tensor, node.args[0], columns)
