"""Factories: ``MODULE:FUNCTION`` of a user's, which builds a module and may say what it takes."""

from __future__ import annotations

import copyreg
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError, MismatchError, UsersCodeError, WeighbridgeError
from ..common.memory import pass_on_shortage
from ..common.users_code import (
    OURS,
    deep_copied,
    described,
    fault_of,
    innermost,
    kept_apart,
    name_module,
    shown,
)
from .signature import Port, Signature

WANTED: Final = (
    "it has to return a torch.nn.Module or mlx.nn.Module, or such a module and its Signature"
)


def looks_like_factory(spec: str) -> bool:
    """Say whether SPEC has the form ``module:function``.

    >>> looks_like_factory("a.b:c"), looks_like_factory("a/b"), looks_like_factory("a:b:c")
    (True, False, False)
    """
    module, colon, function = spec.partition(":")
    return bool(colon) and all(
        part.isidentifier() for part in (*module.split("."), *function.split("."))
    )


def build_factory(spec: str, options: Mapping[str, Any] = {}) -> tuple[Any, Signature | None]:
    """Import and call ``module:function``; it returns a module, or a module and its Signature.

    Raises:
        UsersCodeError: it raises anything, ``SystemExit`` too, or returns something else.
        BadInputError: SPEC is no ``module:function``, or there is no such thing.
    """
    return accepted(spec, call_named(spec, **options))


def call_named(spec: str, *arguments: Any, **options: Any) -> Any:
    """Import ``module:function`` of a user's and return what it makes of the arguments.

    Raises:
        UsersCodeError: it raises anything, ``SystemExit`` too.
        BadInputError: SPEC is no ``module:function``, or there is no such thing.
    """
    return _run_named(spec, (arguments, options))


def named_code(spec: str) -> Any:
    """Import ``module:name`` of a user's, a class or a function.

    The current directory is on the import path, as for ``python -m``. What the code prints goes to
    stderr, and the working directory stays.

    Raises:
        UsersCodeError: it raises anything, ``SystemExit`` too.
        BadInputError: SPEC is no ``module:function``, or there is no such thing.
    """
    return _run_named(spec, None)


def _run_named(spec: str, called: tuple[tuple[Any, ...], dict[str, Any]] | None) -> Any:
    """Import SPEC, and call it if CALLED holds arguments; what it raises is said in one line."""
    if not looks_like_factory(spec):
        raise BadInputError(f"{spec} is not MODULE:FUNCTION, such as my_model:build")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    module, _, name = spec.partition(":")
    name_module(module)
    try:
        with kept_apart():
            found = attrgetter(name)(importlib.import_module(module))
            return found if called is None else found(*called[0], **called[1])
    except (KeyboardInterrupt, WeighbridgeError):
        raise
    except BaseException as error:
        pass_on_shortage(error)
        if error.__traceback__ and innermost(error.__traceback__.tb_next) == OURS:
            raise  # they called us, and the bug is ours
        bare = isinstance(error, TypeError) and "required" in str(error) and called == ((), {})
        hint = "; it is called without arguments" if bare and not fault_of(error) else ""
        raise UsersCodeError(f"{spec}: {reason_of(error)}{hint}") from error


def reason_of(error: BaseException) -> str:
    """Return what a factory raised and the last of its own lines, if it came as far as that."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}"
    return fault_of(error) or described(error)


def accepted(spec: str, built: Any) -> tuple[Any, Signature | None]:
    """Return the module and the Signature in what the factory SPEC has BUILT.

    Raises:
        UsersCodeError: it is something else; says what.
    """
    pair = built if isinstance(built, tuple) else (built, None)
    if len(pair) != 2 or framework_or_none(pair[0]) is None:
        raise UsersCodeError(f"{spec} returned {kind_of(built)}; {WANTED}")
    module, signature = pair
    own = getattr(module, "signature", None)  # of a user's module it may be anything
    if signature is None and isinstance(own, Signature):
        signature = own
    if not isinstance(signature, Signature | None):
        raise UsersCodeError(f"{spec} returned {kind_of(built)}; {WANTED}")
    if signature and (problems := [*signature_problems(signature)]):
        raise MismatchError(f"{spec}: its Signature cannot be used", problems)
    if signature:
        require_taking(module, [port.name for port in signature.inputs])
    return module, signature


def kind_of(value: Any) -> str:
    """Say what VALUE is.

    >>> kind_of(None), kind_of(dict), kind_of((1, "a")), kind_of(3)
    ('None', 'the class dict, not an instance', 'a tuple of int, str', 'an object of type int')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}, not an instance"
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(item).__name__ for item in value) or 'nothing'}"
    if inspect.iscoroutine(value):
        value.close()  # nobody will await it
        return "a coroutine (an async function cannot be a factory)"
    return f"an object of type {type(value).__name__}"


def signature_problems(signature: Signature) -> Iterator[str]:
    """Yield what is wrong with a SIGNATURE that somebody wrote."""
    sides: dict[str, Any] = {"inputs": signature.inputs, "outputs": signature.outputs}
    for side, ports in sides.items():
        if not isinstance(ports, tuple | list) or not ports:
            yield f"{side} should be a tuple of at least one Port, found {kind_of(ports)}"
            continue
        for index, port in enumerate(ports):
            yield from port_problems(port, f"{side}[{index}]")
        names = [str(port.name) for port in ports if isinstance(port, Port)]
        yield from (f"{side}: two ports named {name}" for name in repeated(names))


def port_problems(port: Any, where: str) -> Iterator[str]:
    """Yield what is wrong with one PORT."""
    if not isinstance(port, Port):
        yield f"{where} should be a Port, found {kind_of(port)}"
        return
    for field, (holds, wanted) in FIELDS.items():
        value = getattr(port, field)
        if not holds(value):
            yield f"{where}.{field} should be {wanted}, found {value!r}"


def is_shape(shape: Any) -> bool:
    """Say whether SHAPE is a tuple of sizes."""
    return isinstance(shape, tuple | list) and all(map(is_size, shape))


def is_size(size: Any) -> bool:
    """Say whether SIZE is a positive number or the name of one.

    >>> is_size(3), is_size("batch"), is_size(0), is_size(True), is_size(2.5)
    (True, True, False, False, False)
    """
    if isinstance(size, str):
        return bool(size)
    return isinstance(size, int) and not isinstance(size, bool) and size > 0


def is_upper(upper: Any) -> bool:
    """Say whether UPPER is pairs of names and sizes.

    >>> is_upper((("batch", 8),)), is_upper({"batch": 8})
    (True, False)
    """
    return isinstance(upper, tuple | list) and all(
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and is_size(pair[1])
        and not isinstance(pair[1], str)
        for pair in upper
    )


def is_dtype(name: Any) -> bool:
    """Say whether NAME is a dtype of numbers or truth values that numpy or ml_dtypes has."""
    import numpy as np

    if name == "bfloat16":
        return True
    try:
        return isinstance(name, str) and np.dtype(name).kind in "biuf"
    except TypeError:
        return False


def require_taking(module: Any, names: Sequence[str]) -> None:
    """Refuse a MODULE whose forward does not take inputs by these NAMES.

    Raises:
        UsersCodeError: it does not.
    """
    forward = module.forward if framework_or_none(module) == "torch" else module.__call__
    try:
        inspect.signature(forward).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise UsersCodeError(
            f"{type(module).__name__} cannot be called with the inputs of its signature"
            f" ({', '.join(names)}): {error}"
        ) from None
    except (AttributeError, ValueError):
        return  # nothing says what it takes; running it will


def run_module(module: Any, inputs: Mapping[str, Any]) -> Any:
    """Return what MODULE makes of INPUTS, by name.

    Raises:
        UsersCodeError: it does not take them.
    """
    try:
        return module(**inputs)
    except TypeError:
        require_taking(module, [*inputs])
        raise


def copied(module: Any) -> Any:
    """Return a copy of MODULE, which a factory built; see ``copied_together``."""
    return copied_together(module)[0]


def copied_together(*modules: Any) -> tuple[Any, ...]:
    """Return copies of MODULES and of what they have in common; MLX's functions and dtypes in them are shared.

    Raises:
        UsersCodeError: one holds something that cannot be copied, such as a lock or a generator.
    """
    from unittest import mock  # it brings asyncio, and most commands copy nothing

    shared = dict.fromkeys(_types_of_mlx(), lambda _: "")  # a text says that there is but one of it
    try:
        with mock.patch.dict(copyreg.dispatch_table, shared):
            made: tuple[Any, ...] = deep_copied(modules, modules)
            return made
    except Exception as error:
        pass_on_shortage(error)
        raise UsersCodeError(
            f"{type(modules[0]).__name__} cannot be copied: {reason_of(error)}; a module has to hold what"
            " copy.deepcopy takes"
        ) from error


def _types_of_mlx() -> set[type]:
    """Return the types of MLX, if it is loaded, that never change: functions such as ``nn.gelu``, dtypes, devices."""
    core: Any = sys.modules.get("mlx.core")
    if core is None:
        return set()
    own = {it for it in vars(core).values() if isinstance(it, type)}
    return {*own, type(core.tanh)} - {core.array}


FIELDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "name": (lambda name: isinstance(name, str) and bool(name), "a text"),
    "dtype": (is_dtype, "a dtype of numpy's by name, such as 'float32'"),
    "shape": (is_shape, "a tuple of sizes and names of sizes"),
    "role": (lambda role: isinstance(role, str), "a text"),
    "upper": (is_upper, "pairs such as ('batch', 8)"),
}


def repeated(names: Iterable[str]) -> list[str]:
    """Return those of NAMES that are there more than once.

    >>> repeated(["a", "b", "a"])
    ['a']
    """
    listed = list(names)
    return sorted({name for name in listed if listed.count(name) > 1})


def framework_or_none(module: Any) -> str | None:
    """Return the framework of a live MODULE, importing nothing; ``None`` where it is no module."""
    origins = {
        base.__module__.partition(".")[0]
        for base in type(module).__mro__
        if base.__name__ == "Module"
    }
    return next((name for name in ("torch", "mlx") if name in origins), None)


def framework_of(module: Any) -> str:
    """Return the framework of a live MODULE, by its type's origin, importing nothing.

    Raises:
        BadInputError: it is neither a torch nor an MLX module.
    """
    framework = framework_or_none(module)
    if framework is None:
        raise BadInputError(
            f"{type(module).__name__} is neither a torch.nn.Module nor an mlx.nn.Module"
        )
    return framework
