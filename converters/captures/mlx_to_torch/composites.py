"""Functions of MLX that torch has too, kept whole: what a trace would take apart is marked.

On a CPU ``mx.fast.rms_norm`` and the like come out as a dozen primitives, on a GPU as one; an LSTM comes
out once per step. So while a module is traced each of them returns what it computes, made to depend
(``mx.depends``) on its own arguments and on a constant that says which call it was. Where the constant
is found in the graph, the call stands there instead of what it was made of.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import numpy as np
from mlx import nn
from mlx.nn.layers import pooling

SIGN: Final = 0x5742  # first number of the constants that mark a call
FORMS: Final = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
_numbers = itertools.count(1)  # of calls, in one process: compiled functions may keep earlier marks


class Mark(NamedTuple):
    """A call of a composite.

    Attributes:
        op: its name in our graphs.
        arguments: what it was called with besides arrays.
        arrays: the arrays, in the order of its handler.
    """

    op: str
    arguments: Sequence[Any]
    arrays: Sequence[mx.array]


class Marks:
    """The calls of one trace."""

    def __init__(self) -> None:
        self.calls: dict[int, Mark] = {}

    def put(self, mark: Mark, made: Any) -> Any:
        """Return MADE, an array or a tuple of arrays, with MARK on it."""
        number = next(_numbers)
        self.calls[number] = Mark(mark.op, mark.arguments, ())
        arrays = list(made) if isinstance(made, tuple) else [made]
        marked = mx.depends(arrays, [mx.array([SIGN, number], mx.int32), *mark.arrays])
        return tuple(marked) if isinstance(made, tuple) else marked[0]

    def find(self, constants: Iterable[mx.array | None]) -> Mark | None:
        """Return the call that the first of CONSTANTS marks, if it is one of this trace's."""
        first = next(iter(constants), None)
        if first is None or first.shape != (2,) or first.dtype != mx.int32:
            return None
        sign, number = np.array(first).tolist()
        return self.calls.get(number) if sign == SIGN else None


Describe = Callable[..., Mark | None]
_DESCRIBED: Final[list[tuple[Any, str, Describe]]] = []


def _composite(owner: Any, attribute: str = "__call__") -> Callable[[Describe], Describe]:
    """Register what describes the calls of OWNER's ATTRIBUTE; ``None`` leaves a call as it is."""

    def register(describe: Describe) -> Describe:
        _DESCRIBED.append((owner, attribute, describe))
        return describe

    return register


@contextlib.contextmanager
def marking() -> Iterator[Marks]:
    """Mark the calls of all composites in this context."""
    marks = Marks()
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in _DESCRIBED]
    try:
        for owner, name, describe in _DESCRIBED:
            setattr(owner, name, _marked(getattr(owner, name), describe, marks))
        yield marks
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _marked(original: Callable[..., Any], describe: Describe, marks: Marks) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(*arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        mark = describe(*arguments, **named)
        return made if mark is None else marks.put(mark, made)

    return called


def _given(*arrays: mx.array | None) -> tuple[list[mx.array], list[bool]]:
    """Return the ARRAYS that are there, and which of them are."""
    return [it for it in arrays if it is not None], [it is not None for it in arrays]


@_composite(mx, "stop_gradient")
def _stop_gradient(x: mx.array, **_: Any) -> Mark | None:
    return Mark("StopGradient", [], [x])


@_composite(mx, "dequantize")
def _dequantize(*arguments: Any, **named: Any) -> Mark | None:
    names = ("w", "scales", "biases", "group_size", "bits", "mode", "global_scale")
    given = {**dict(zip(names, arguments, strict=False)), **named}
    if given.get("global_scale") is not None:
        return None
    mode = given.get("mode") or "affine"
    group, bits = FORMS[mode]
    arrays, _there = _given(given["w"], given["scales"], given.get("biases"))
    return Mark(
        "Dequantize", [given.get("group_size") or group, given.get("bits") or bits, mode], arrays
    )


@_composite(mx.fast, "rms_norm")
def _rms_norm(x: mx.array, weight: mx.array | None, eps: float, **_: Any) -> Mark | None:
    arrays, there = _given(weight)
    return Mark("RMSNorm", [eps, *there], [x, *arrays])


@_composite(mx.fast, "layer_norm")
def _layer_norm(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float, **_: Any
) -> Mark | None:
    arrays, there = _given(weight, bias)
    return Mark("LayerNorm", [eps, *there], [x, *arrays])


@_composite(mx.fast, "rope")
def _rope(a: mx.array, dims: int, **named: Any) -> Mark | None:
    offset, periods = named["offset"], named.get("freqs")
    apart = isinstance(offset, mx.array)
    arrays, there = _given(offset if apart else None)
    speeds = _speeds(dims, named["base"]) if periods is None else _inverse(periods)
    numbers = [named["traditional"], named["scale"], 0 if apart else offset]
    return Mark("RoPE", [dims, *numbers, *there], [a, speeds, *arrays])


def _inverse(periods: mx.array) -> mx.array:
    """Return 1 / PERIODS, as a constant where they are one."""
    made = 1 / periods
    try:
        mx.eval(made)
    except (RuntimeError, ValueError):
        return made  # computed from inputs
    return made


def _speeds(dims: int, base: float) -> mx.array:
    """Return by how much each pair turns per position, as a constant of the graph."""
    half = dims // 2
    return mx.array(np.exp(np.arange(half) * (-math.log(base) / half)).astype(np.float32))


@_composite(mx.fast, "scaled_dot_product_attention")
def _attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: str | mx.array | None = None,
    sinks: mx.array | None = None,
    **_: Any,
) -> Mark | None:
    if sinks is not None:
        return None
    arrays, _there = _given(mask if isinstance(mask, mx.array) else None)
    return Mark(
        "Attention",
        [scale, mask == "causal" if isinstance(mask, str) else False],
        [q, k, v, *arrays],
    )


@_composite(pooling._Pool)
def _pool(self: Any, x: mx.array) -> Mark | None:
    kernel, stride = list(self._kernel_size), list(self._stride)
    padding = [pair[0] for pair in self._padding]
    largest = self._pooling_function is mx.max
    if not largest and self._pooling_function is not mx.mean:
        return None
    fits = all(2 * pad <= size for pad, size in zip(padding, kernel, strict=True))
    pairs = all(pair[0] == pair[1] for pair in self._padding)
    return Mark("Pool", [largest, kernel, stride, padding], [x]) if fits and pairs else None


@_composite(nn.BatchNorm)
def _batch_norm(self: Any, x: mx.array) -> Mark | None:
    if self.training or not self.track_running_stats:
        return None
    arrays, there = _given(self.get("weight"), self.get("bias"))
    return Mark("BatchNorm", [self.eps, *there], [x, self.running_mean, self.running_var, *arrays])


@_composite(nn.GroupNorm)
def _group_norm(self: Any, x: mx.array) -> Mark | None:
    if not self.pytorch_compatible or x.ndim < 3:
        return None
    arrays, there = _given(self.get("weight"), self.get("bias"))
    return Mark("GroupNorm", [self.num_groups, self.eps, *there], [x, *arrays])


@_composite(nn.Upsample)
def _upsample(self: Any, x: mx.array) -> Mark | None:
    scales = self.scale_factor
    scales = list(scales) if isinstance(scales, tuple | list) else [scales] * (x.ndim - 2)
    whole = self.mode == "nearest" and all(it == int(it) for it in scales)
    return Mark("Upsample", [[float(it) for it in scales]], [x]) if whole else None


@_composite(nn.LSTM)
def _lstm(
    self: Any, x: mx.array, hidden: mx.array | None = None, cell: mx.array | None = None
) -> Mark | None:
    arrays, there = _given(self.bias, hidden, cell)
    return Mark("LSTM", there, [x, self.Wx, self.Wh, *arrays])


@_composite(nn.GRU)
def _gru(self: Any, x: mx.array, hidden: mx.array | None = None) -> Mark | None:
    arrays, there = _given(self.b, self.bhn, hidden)
    return Mark("GRU", there, [x, self.Wx, self.Wh, *arrays])


@_composite(nn.RNN)
def _rnn(self: Any, x: mx.array, hidden: mx.array | None = None) -> Mark | None:
    if self.nonlinearity not in (mx.tanh, nn.tanh):
        return None
    arrays, there = _given(self.bias, hidden)
    return Mark("RNN", there, [x, self.Wxh, self.Whh, *arrays])
