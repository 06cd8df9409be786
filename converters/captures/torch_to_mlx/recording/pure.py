"""Recorded programs without updates in place, as ``run_decompositions`` makes them, without its trace.

It traces the whole program again, which costs more than to record it. Where nothing is updated but what
the program itself has just made, that is not needed: a few names and blocks are all that differs.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import torch
from torch._export.utils import _is_cia_op, _is_preservable_cia_op
from torch._ops import OperatorBase, OpOverload
from torch.export import ExportedProgram
from torch.fx import Node

from ..census import WRAPPERS
from .blocks import BLOCK, inline_blocks, parts_of, replace

_ATEN: Final = torch.ops.aten
_VMAP: Final = "torch._functorch.predispatch"  # where what torch.vmap does to axes is recorded
_CASTS: Final = ("to.dtype", "to.dtype_layout", "to.device", "to.other", "type_as.default")
_RESHAPES: Final = ("ravel.default", "view_as.default", "reshape_as.default")
_NEW: Final = frozenset(  # composites that never return what they are given
    f"aten.{name}"
    for name in (
        *("linear.default", "matmul.default", "layer_norm.default", "group_norm.default"),
        *("conv1d.default", "conv2d.default", "conv3d.default", "softmax.int", "log_softmax.int"),
        "scaled_dot_product_attention.default",
    )
)

Rule = Callable[
    [Any], "Node | None"
]  # node -> what to use for it; None if that takes a trace to know


def made_pure(program: ExportedProgram) -> ExportedProgram | None:
    """Return PROGRAM, rewritten, if no trace is needed for that; otherwise it computes what it did.

    Updates go first, while names still tell which tensors share memory; what cannot fail goes last.
    """
    if not all(map(_known, _calls(program))):
        return None
    for rules in (_UPDATES, _CHECKED, _RENAMED):
        if not all(_applied(program, node, rules.get(_kind(node))) for node in _calls(program)):
            return None
    inline_blocks(program)
    return program


def _calls(program: ExportedProgram) -> list[Any]:
    nodes = (node for part in parts_of(program) for node in part.graph.nodes)
    return [node for node in nodes if node.op == "call_function"]


def _kind(node: Any) -> str:
    """Return the name of what NODE calls, or ``update`` where that changes an argument."""
    schema = getattr(node.target, "_schema", None)
    return "update" if schema and schema.is_mutable else str(node.target).removeprefix("aten.")


def _known(node: Any) -> bool:
    """Tell whether NODE stays as it is, or has a rule."""
    if not isinstance(node.target, OpOverload):
        wraps = str(node.target) in {*WRAPPERS, BLOCK}
        plain = not isinstance(node.target, OperatorBase)
        return wraps or (plain and getattr(node.target, "__module__", "") != _VMAP)
    if _kind(node) in {*_UPDATES, *_CHECKED, *_RENAMED}:
        return True
    kept = not _is_cia_op(node.target) or _is_preservable_cia_op(node.target)
    return kept and torch._C.DispatchKey.Autograd not in node.target.py_kernels


def _applied(program: ExportedProgram, node: Any, rule: Rule | None) -> bool:
    if rule is None:
        return True
    with node.graph.inserting_before(node):
        new = rule(node)
    if new is not None:
        replace(program, node, new)
    return new is not None


def _call(node: Any, target: Any, *args: Any, **kwargs: Any) -> Node:
    """Return a new call before NODE, of which torch would record the same."""
    made = node.graph.call_function(target, args, kwargs)
    made.meta = dict(node.meta)
    return cast(Node, made)


def _cast(node: Any) -> Node:
    """Return a copy in another dtype, or what there is: devices and layouts mean nothing here."""
    source, dtype = node.args[0], node.meta["val"].dtype
    same = source.meta["val"].dtype == dtype
    return source if same else _call(node, _ATEN._to_copy.default, source, dtype=dtype)


def _reshape(node: Any) -> Node | None:
    """Return a view of the recorded shape, in which one size may vary."""
    shape = [size if isinstance(size, int) else -1 for size in node.meta["val"].shape]
    known = shape.count(-1) < 2 and 0 not in shape
    return _call(node, _ATEN.reshape.default, node.args[0], shape) if known else None


def _flat(node: Any) -> Node | None:
    """Return a view in which some axes are one, by sizes of the operand where more than one varies."""
    if (view := _reshape(node)) or 0 in node.meta["val"].shape:
        return view
    x, *given = node.args
    sizes = [_size(node, x, axis) for axis in range(x.meta["val"].dim())]
    first, last = (axis % len(sizes) for axis in (*given, *(0, -1)[len(given) :]))
    product = functools.reduce(partial(_times, node), sizes[first : last + 1])
    return _call(node, _ATEN.reshape.default, x, [*sizes[:first], product, *sizes[last + 1 :]])


def _apart(node: Any) -> Node | None:
    """Return a view in which one axis is several of known sizes, by sizes of the operand where more than one varies."""
    x, axis, parts = node.args
    axis %= x.meta["val"].dim()
    inner = node.meta["val"].shape[axis : axis + len(parts)]
    if (view := _reshape(node)) or not all(isinstance(size, int) and size for size in inner):
        return view
    before, after = range(axis), range(axis + 1, x.meta["val"].dim())
    outer = [[_size(node, x, it) for it in axes] for axes in (before, after)]
    return _call(node, _ATEN.reshape.default, x, [*outer[0], *inner, *outer[1]])


def _size(node: Any, x: Any, axis: int) -> Any:
    """Return the size of X along AXIS, before NODE: a number, or a call that gives it."""
    size = x.meta["val"].shape[axis]
    return size if isinstance(size, int) else _number(node, size, _ATEN.sym_size.int, x, axis)


def _times(node: Any, one: Any, other: Any) -> Any:
    """Return the product of two sizes, before NODE."""
    numbers = [it.meta["val"] if isinstance(it, Node) else it for it in (one, other)]
    product = math.prod(numbers)
    plain = isinstance(product, int)
    return product if plain else _number(node, product, operator.mul, one, other)


def _number(node: Any, value: Any, target: Any, *args: Any) -> Node:
    made = _call(node, target, *args)
    made.meta["val"] = value
    return made


def _turned(node: Any) -> Node:
    axes = [*range(node.meta["val"].dim())]
    return _call(node, _ATEN.permute.default, node.args[0], axes[::-1])


def _expand(node: Any) -> Node | None:
    """Return NODE with its sizes; one that may vary is that of the operand."""
    x, wanted = node.args[0], node.meta["val"].shape
    there = [*[1] * (len(wanted) - x.meta["val"].dim()), *x.meta["val"].shape]
    pairs = zip(there, wanted, strict=True)
    if not all(isinstance(new, int) or str(old) == str(new) for old, new in pairs):
        return None
    shape = [size if isinstance(size, int) else -1 for size in wanted]
    return _call(node, _ATEN.expand.default, x, shape)


def _chunk(node: Any) -> Node | None:
    """Return pieces as long as the first."""
    axis = node.args[2] if len(node.args) > 2 else 0
    size = node.meta["val"][0].shape[axis]
    known = isinstance(size, int) and size > 0
    return _call(node, _ATEN.split.Tensor, node.args[0], size, axis) if known else None


def _dropout(node: Any) -> Node | None:
    x, p, train = node.args
    return None if train and p else _call(node, _ATEN.clone.default, x)


def _batch_norm(node: Any) -> Node | None:
    """Return the norm by statistics that are not updated."""
    x, weight, bias, mean, var, training, momentum, eps, _ = node.args
    if training or mean is None:
        return None
    call = _ATEN._native_batch_norm_legit_no_training.default
    norm = _call(node, call, x, weight, bias, mean, var, momentum, eps)
    val = node.meta["val"]
    norm.meta["val"] = (val, val.new_empty(0), val.new_empty(0))
    return _call(node, operator.getitem, norm, 0)


def _instance_norm(node: Any) -> Node | None:
    """Return the norm as it is, where it updates no statistics, which its schema does not say."""
    mean, by_the_input = node.args[3], node.args[5]
    return None if by_the_input and mean is not None else _call(node, node.target, *node.args)


def _updated(node: Any) -> Node | None:
    """Return what NODE, an update in place, makes of a tensor that nothing else shows."""
    schema, x = node.target._schema, node.args[0]
    pure = getattr(_ATEN, schema.name.removeprefix("aten::").removesuffix("_"), None)
    name = schema.overload_name or "default"
    written = [i for i, argument in enumerate(schema.arguments) if argument.is_write]
    if written != [0] or not _is_alone(x, node):
        return None
    if pure is None or name not in pure.overloads():
        return None
    made = _call(node, getattr(pure, name), *node.args, **node.kwargs)
    x.replace_all_uses_with(made, lambda user: node < user)
    return made


def _is_alone(x: Any, update: Node) -> bool:
    """Tell whether X is a tensor of its own, whose memory nothing has but UPDATE."""
    made = isinstance(x, Node) and x.op == "call_function" and not shares(_maker(x))
    return made and not any(shares(user) for user in x.users if user is not update)


def _maker(node: Any) -> Any:
    """Return what made NODE: the call that gives several, where NODE alone is this one of them."""
    if node.target is not operator.getitem:
        return node
    same = [user for user in node.args[0].users if user.args == node.args]
    return node.args[0] if same == [node] else node


def shares(node: Any) -> bool:
    """Tell whether what NODE returns may be memory of its arguments."""
    target = node.target
    if not isinstance(target, OpOverload):
        return bool(node.op != "output")
    shown = any(result.alias_info is not None for result in target._schema.returns)
    return shown or (_is_cia_op(target) and str(target) not in _NEW)


_UPDATES: Final[dict[str, Rule]] = {"update": _updated}
_CHECKED: Final[dict[str, Rule]] = {
    "dropout.default": _dropout,
    "chunk.default": _chunk,
    "expand_as.default": _expand,
    "flatten.using_ints": _flat,
    "unflatten.int": _apart,
    "batch_norm.default": _batch_norm,
    "instance_norm.default": _instance_norm,
    **dict.fromkeys(_RESHAPES, _reshape),
}
_RENAMED: Final[dict[str, Rule]] = {
    "reshape.default": lambda node: _call(node, _ATEN.view.default, *node.args),
    "numpy_T.default": _turned,
    "mT.default": lambda node: _call(node, _ATEN.transpose.int, node.args[0], -2, -1),
    "swapaxes.default": lambda node: _call(node, _ATEN.transpose.int, *node.args),
    "broadcast_to.default": lambda node: _call(node, _ATEN.expand.default, *node.args),
    "contiguous.default": lambda node: _call(node, _ATEN.clone.default, node.args[0]),
    **dict.fromkeys(_CASTS, _cast),
}
