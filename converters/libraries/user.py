"""A user's own MLX class, named as ``module:function``."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import BadInputError


def user_object(spec: str) -> Any:
    """Import what ``module:name`` names; the current directory is on the path, as for ``python -m``.

    Raises:
        BadInputError: there is no such module or name.
    """
    module_name, colon, name = spec.partition(":")
    if not colon or not name:
        raise BadInputError(f"{spec}: expected MODULE:FUNCTION, such as my_port:Model")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise BadInputError(f"{spec}: {error}") from error


def user_parts(spec: str, config: dict[str, Any]) -> Iterator[Any]:
    """Yield the one object that SPEC gives for CONFIG: an instance, or made by a function or class.

    A class beside a ``ModelArgs`` is made from it, as mlx-lm does; else a function or class that
    requires an argument gets the config.

    Raises:
        BadInputError: it cannot be imported, or gives nothing that sanitizes.
    """
    made = user_object(spec)
    if inspect.isfunction(made):
        made = called(made, config)
    if inspect.isclass(made):
        made = instance(made, config)
    if not (hasattr(made, "sanitize") or hasattr(made, "parameters")):
        raise BadInputError(
            f"{spec}: gives {type(made).__name__}, expected an mlx.nn.Module with sanitize(weights)"
        )
    yield made


def instance(cls: type, config: dict[str, Any]) -> Any:
    """Return CLS made from the ``ModelArgs`` of its own file, where there is one, else from CONFIG."""
    args = getattr(sys.modules[cls.__module__], "ModelArgs", None)
    return called(cls, config) if args is None else cls(args.from_dict(config))


def called(function: Callable[..., Any], config: dict[str, Any]) -> Any:
    """Call FUNCTION, with CONFIG where it requires an argument."""
    parameters = inspect.signature(function).parameters.values()
    needs = [
        p
        for p in parameters
        if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return function(config) if needs else function()
