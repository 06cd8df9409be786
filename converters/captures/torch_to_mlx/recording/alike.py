"""Whether a module computes the same in train and eval mode, told without recording it twice.

It runs in both modes on tensors without values. What is compared: each operation with its operands and
settings, whether gradients are taken meanwhile, and what Python asks of sizes: a question that is asked in
one mode alone may be answered otherwise at another size.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import BackwardCFunction
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ....common.memory import pass_on_shortage
from ....common.users_code import deep_copied
from .deciding.sizes import length

LARGE: Final = 1 << 20  # bytes
FEW: Final = 64  # values of a tensor that are compared
Event = tuple[Any, ...]
Log = Callable[[Event], None]

_ASKED: Final = (
    *("eq", "ne", "lt", "le", "gt", "ge", "bool", "hash", "int", "float", "str", "repr", "format"),
    *("truediv", "rtruediv", "divmod", "rdivmod", "round", "trunc", "floor", "ceil"),
    *("and", "or", "xor", "lshift", "rshift", "invert"),
    *("rand", "ror", "rxor", "rlshift", "rrshift"),
)
_GIVEN: Final = (
    *("add", "sub", "mul", "floordiv", "mod", "pow", "neg", "abs"),
    *("radd", "rsub", "rmul", "rfloordiv", "rmod", "rpow"),
)


class _OtherwiseError(Exception):
    """The other mode does something else."""


def twin(module: nn.Module) -> nn.Module | None:
    """Return a copy of MODULE that shares its large tensors, for a run that reads none; none if it cannot be copied.

    torch writes to numbers and small tensors all the same, such as a count of batches.
    """
    tensors = (*module.parameters(), *module.buffers())
    shared: dict[int, Any] = {id(it): it for it in tensors if it.nbytes > LARGE}
    try:
        return deep_copied(module, [module], shared)
    except Exception as error:
        pass_on_shortage(error)
        return None


def computes_alike(one: nn.Module, other: nn.Module, inputs: Mapping[str, Any]) -> bool:
    """Tell whether ONE computes of INPUTS what OTHER does, which is the same module in the other mode.

    Args:
        one: its values are neither read nor written. What it keeps of a run has none afterwards: give a ``twin``.
        other: likewise.
        inputs: of ``forward``, by name.

    Returns:
        False too where that cannot be told: values decide, or a gradient is the module's own.
    """
    events: list[Event] = []
    try:
        _run(one, inputs, events.append)
        again = iter(events)
        _run(other, inputs, lambda event: _expect(again, event))
        return next(again, None) is None
    except Exception as error:  # whatever a module's code raises on tensors without values
        pass_on_shortage(error)
        return False


def _expect(events: Iterator[Event], event: Event) -> None:
    if next(events, None) != event:
        raise _OtherwiseError


def _run(module: nn.Module, inputs: Mapping[str, Any], log: Log) -> None:
    """Run MODULE on INPUTS without values and LOG what it does, its outputs last."""
    numbers = _Numbers([*module.parameters(), *module.buffers()])
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        given = _pytree.tree_map_only(torch.Tensor, fake.from_tensor, dict(inputs))
        measured = mock.patch.object(builtins, "len", length)
        with torch.enable_grad(), measured, _Operations(numbers, log) as seen, _Sizes(log, seen):
            out = module(**given)
    leaves, form = _pytree.tree_flatten(out)
    if any(map(_has_own_gradient, leaves)):
        raise _OtherwiseError
    log(("outputs", str(form), *map(numbers.of, leaves)))


def _leaves(tree: Any) -> list[Any]:
    return [*_pytree.tree_leaves(tree)]


def _has_own_gradient(out: Any) -> bool:
    """Tell whether an ``autograd.Function`` of the module's takes part in the gradient of OUT."""
    waiting, seen = [getattr(out, "grad_fn", None)], set()
    while waiting:
        step = waiting.pop()
        if step is None or step in seen:
            continue
        if isinstance(step, BackwardCFunction):
            return True
        seen.add(step)
        waiting += [before for before, _ in step.next_functions]
    return False


class _Numbers:
    """A module's own tensors numbered in their order, others as they come; other things are themselves."""

    def __init__(self, own: list[torch.Tensor]) -> None:
        # kept, so that no id comes again
        self._seen: dict[int, tuple[int, Any]] = {id(it): (at, it) for at, it in enumerate(own)}

    def of(self, each: Any) -> Any:
        """Return the number of a tensor, with its shape and dtype, or how another thing is printed.

        One that is neither the module's own nor made on the way, as ``torch.tensor(2.0)``, is its values.

        Raises:
            _OtherwiseError: it has many values.
        """
        if not isinstance(each, torch.Tensor):
            return repr(each)
        if id(each) not in self._seen and not isinstance(each, FakeTensor):
            if each.numel() > FEW:
                raise _OtherwiseError
            with _disable_current_modes():
                return repr(each.tolist()), tuple(each.shape), each.dtype
        number, _ = self._seen.setdefault(id(each), (len(self._seen), each))
        return number, tuple(map(int, each.shape)), each.dtype


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs every operation."""

    def __init__(self, numbers: _Numbers, log: Log) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._numbers, self._log = numbers, log
        self.inside = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC gives."""
        self.inside = True
        try:
            result = func(*args, **kwargs or {})
            if func.namespace != "prim":  # what device it is on, and the like
                operands = map(self._numbers.of, _leaves((args, kwargs or {}, result)))
                self._log((str(func), torch.is_grad_enabled(), *operands))
        finally:
            self.inside = False
        return result


class _Sizes(TorchFunctionMode):
    """Gives sizes that log what is asked of them, outside of torch's own code."""

    def __init__(self, log: Log, operations: _Operations) -> None:
        super().__init__()
        self._operations = operations
        self._size = _size_that_tells(log)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return what FUNC gives, sizes as such that tell."""
        result = func(*args, **kwargs or {})
        if self._operations.inside:
            return result
        if isinstance(result, torch.Size):
            return torch.Size(map(self._size, result))
        return self._size(result) if type(result) is int else result


def _size_that_tells(log: Log) -> type[int]:
    """Return a class of whole numbers that LOG what is asked of them and of what is computed from them."""

    class Size(int):
        pass

    def asked(name: str, self: int, *others: Any) -> Any:
        answer = getattr(int, name)(self, *others)
        log((name, int.__int__(self), *map(repr, others), repr(answer)))
        return answer

    def given(name: str, self: int, *others: Any) -> Any:
        answer = getattr(int, name)(self, *others)
        return Size(answer) if type(answer) is int else asked(name, self, *others)

    for way, names in ((asked, _ASKED), (given, _GIVEN)):
        for name in names:
            full = f"__{name}__"
            setattr(Size, full, lambda *operands, way=way, full=full: way(full, *operands))
    return Size
