"""Functions of torch that take a number alone, of sizes that vary: computed from others, that take such sizes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final, cast
from unittest import mock

import torch

_LINSPACE: Final[Any] = torch.linspace
_LOGSPACE: Final[Any] = torch.logspace
_LARGER: Final[Any] = torch.sym_max
_SMALLER: Final[Any] = torch.sym_min


@contextlib.contextmanager
def sizes_taken() -> Iterator[None]:
    """Let such functions take sizes that vary in the block."""
    evenly = {"linspace": _linspace, "logspace": _logspace}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch, **cast(Any, evenly)))
        for owner in (torch, torch.Tensor):
            for name, function in (("diagonal", _diagonal), ("diag", _diag)):
                own = getattr(owner, name)
                stack.enter_context(mock.patch.object(owner, name, _by_size(own, function)))
        yield


def _linspace(start: Any, end: Any, steps: Any, **options: Any) -> Any:
    """Do as ``torch.linspace``, which takes no number of steps that may vary."""
    kind = options.get("dtype") or torch.get_default_dtype()
    if not isinstance(steps, torch.SymInt) or not kind.is_floating_point:
        return _LINSPACE(start, end, steps, **options)
    exact = kind if kind == torch.float64 else torch.float32
    count = torch.arange(cast(int, steps), dtype=exact, device=options.get("device"))
    step = (end - start) / _LARGER(steps - 1, 1)
    left: Any = steps - 1
    from_end = end - step * (left - count)  # as torch computes the second half
    return torch.where(count < _LARGER(steps // 2, 1), start + step * count, from_end).to(kind)


def _logspace(start: Any, end: Any, steps: Any, base: float = 10.0, **options: Any) -> Any:
    """Do as ``torch.logspace``, likewise."""
    if not isinstance(steps, torch.SymInt):
        return _LOGSPACE(start, end, steps, base, **options)
    return torch.pow(base, _linspace(start, end, steps, **options))


def _by_size(own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """Return OWN, a reader of diagonals, which does as OTHER where the diagonal is one of a size that varies."""

    def read(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        varies = any(isinstance(it, torch.SymInt) for it in given)
        return (other if varies and x.ndim > 1 else own)(x, *args, **kwargs)

    return read


def _diagonal(x: torch.Tensor, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> torch.Tensor:
    x = x.movedim((dim1, dim2), (-2, -1))
    rows, columns = x.shape[-2:]
    if offset < 0:
        places = torch.arange(_SMALLER(rows + offset, columns))
        return x[..., places - offset, places]
    places = torch.arange(_SMALLER(rows, columns - offset))
    return x[..., places, places + offset]


def _diag(x: torch.Tensor, diagonal: Any = 0) -> torch.Tensor:
    return _diagonal(x, diagonal)
