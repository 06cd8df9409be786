"""One block of a native ``mlx.nn`` module run alone, at some positions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx
from mlx import nn

from ....errors import UnsupportedError
from ...common.arrays import from_mlx, to_mlx
from ...values import Array
from ..native.sites import called_as
from .kinds import Found, Given, outermost, output_of


def blocks_of(module: nn.Module, count: int) -> Sequence[nn.Module]:
    """Return the COUNT blocks of MODULE, in order.

    Raises:
        UnsupportedError: there is no one list of so many submodules.
    """
    lists = [
        (f"{path}.{name}".strip("."), row)
        for path, part in module.named_modules()
        for name, row in part.items()
        if isinstance(row, list) and all(isinstance(it, nn.Module) for it in row)
    ]
    return outermost(lists, count)


def run_block(
    blocks: Sequence[nn.Module],
    number: int,
    run: Callable[[], object],
    given: Given,
    rows: Sequence[int],
) -> Array:
    """Return what the block NUMBER of BLOCKS makes of hidden states, at ROWS; as for PyTorch."""
    skipped = [called_as(block, lambda _, *args, **__: args[0]) for block in blocks[:number]]
    last = called_as(blocks[number], taking_out(given, rows))
    out = output_of(number, [*skipped, some_queries(rows), last], run)
    array: Array = from_mlx(out[:, mx.array(list(rows))])
    return array


def taking_out(given: Given, rows: Sequence[int]) -> Callable[..., Any]:
    """Return a call that gives a block the hidden states GIVEN and raises ``Found`` with its output."""

    def call(plain: Callable[..., Any], x: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(x, mx.array) or x.ndim != 3 or x.shape[1] <= max(rows):
            raise UnsupportedError("its input is not (batch, positions, width)")
        out = plain(to_mlx(given(tuple(x.shape))).astype(x.dtype), *args, **kwargs)
        raise Found(out[0] if isinstance(out, tuple | list) else out)

    return call


@contextlib.contextmanager
def some_queries(rows: Sequence[int]) -> Iterator[None]:
    """Let MLX's attention compute the queries at ROWS alone; the others are zeros."""
    plain, places = mx.fast.scaled_dot_product_attention, mx.array(list(rows))

    def attend(q: mx.array, k: mx.array, v: mx.array, *, mask: Any = None, **named: Any) -> Any:
        if q.shape[2] <= max(rows):
            raise UnsupportedError("its queries are not (batch, heads, positions, width)")
        if isinstance(mask, str):  # causal, the last query and the last key side by side
            mask = mx.arange(k.shape[2]) <= (places + k.shape[2] - q.shape[2])[:, None]
        elif mask is not None and mask.shape[-2] != 1:
            mask = mask[..., places, :]
        out = plain(q[:, :, places], k, v, mask=mask, **named)
        whole = mx.zeros((*q.shape[:3], v.shape[-1]), out.dtype)
        whole[:, :, places] = out
        return whole

    mx.fast.scaled_dot_product_attention = attend
    try:
        yield
    finally:
        mx.fast.scaled_dot_product_attention = plain
