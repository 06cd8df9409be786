"""Calls that MLX cannot export, or exports as dozens of primitives, made single nodes of a trace.

While a function is traced, these calls are replaced by a marker: ``as_strided`` over the bytes of
the operands, whose offset is the number of the call. Afterwards :func:`folded` puts one node in the
marker's place. ``contiguous`` is left out, because it changes no value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from .....errors import UnsupportedError

MODES: Final = {"affine": 0, "mxfp4": 1, "mxfp8": 2, "nvfp4": 3}
SIZES: Final = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
MARKER: Final = "AsStrided"


class Call(NamedTuple):
    """A call that stands as a marker in a trace.

    Attributes:
        name: of the operation in a program.
        arguments: of the operation.
        steps: how many primitives lie between the marker and each operand.
        dtype: of the result.
    """

    name: str
    arguments: tuple[Any, ...]
    steps: tuple[int, ...]
    dtype: Any


Node = dict[str, Any]  # a record of mx.export_function of the type "primitive"


@contextmanager
def marked() -> Iterator[list[Call]]:
    """Put markers in the place of MLX's functions; yields the calls as they are made.

    Not thread-safe: the functions of ``mlx.core`` are replaced for the duration, and always put back.
    """
    import mlx.core as mx

    calls: list[Call] = []
    replaced = {name: getattr(mx, name) for name in REPLACED}
    for name, make in REPLACED.items():
        setattr(mx, name, make(mx, replaced[name], calls))
    try:
        yield calls
    finally:
        for name, function in replaced.items():
            setattr(mx, name, function)


def _contiguous(mx: Any, original: Any, calls: list[Call]) -> Callable[..., Any]:  # noqa: ARG001
    return lambda array, *args, **kwargs: array  # noqa: ARG005


def _from_fp8(mx: Any, original: Any, calls: list[Call]) -> Callable[..., Any]:
    def from_fp8(x: Any, dtype: Any = mx.bfloat16, **kwargs: Any) -> Any:
        return _mark(mx, calls, original(x, dtype=dtype, **kwargs), ("FromFP8", (dtype,), (x,)))

    return from_fp8


def _to_fp8(mx: Any, original: Any, calls: list[Call]) -> Callable[..., Any]:
    def to_fp8(x: Any, **kwargs: Any) -> Any:
        return _mark(mx, calls, original(x, **kwargs), ("ToFP8", (), (x,)))

    return to_fp8


def _dequantize(mx: Any, original: Any, calls: list[Call]) -> Callable[..., Any]:
    def dequantize(  # noqa: PLR0913, PLR0917  (the signature is MLX's)
        w: Any,
        scales: Any,
        biases: Any = None,
        group_size: int | None = None,
        bits: int | None = None,
        mode: str = "affine",
        global_scale: Any = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> Any:
        if global_scale is not None:
            raise UnsupportedError("a program has no `dequantize` with a global scale")
        size, width = group_size or SIZES[mode][0], bits or SIZES[mode][1]
        result = original(w, scales, biases, size, width, mode, None, dtype, **kwargs)
        operands = (w, scales) if biases is None else (w, scales, biases)
        arguments = (size, width, MODES[mode], result.dtype)
        return _mark(mx, calls, result, ("Dequantize", arguments, operands))

    return dequantize


REPLACED: Final[Mapping[str, Callable[[Any, Any, list[Call]], Callable[..., Any]]]] = {
    "contiguous": _contiguous,
    "dequantize": _dequantize,
    "from_fp8": _from_fp8,
    "to_fp8": _to_fp8,
}


def _mark(mx: Any, calls: list[Call], result: Any, call: tuple[str, Any, Any]) -> Any:
    """Return an array like RESULT that the trace shows to be made by CALL."""
    name, arguments, operands = call
    flat = [array if array.ndim == 1 else array.reshape(-1) for array in operands]
    raw = [array if array.dtype == mx.uint8 else array.view(mx.uint8) for array in flat]
    steps = [(a.ndim != 1) + (a.dtype != mx.uint8) for a in operands]
    calls.append(Call(name, arguments, tuple(steps), result.dtype))
    whole = mx.concatenate(raw) if len(raw) > 1 else raw[0]
    strides = [0] * result.ndim
    return mx.as_strided(whole, result.shape, strides, len(calls) - 1).astype(result.dtype)


def folded(nodes: list[Node], calls: list[Call]) -> list[Node]:
    """Return NODES with one node in the place of every marker of CALLS."""
    if not calls:
        return nodes
    makers = {output[0]: node for node in nodes for output in node["outputs"]}
    markers: dict[str, Node] = {}
    kept = []
    for node in nodes:
        operand = node["inputs"][0][0] if node["inputs"] else None
        if node["name"] == MARKER and not any(node["arguments"][1]):
            call = calls[node["arguments"][2]]
            made = _one_node(node, call, makers)
            if str(call.dtype) == str(node["outputs"][0][2]):
                kept.append(made)
            else:
                markers[node["outputs"][0][0]] = made
        elif node["name"] == "AsType" and operand in markers:
            kept.append({**markers[operand], "outputs": node["outputs"]})
        else:
            kept.append(node)
    return kept


def _one_node(marker: Node, call: Call, makers: Mapping[str, Node]) -> Node:
    whole = makers.get(marker["inputs"][0][0])
    if len(call.steps) > 1:
        assert whole is not None  # noqa: S101  (the marker joined its operands)
        ends = whole["inputs"]
    else:
        ends = marker["inputs"]
    operands = []
    for end, steps in zip(ends, call.steps, strict=True):
        array = end
        for _ in range(steps):
            array = makers[array[0]]["inputs"][0]
        operands.append(array)
    return {
        "type": "primitive",
        "name": call.name,
        "arguments": list(call.arguments),
        "inputs": operands,
        "outputs": marker["outputs"],
    }
