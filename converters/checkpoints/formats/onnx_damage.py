"""ONNX files that hold no model that could run: found as a file is opened, before anything is made of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import numpy as np

from ....errors import BadInputError
from .onnx_rounded import graphs

SHOWN: Final = 2  # flaws in a message
DEFAULT: Final = ("", "ai.onnx")  # names of ONNX's own operations
# Types of fewer bits than a byte, which numpy's dtypes do not tell.
BITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT2", "UINT2"), 2),
}


class Outside(NamedTuple):
    """Where the bytes of a tensor lie beside its model: in a file, from an offset on."""

    path: Path
    offset: int
    length: int

    def read(self) -> bytes:
        """Return them."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length)


def refuse_damaged(path: Path, proto: Any) -> None:
    """Refuse the model PROTO, read from PATH, whose graph or whose tensors cannot be what they say.

    Raises:
        BadInputError: names the first flaws.
    """
    flaws = [*_flaws_of_tensors(path, proto), *_flaws_of_graph(proto)]
    if flaws:
        more = f"; and {len(flaws) - SHOWN} more" if len(flaws) > SHOWN else ""
        raise BadInputError(
            f"{path}: is damaged: {'; '.join(flaws[:SHOWN])}{more}; get or export it again"
        )


def outside(tensor: Any, model: Path) -> Outside | None:
    """Return where the bytes of TENSOR lie beside the file MODEL; ``None`` where they are inside.

    Links are followed as the hub's cache has them: to where the model itself really lies.

    Raises:
        ValueError: says why they cannot be there.
    """
    if tensor.data_location != tensor.EXTERNAL:
        return None
    fields = {it.key: it.value for it in tensor.external_data}
    path = _beside(fields.get("location", ""), model)
    whole, needed = path.stat().st_size, size_of(tensor)
    offset = _number(fields, "offset", 0)
    length = _number(fields, "length", whole - offset if needed is None else needed)
    if needed not in (None, length):
        raise ValueError(f"has {length:,} bytes of {path.name}, and needs {needed:,}")
    if offset + length > whole:
        end = offset + length
        raise ValueError(f"ends at byte {end:,} of {path.name}, which has {whole:,}")
    return Outside(path, offset, length)


def _beside(location: str, model: Path) -> Path:
    """Return the file LOCATION beside MODEL; a ``ValueError`` says why there is none."""
    parts = PurePosixPath(location).parts
    if not parts or parts[0] == "/" or ".." in parts:
        raise ValueError(f"is kept at {location!r}, which is no file beside the model")
    path = model.parent / location
    try:
        real, folders = path.resolve(strict=True), (model.parent, model.resolve().parent)
    except (OSError, RuntimeError):  # the latter of links in a circle
        raise ValueError(f"is kept in {location}, which is not there") from None
    if not real.is_file() or not any(real.is_relative_to(it.resolve()) for it in folders):
        raise ValueError(f"is kept at {location!r}, which is no file beside the model")
    return path


def _number(fields: Mapping[str, str], key: str, default: int) -> int:
    text = fields.get(key, "")
    if text and not (text.isascii() and text.isdigit()):
        raise ValueError(f"has the {key} {text[:20]!r}, which is none")
    return int(text) if text else default


def size_of(tensor: Any) -> int | None:
    """Return how many bytes TENSOR takes by its type and shape; ``None`` of texts, which vary.

    Raises:
        ValueError: onnx does not know its type, or a size is negative.
    """
    from onnx import TensorProto
    from onnx.helper import tensor_dtype_to_np_dtype as dtype_of

    if any(size < 0 for size in tensor.dims):
        raise ValueError(f"has the shape {tuple(tensor.dims)}")
    try:
        name = TensorProto.DataType.Name(tensor.data_type)
        bits = BITS.get(name) or 8 * np.dtype(dtype_of(tensor.data_type)).itemsize
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"has a type of number {tensor.data_type}, which is none") from None
    return None if name == "STRING" else -(-math.prod(tensor.dims) * bits // 8)


def _flaws_of_tensors(path: Path, proto: Any) -> Iterator[str]:
    """Yield what is wrong with the initializers of PROTO, those of inner graphs among them."""
    for graph in graphs(proto.graph):
        known: dict[str, Any] = {}
        others = (it for it in graph.initializer if known.setdefault(it.name, it) != it)
        yield from (f"tensor {it.name} is there twice, with other values" for it in others)
        for tensor in graph.initializer:
            try:
                _require_whole(tensor, path)
            except ValueError as error:
                yield f"tensor {tensor.name} {error}"


def _require_whole(tensor: Any, model: Path) -> None:
    needed = size_of(tensor)
    if outside(tensor, model) is None and tensor.HasField("raw_data"):
        held = len(tensor.raw_data)
        if held != needed:
            raise ValueError(f"holds {held:,} bytes, and needs {needed or 0:,}")


def _flaws_of_graph(proto: Any) -> Iterator[str]:
    """Yield why nothing could run the graph of PROTO, whatever its operations are."""
    graph = proto.graph
    domains = {it.domain for it in proto.opset_import}
    domains |= set(DEFAULT) if domains & set(DEFAULT) else set()
    unknown = {node.domain for node in graph.node} - domains
    names = sorted(it or "ONNX's own operations" for it in unknown)
    yield from (f"it says no version of {name}" for name in names)
    versions = {it.domain or "ONNX": it.version for it in proto.opset_import}
    yield from (f"it has version {n} of {name}" for name, n in versions.items() if n < 1)
    if not graph.output:
        yield "its graph gives nothing"
    yield from _flaws_of_values(graph)


def _flaws_of_values(graph: Any) -> Iterator[str]:
    """Yield which values of GRAPH are made twice, by nothing, or of themselves."""
    given = {it.name for it in (*graph.input, *graph.initializer)}
    given |= {it.values.name for it in graph.sparse_initializer}
    counts = Counter(name for node in graph.node for name in node.output if name)
    counts.update(counts.keys() & given)
    yield from (f"{name} is made twice" for name, count in counts.items() if count > 1)
    reads = [reads_of(node) for node in graph.node]
    ends = {it.name for it in graph.output}
    lost = dict.fromkeys(n for them in (*reads, ends) for n in them if n not in counts)
    yield from (f"nothing makes {name}, which is read" for name in lost if name not in given)
    yield from _circles(graph, reads, {*given, *lost})


def _circles(graph: Any, reads: Sequence[Collection[str]], known: set[str]) -> Iterator[str]:
    """Yield a node of GRAPH that waits for its own outputs, where what is KNOWN does not lead to all."""
    waiting = list(zip(graph.node, reads, strict=True))
    while waiting:
        rest = []
        for node, read in waiting:
            if known.issuperset(read):
                known.update(node.output)
            else:
                rest.append((node, read))
        if len(rest) == len(waiting):
            node = rest[0][0]
            yield f"{node.name or node.op_type} ({node.op_type}) waits for what is made of its own outputs"
            return
        waiting = rest


def reads_of(node: Any) -> set[str]:
    """Return the values that NODE reads, its inner graphs included, but for what these make themselves."""
    found = {name for name in node.input if name}
    for attribute in node.attribute:
        inner = (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
        for graph in inner:
            made = {it.name for it in (*graph.input, *graph.initializer)}
            made |= {name for it in graph.node for name in it.output}
            read = {name for it in graph.node for name in reads_of(it)}
            found |= (read | {it.name for it in graph.output}) - made
    return found
