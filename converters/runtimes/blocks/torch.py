"""One block of a PyTorch module run alone, at some positions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
from torch import nn

from ....errors import UnsupportedError
from ...common.arrays import from_torch, to_torch
from ...common.dtypes import dtype_of
from ...values import Array
from ..torch import first_tensor, replace_first
from .kinds import Found, Given, one_of_each, outermost, output_of, traits

ATTENTION: Final = "eager_attention_forward"  # transformers' name of it, in every file of models
SAMPLE: Final = 12  # positions on which it is seen whether a part works token by token


def blocks_of(module: nn.Module, count: int) -> Sequence[nn.Module]:
    """Return the COUNT blocks of MODULE, in order.

    Raises:
        UnsupportedError: there is no one list of so many submodules.
    """
    lists = [(path, it) for path, it in module.named_modules() if isinstance(it, nn.ModuleList)]
    return outermost(lists, count)


def run_block(
    blocks: Sequence[nn.Module],
    number: int,
    run: Callable[[], object],
    given: Given,
    rows: Sequence[int],
) -> Array:
    """Return what the block NUMBER of BLOCKS makes of hidden states, at ROWS.

    Args:
        blocks: of one module, in order.
        number: of the block that is run; those before it return what they take.
        run: calls the module with token ids as many as there are positions.
        given: the hidden states that reach the block, shape ``(1, positions, width)``.
        rows: positions of which the output is right; queries are computed for these alone.

    Returns:
        Its output, shape ``(1, rows, width)``, in the dtype of the module.

    Raises:
        UnsupportedError: the module does not run so; why.
    """
    chosen = blocks[number]
    before = [skipped(block) for block in blocks[:number]]
    changes = [*before, some_queries(chosen, rows), taken_out(chosen, given, rows)]
    array: Array = from_torch(output_of(number, changes, run)[:, list(rows)])
    return array


@contextlib.contextmanager
def forward_as(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Let MODULE do FORWARD in place of its own."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def skipped(block: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Let BLOCK return the hidden states that it takes."""
    return forward_as(block, lambda *args, **kwargs: first_tensor(args or kwargs))


@contextlib.contextmanager
def one_of_each_kind(module: nn.Module, count: int) -> Iterator[None]:
    """Let MODULE, which has COUNT blocks, run the first of each kind alone.

    Raises:
        UnsupportedError: there is no one list of so many submodules.
    """
    blocks = blocks_of(module, count)
    kept = one_of_each([traits(block) for block in blocks])
    with contextlib.ExitStack() as stack:
        for number, block in enumerate(blocks):
            if number not in kept:
                stack.enter_context(skipped(block))
        yield


@contextlib.contextmanager
def taken_out(block: nn.Module, given: Given, rows: Sequence[int]) -> Iterator[None]:
    """Give BLOCK the hidden states GIVEN and raise ``Found`` with its output."""

    def enter(_: nn.Module, args: Any, kwargs: Any) -> Any:
        tensor = first_tensor(args or kwargs)
        if tensor is None or tensor.ndim != 3 or tensor.shape[1] <= max(rows):
            raise UnsupportedError("its input is not (batch, positions, width)")
        dtype = str(tensor.dtype).removeprefix("torch.")
        states = to_torch(given(tuple(tensor.shape)).astype(dtype_of(dtype)))
        if args:
            return replace_first(args, states), kwargs
        return args, replace_first(kwargs, states)

    def leave(_: nn.Module, __: Any, out: Any) -> Any:
        raise Found(first_tensor(out))

    with contextlib.ExitStack() as stack:
        for handle in (
            block.register_forward_pre_hook(enter, with_kwargs=True),
            block.register_forward_hook(leave),
        ):
            stack.callback(handle.remove)
        yield


@contextlib.contextmanager
def some_queries(block: nn.Module, rows: Sequence[int]) -> Iterator[None]:
    """Let the attention and what works token by token in BLOCK compute ROWS alone; others are zeros."""
    files = {type(part).__module__ for part in block.modules()}
    with contextlib.ExitStack() as stack:
        for file in sorted(files):
            plain = getattr(sys.modules.get(file), ATTENTION, None)
            if plain is not None:
                stack.callback(setattr, sys.modules[file], ATTENTION, plain)
                setattr(sys.modules[file], ATTENTION, attending(plain, list(rows)))
        for child in block.children():
            if list(child.children()):
                stack.enter_context(forward_as(child, by_rows(child.forward, list(rows))))
        yield


def attending(plain: Callable[..., Any], rows: list[int]) -> Callable[..., Any]:
    """Return the attention PLAIN of transformers for the queries at ROWS, against all keys."""

    def attend(
        module: nn.Module, query: Any, key: Any, value: Any, mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if query.shape[2] <= max(rows):
            raise UnsupportedError("its queries are not (batch, heads, positions, width)")
        whole = mask is None or mask.shape[-2] == 1
        cut = mask if whole else mask[..., rows, :]
        out, weights = plain(module, query[:, :, rows], key, value, cut, *args, **kwargs)
        return spread(out, rows, query.shape[2]), weights

    return attend


def spread(values: torch.Tensor, rows: list[int], length: int) -> torch.Tensor:
    """Return VALUES, shape ``(batch, rows, ...)``, at their places among LENGTH; others are zeros."""
    whole = values.new_zeros(values.shape[0], length, *values.shape[2:])
    whole[:, rows] = values
    return whole


def by_rows(plain: Callable[..., Any], rows: list[int]) -> Callable[..., Any]:
    """Return PLAIN for ROWS alone where it works token by token, else as it is.

    That is tried: a few positions alone give what they give among others.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        if len(args) != 1 or kwargs or not per_token(plain, args[0]):
            return plain(*args, **kwargs)
        return spread(plain(args[0][:, rows]), rows, args[0].shape[1])

    return forward


def per_token(plain: Callable[..., Any], x: Any) -> bool:
    """Say whether PLAIN gives the last half of a few positions of X the same without the first."""
    if not isinstance(x, torch.Tensor) or x.ndim != 3:
        return False
    some, half = x[:, :SAMPLE], SAMPLE // 2
    whole, alone = plain(some), plain(some[:, half:])
    return (
        isinstance(whole, torch.Tensor)
        and whole.shape[:2] == some.shape[:2]
        and bool(torch.allclose(whole[:, half:], alone, rtol=1e-4, atol=1e-6))
    )
