"""Tensors of PyTorch without numbers: what torch would do to one is done to its form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import torch

from ..learn.trace.forms import Form, joined
from ..learn.trace.pieces import Unfit


class Traced(torch.Tensor):
    """A tensor without numbers that knows what it is made of."""

    form: Form

    @staticmethod
    def __new__(cls, form: Form, dtype: torch.dtype) -> Traced:
        """Return a tensor of the shape of FORM; nothing is allocated."""
        made: Traced = torch.Tensor._make_wrapper_subclass(
            cls, form.shape, dtype=dtype, device=torch.device("cpu")
        )
        made.form = form
        return made

    def __init__(self, form: Form, dtype: torch.dtype) -> None:
        """Take what ``__new__`` took."""

    def __repr__(self) -> str:  # type: ignore[override]
        """Print the shape; there are no numbers."""
        return f"Traced{self.form.shape}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Do to the forms what FUNCTION would do to the tensors.

        Raises:
            Unfit: it does more than move numbers.
        """
        name = function._schema.name.removeprefix("aten::")
        if name not in MOVES:
            raise Unfit(f"loading calls torch's {name}, which computes with the numbers")
        first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
        dtype = (kwargs or {}).get("dtype") or first.dtype
        made = MOVES[name](*args)
        forms = made if isinstance(made, list) else [made]
        found = [Traced(form, dtype) for form in forms]
        return found if isinstance(made, list) else found[0]


def _axis_of(tensor: Traced, dim: int) -> int:
    return dim % max(tensor.ndim, 1)


def _same(tensor: Traced, *_: Any) -> Form:
    return tensor.form


def _viewed(tensor: Traced, shape: Sequence[int]) -> Form:
    known = torch.empty(tensor.shape, device="meta").reshape(list(shape))
    return tensor.form.reshaped(tuple(known.shape))


def _permuted(tensor: Traced, dims: Sequence[int]) -> Form:
    return tensor.form.transposed([_axis_of(tensor, dim) for dim in dims])


def _transposed(tensor: Traced, one: int = 0, other: int = 1) -> Form:
    order = list(range(tensor.ndim))
    one, other = _axis_of(tensor, one), _axis_of(tensor, other)
    order[one], order[other] = other, one
    return tensor.form.transposed(order)


def _unsqueezed(tensor: Traced, dim: int) -> Form:
    shape = list(tensor.shape)
    shape.insert(dim % (tensor.ndim + 1), 1)
    return tensor.form.reshaped(shape)


def _squeezed(tensor: Traced, dims: int | Sequence[int] | None = None) -> Form:
    """Return the form without the axes DIMS that have size 1, all such axes by default."""
    chosen = range(tensor.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {_axis_of(tensor, dim) for dim in chosen}
    shape = [size for at, size in enumerate(tensor.shape) if size != 1 or at not in gone]
    return tensor.form.reshaped(shape)


def _sliced(
    tensor: Traced, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Form:
    axis = _axis_of(tensor, dim)
    return tensor.form.sliced(axis, *slice(start, end, step).indices(tensor.shape[axis]))


def _selected(tensor: Traced, dim: int, index: int) -> Form:
    axis = _axis_of(tensor, dim)
    at = index % tensor.shape[axis]
    shape = [size for other, size in enumerate(tensor.shape) if other != axis]
    return tensor.form.sliced(axis, at, at + 1).reshaped(shape)


def _cut(tensor: Traced, sizes: int | Sequence[int], dim: int = 0) -> list[Form]:
    """Return the form in parts of SIZES, or of one size each, along an axis."""
    axis = _axis_of(tensor, dim)
    total = tensor.shape[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - low) for low in range(0, total, sizes)]
    bounds = [0, *accumulate(sizes)]
    return [tensor.form.sliced(axis, low, high) for low, high in pairwise(bounds)]


def _unbound(tensor: Traced, dim: int = 0) -> list[Form]:
    return [_selected(tensor, dim, at) for at in range(tensor.shape[_axis_of(tensor, dim)])]


def _catenated(tensors: Sequence[Traced], dim: int = 0) -> Form:
    return joined([tensor.form for tensor in tensors], _axis_of(tensors[0], dim))


def _stacked(tensors: Sequence[Traced], dim: int = 0) -> Form:
    forms = [_unsqueezed(tensor, dim) for tensor in tensors]
    return joined(forms, dim % len(forms[0].shape))


# What torch is asked for, underneath its methods, by the name of the operation.
MOVES: Final[dict[str, Callable[..., Form | list[Form]]]] = {
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "lift_fresh", "_to_copy"), _same),
    **dict.fromkeys(("_reshape_alias", "_unsafe_view", "reshape", "view"), _viewed),
    **dict.fromkeys(("split", "split_with_sizes"), _cut),
    "cat": _catenated,
    "permute": _permuted,
    "select": _selected,
    "slice": _sliced,
    "squeeze": _squeezed,
    "stack": _stacked,
    "t": _transposed,
    "transpose": _transposed,
    "unbind": _unbound,
    "unsqueeze": _unsqueezed,
}
