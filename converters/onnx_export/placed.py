"""Which constant of one ONNX graph is which of another's, by the order in which outputs lead to what reads them.

For graphs of one model by several exporters and quantizers: the names and the shapes of values are
others, the layers and what they read are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from ..captures.constants import UNREAD
from ..checkpoints.formats.onnx_model import OnnxFile
from ..common.dtypes import FLOATS
from .unnamed import TURNING

MOVING: Final = "Transpose"


class Read(NamedTuple):
    """A constant that a node reads.

    Attributes:
        sizes: of its axes, the largest first, without those of size 1.
        name: what the file calls it.
        turned: whether a product multiplies by its transpose.
    """

    sizes: tuple[int, ...]
    name: str
    turned: bool


def along(graph: Any) -> list[Any]:
    """Return the nodes of GRAPH as its outputs lead to them, each behind what it takes, in the order of its inputs.

    Programs that rewrite a graph list independent nodes in another order: keys before queries.
    """
    made = {name: node for node in graph.node for name in node.output}
    found: dict[int, Any] = {}
    todo = [(made[it.name], False) for it in reversed(graph.output) if it.name in made]
    opened: set[int] = set()
    while todo:
        node, complete = todo.pop()
        if complete:
            found[id(node)] = node
        elif id(node) not in opened:
            opened.add(id(node))
            todo.append((node, True))
            todo += [(made[it], False) for it in reversed(node.input) if it in made]
    return [*found.values()]


def reads(file: OnnxFile) -> Iterator[Read]:
    """Yield what the nodes of FILE read of constants with axes, in floating point or on codes."""
    packed = {it.codes: name for name in file.headers if (it := file.packed(name))}
    for node in along(file.proto.graph):
        turned = any(it.name == TURNING and it.i for it in node.attribute)
        for given in node.input:
            name = packed.get(given, given)
            header = file.headers.get(name)
            if header is None or header.dtype not in FLOATS:
                continue
            sizes = tuple(sorted((it for it in header.shape if it > 1), reverse=True))
            if sizes:
                lies = turned or given in packed or node.op_type == MOVING
                yield Read(sizes, name, lies and len(header.shape) > 1)


def record_in_order(
    manifest: Mapping[str, Any], one: OnnxFile, other: OnnxFile
) -> dict[str, Any] | None:
    """Return the record of OTHER by the MANIFEST of ONE, an export of ours; ``None`` where that is not clear.

    It has no hashes: what was found is held against the file itself, which is run.
    """
    weights = dict(manifest.get("weights") or {})
    mine, its = [it for it in reads(one) if it.name in weights], [*reads(other)]
    matcher = SequenceMatcher(None, [it.sizes for it in mine], [it.sizes for it in its], False)
    found: dict[str, tuple[str, bool]] = {}
    for start, at, size in matcher.get_matching_blocks():
        for read, there in zip(mine[start : start + size], its[at : at + size], strict=True):
            place = there.name, read.turned != there.turned
            if found.setdefault(read.name, place) != place:
                return None
    if found.keys() != {it.name for it in mine} or len({name for name, _ in found.values()}) < len(
        found
    ):
        return None
    return {
        "weights": {
            place: {
                "key": weights[name]["key"],
                "also": weights[name].get("also", []),
                "transposed": turned,
            }
            for name, (place, turned) in found.items()
        },
        UNREAD: manifest.get(UNREAD, []),
    }
