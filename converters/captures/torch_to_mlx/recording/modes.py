"""Train and eval mode: whether a module computes something else in each, and how both are recorded.

A recording keeps what the module did in the mode it was in. The other one is recorded from a copy
of the module that has no weights, when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal

import torch
from torch import nn

from .....errors import BadInputError, UnsupportedError
from ....common.memory import pass_on_shortage
from ....common.users_code import deep_copied

Modes = Literal["lazy", "both", "one"]
KNOWN: Final = ("lazy", "both", "one")
NAMES: Final = {True: "train", False: "eval"}
OWN: Final = ("torch.fx", "torch.export", "torch._export")  # look at every module that they see
Recorder = Callable[[nn.Module, bool], Any]


def check_modes(modes: str) -> None:
    """Refuse what is none of MODES, whether the module has two or not.

    Raises:
        BadInputError: it is none.
    """
    if modes not in KNOWN:
        raise BadInputError(f"modes is {modes!r}; it is one of {', '.join(map(repr, KNOWN))}")


class _Watch:
    """Stands before ``training`` of every module, and notes who reads it."""

    def __init__(self) -> None:
        self.readers: set[type] = set()

    def __get__(self, module: Any, kind: type) -> Any:
        if module is None:
            return self
        if kind is not nn.Module and not kind.__module__.startswith(OWN):
            self.readers.add(kind)
        return vars(module)["training"]

    def __set__(self, module: Any, value: bool) -> None:
        vars(module)["training"] = value


@contextmanager
def readers_of_mode() -> Iterator[set[type]]:
    """Gather the classes whose code reads ``training`` meanwhile: dropout, batch norms, and so on."""
    watch: Any = _Watch()
    nn.Module.training = watch
    try:
        yield watch.readers
    finally:
        del nn.Module.training


def without_weights(module: nn.Module, dtype: torch.dtype | None = None) -> nn.Module | None:
    """Return a copy of MODULE whose parameters have no values; none if it cannot be copied.

    They are never written, so the system gives them no memory. DTYPE is that of floating-point ones.
    """
    blank: dict[int, Any] = {id(each): _emptied(each, dtype) for each in module.parameters()}
    try:
        return deep_copied(module, [module], blank)
    except Exception as error:
        pass_on_shortage(error)
        return None


def _emptied(parameter: nn.Parameter, dtype: torch.dtype | None) -> nn.Parameter:
    """Return a parameter like PARAMETER without values."""
    own = dtype if dtype and parameter.is_floating_point() else parameter.dtype
    tensor = torch.empty_strided(parameter.shape, parameter.stride(), dtype=own)
    return nn.Parameter(tensor, requires_grad=parameter.requires_grad)


class Other:
    """The recording of a module in the other mode than the one it was recorded in.

    Args:
        module: in the mode it was recorded in; nothing of it is kept but its code and settings.
        record: records a module in train mode, or in eval mode.
        modes: ``lazy``, when it is first asked for; ``both``, now; ``one``, never.

    Raises:
        BadInputError: MODES is another word.
        UnsupportedError: ``both`` is wanted, and the module cannot be copied or recorded.
    """

    def __init__(self, module: nn.Module, record: Recorder, modes: Modes) -> None:
        self._name, self._mode = type(module).__name__, not module.training
        self._why = "with modes='one'" if modes == "one" else "and it cannot be copied"
        self._blank = None if modes == "one" else without_weights(module)
        self._record = record
        self._found: Any = None
        if modes == "both":
            self()

    def __deepcopy__(self, memo: dict[int, Any]) -> Other:
        """Return this one: what it records is the same for every copy."""
        return self

    def __call__(self) -> Any:
        """Return the recording.

        Raises:
            UnsupportedError: there can be none.
        """
        if self._found is not None:
            return self._found
        if self._blank is None:
            raise UnsupportedError(
                f"{self._name} was recorded in {NAMES[not self._mode]} mode alone, {self._why}: call"
                f" .{NAMES[self._mode]}() on the torch module and capture that"
            )
        self._found, self._blank = self._record(self._blank, self._mode), None
        return self._found
