"""What the functions that rebuild tensors take, as ``torch/_utils.py`` declares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

Rule = Callable[[Any], bool]


def _is_any(_: Any) -> bool:
    return True


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_attributes(value: Any) -> bool:
    return value is None or isinstance(value, dict)


def _is_state(value: Any) -> bool:
    both = value if isinstance(value, tuple) else (value, None)
    return len(both) == 2 and all(_is_attributes(each) for each in both)


def _is_named(value: Any) -> bool:
    return isinstance(getattr(value, "name", None), str)


def _is_metadata(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(map(_is_flag, value.values())))


_VIEW: Final = (_is_any,) * 4  # storage, offset, shape, strides: read by their reader
_GRADIENT: Final = (_is_flag, _is_attributes)
_TAKEN: Final[Mapping[str, tuple[Rule, ...]]] = {
    "torch._utils._rebuild_tensor": _VIEW,
    "torch._utils._rebuild_tensor_v2": (*_VIEW, *_GRADIENT, _is_metadata),
    "torch._utils._rebuild_tensor_v3": (*_VIEW, *_GRADIENT, _is_named, _is_metadata),
    "torch._utils._rebuild_parameter": (_is_any, *_GRADIENT),
    "torch._utils._rebuild_parameter_with_state": (_is_any, *_GRADIENT, _is_state),
    "torch._tensor._rebuild_from_type_v2": (_is_any, _is_any, _is_any, _is_state),
}


def takes(function: str, arguments: Sequence[Any]) -> bool:
    """Say whether FUNCTION takes ARGUMENTS; metadata, which come last, may be left out.

    >>> takes("torch._utils._rebuild_parameter", ("a tensor", True, {}))
    True
    >>> takes("torch._utils._rebuild_parameter", ("a tensor",))
    False
    """
    rules = _TAKEN.get(function)
    if rules is None:
        return True
    if not len(rules) - (_is_metadata in rules) <= len(arguments) <= len(rules):
        return False
    return all(rule(value) for rule, value in zip(rules, arguments, strict=False))
