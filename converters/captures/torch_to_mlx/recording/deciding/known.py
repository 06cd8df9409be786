"""Tensors of known values while a module is recorded: what follows from them alone is computed at once, for real."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from ...drawing import draws
from ..comparing import WRITES

WHOLE: Final = (torch.int64, torch.int32, torch.bool)
_MAKERS: Final = (torch.arange, torch.tensor, torch.zeros, torch.ones, torch.full)
_NEW: Final = {"ones": torch.ones, "zeros": torch.zeros, "full": torch.full}
_KEPT: Final = ("fill_value", "size")  # what else such makers take
_READS: Final = frozenset(
    [
        *("item", "tolist", "numpy", "equal", "is_nonzero", "__contains__", "arange"),
        *("__bool__", "__int__", "__float__", "__index__"),
        *("nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"),
        *("repeat_interleave", "bincount"),
    ]
)


class Known(TorchFunctionMode):
    """Computes with tensors of known values, and notes which of them decide.

    Attributes:
        values: name -> tensor, which were known first.
        read: names of those whose values Python asked for, or made sizes of.
        looked_up: names of those that index a table as they are, as ids of tokens do.
    """

    def __init__(self, values: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        with _disable_current_modes():
            self.values = {name: value.clone() for name, value in values.items()}
        self.read: set[str] = set()
        self.looked_up: set[str] = set()
        self._names: MutableMapping[Any, set[str]] = (
            WeakIdKeyDictionary()
        )  # tensor -> what it follows from
        self._opened: MutableMapping[Any, torch.Tensor] = WeakIdKeyDictionary()
        for name, value in self.values.items():
            self._names[value] = {name}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC gives, as a tensor of known values where that can be."""
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._current, (args, kwargs or {}))
        func, args, kwargs = _made(func, args, kwargs)
        given = [it for part in pytree.tree_leaves((args, kwargs)) for it in _parts(part)]
        known = [it for it in given if _is_known(it)]
        self._note(func, known)
        if WRITES.fullmatch(getattr(func, "__name__", "")) and not _computes(func, given, known):
            args = (self._open(args[0]), *args[1:])
        if _computes(func, given, known):
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                return self._named(func(*args, **kwargs), known)
        rewritten = _MIXED.get(getattr(func, "__name__", "")) if known else None
        return func(*args, **kwargs) if rewritten is None else rewritten(func, *args, **kwargs)

    def _current(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._opened.get(tensor, tensor)

    def _open(self, tensor: Any) -> Any:
        """Return what is recorded for TENSOR from now on, if it is known and no other shares its memory."""
        if not _is_known(tensor) or tensor._base is not None:
            return tensor
        place = tensor.untyped_storage()._cdata
        known = [*self.values.values(), *(it for it in self._names if it is not tensor)]
        if any(it.untyped_storage()._cdata == place for it in known):
            return tensor
        self._opened[tensor] = tensor.clone()
        return self._opened[tensor]

    def _note(self, func: Any, known: list[torch.Tensor]) -> None:
        name = getattr(func, "__name__", "")
        decide = [it for it in known if name in _MIXED and (it.dtype == torch.bool or it.ndim == 0)]
        if name in _READS or decide:
            self.read |= self._sources(known)
        if name == "embedding":
            self.looked_up |= {
                name
                for name, value in self.values.items()
                if any(
                    it.untyped_storage()._cdata == value.untyped_storage()._cdata for it in known
                )
            }

    def _sources(self, tensors: Iterable[torch.Tensor]) -> set[str]:
        return {name for it in tensors for name in self._names.get(it, ())}

    def _named(self, result: Any, known: list[torch.Tensor]) -> Any:
        names = self._sources(known)
        for it in pytree.tree_leaves(result):
            if isinstance(it, torch.Tensor):
                self._names[it] = names | self._names.get(it, set())
        return result


def _is_known(value: Any) -> bool:
    if type(value) is not torch.Tensor or value.device.type != "cpu":
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(value)


def _computes(func: Any, given: list[Any], known: list[torch.Tensor]) -> bool:
    """Tell whether FUNC gives known values for what is GIVEN, some of it KNOWN."""
    if any(isinstance(it, torch.SymInt | torch.SymFloat | torch.SymBool) for it in given):
        return False
    if not any(isinstance(it, torch.Tensor) for it in given):  # floating ones may be written into
        whole = func in (torch.arange, torch.tensor) or any(it in WHOLE for it in given)
        return func in _MAKERS and whole
    tensors = sum(isinstance(it, torch.Tensor) for it in given)
    return len(known) == tensors and not draws(getattr(func, "__name__", ""))


def _made(func: Any, args: Any, kwargs: Any) -> Any:
    """Return how to make whole numbers that FUNC makes of another tensor's size or device, from nothing."""
    name, like = getattr(func, "__name__", ""), args[0] if args else None
    maker = _NEW.get(name.removeprefix("new_").removesuffix("_like"))
    dtype = kwargs.get("dtype") or getattr(like, "dtype", None)
    if maker is None or not isinstance(like, torch.Tensor) or dtype not in WHOLE:
        return func, args, kwargs
    size = (tuple(like.shape),) if name.endswith("_like") else ()
    return (
        maker,
        (*size, *args[1:]),
        {k: v for k, v in kwargs.items() if k in _KEPT} | {"dtype": dtype},
    )


def _parts(value: Any) -> list[Any]:
    return [value.start, value.stop, value.step] if isinstance(value, slice) else [value]


def _number(value: Any) -> Any:
    """Return a whole number of known value as Python's."""
    if isinstance(value, slice):
        return slice(*map(_number, _parts(value)))
    if not _is_known(value) or value.ndim or value.dtype not in WHOLE[:2]:
        return value
    with _disable_current_modes():
        return int(value)


def _sized(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Call FUNC on TENSOR with sizes that are known."""
    args, kwargs = pytree.tree_map(_number, (args, kwargs))
    return func(tensor, *args, **kwargs)


def _at_places(func: Any, tensor: Any, index: Any, *rest: Any) -> Any:
    """Index TENSOR by the places that known masks choose, whose number is known."""
    parts = index if isinstance(index, tuple) else (index,)
    places: list[Any] = []
    for part in parts:
        mask = _is_known(part) and part.dtype == torch.bool and part.ndim
        places += _places(part) if mask else [_number(part)]
    return func(tensor, tuple(places), *rest)


def _places(mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with _disable_current_modes():
        return mask.nonzero(as_tuple=True)


def _repeated(func: Any, tensor: Any, repeats: Any, dim: int | None = None, **options: Any) -> Any:
    """Repeat the parts of TENSOR as often as is known."""
    if not _is_known(repeats):
        return func(tensor, repeats, dim, **options)
    with _disable_current_modes():
        many = repeats.expand(tensor.numel() if dim is None else tensor.shape[dim])
        places = torch.repeat_interleave(many)
    return (tensor.reshape(-1) if dim is None else tensor).index_select(dim or 0, places)


_SIZED: Final = (
    *("view", "reshape", "expand", "repeat", "tile", "split", "chunk", "narrow", "unflatten"),
    *("interpolate", "pad", "roll", "new_zeros", "new_ones", "new_full", "new_empty"),
)
_MIXED: Final[dict[str, Callable[..., Any]]] = {
    **dict.fromkeys(_SIZED, _sized),
    "__getitem__": _at_places,
    "__setitem__": _at_places,
    "repeat_interleave": _repeated,
}
