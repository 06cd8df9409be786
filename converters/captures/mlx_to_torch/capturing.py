"""The way from an MLX module to one of torch: trace, compare, count, translate."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import mlx.core as mx
import mlx.nn
import numpy as np
import torch
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from torch.utils import _pytree as pytree

from ....errors import BadInputError, UnsupportedError
from ...common.steps import step
from ...runtimes.blas import mlx_on
from ..torch_to_mlx.dtypes import to_mlx, to_torch
from .captured import CapturedMlx, Place, Ports
from .census import Census, census_of
from .dense import dense
from .dtypes import widened
from .examples import Arrays, Dynamic, as_tensors, gap, outlined, resized, varied, widest
from .graph import Graph
from .limits import Limit
from .merging import merged
from .operations.registry import handlers
from .searching import Search
from .simplifying import simplified
from .sizes import points
from .tracing import trace

Inputs = Mapping[str, Any] | Sequence[Any]
Call = Callable[[dict[str, mx.array]], Any]
BAR: Final = 1e-5  # ||torch - MLX|| / ||MLX|| of modules in float32 that compute the same
MOST: Final = 2**30  # numbers in the inputs of a trace that only looks for limits
KNOWN: Final = (mx.array, type(None), bool, int, float, str)  # what may be returned


@mlx_on("cpu")  # what it computes is compared with what torch makes of it
def capture_mlx(
    module: mlx.nn.Module,
    *,
    inputs: Inputs,
    dynamic: Dynamic | None = None,
    call: Call | None = None,
    quantized: Literal["codes", "dense"] = "codes",
) -> CapturedMlx:
    """Trace MODULE on example INPUTS and return it in torch.

    Args:
        module: in training or evaluation mode, which is traced with it.
        inputs: arguments of ``__call__``, by name or in order: MLX or numpy arrays, torch tensors; what
            is none of these is fixed.
        dynamic: input -> axis -> name of its dimension, for sizes that may vary: the module is traced at
            several, and what gives other values is refused in calls. All others are those of the example.
        quantized: what quantized weights are: the ``codes``, scales and biases that MLX has, or
            ``dense`` parameters, for exporters.
        call: what calls the module with arrays by the names of INPUTS, in place of ``__call__``.

    Raises:
        BadInputError: INPUTS do not fit the module, or DYNAMIC names what is not there.
        UnsupportedError: MLX cannot trace the module, a primitive has no handler (all are named; nothing
            has run in torch by then), random numbers are drawn, or the module computes different
            things at different sizes.
    """
    traced = _traced(module, inputs, dynamic or {}, call)
    census_of(traced.graph).check()
    captured = _captured(traced, quantized)
    step("looking how far its sizes may go")
    captured.ports = traced.ports._replace(limits=traced.limits())
    return captured


def census_mlx(module: mlx.nn.Module, *, inputs: Inputs, dynamic: Dynamic | None = None) -> Census:
    """Count the operations of MODULE as it would be traced, supported or not."""
    return census_of(_traced(module, inputs, dynamic or {}).graph)


def _captured(traced: _Traced, quantized: str = "codes") -> CapturedMlx:
    """Return what was traced in torch, with the parameters that the module has now."""
    graph, module = traced.graph, traced.call.module
    trained = dict(tree_flatten(module.trainable_parameters())).keys()
    arrays = dict(tree_flatten(module.parameters()))
    tensors = {name: _tensor(it, name in trained) for name, it in arrays.items()}
    if quantized == "dense":
        graph, tensors = dense(graph, tensors)
    constants = {value: widened(to_torch(it)) for value, it in graph.constants.items()}
    graph = dataclasses.replace(graph, constants={})
    return CapturedMlx(graph, traced.ports, tensors, constants)


def _tensor(array: mx.array, trained: bool) -> torch.Tensor:
    tensor = to_torch(array)
    if not tensor.is_floating_point():
        return tensor
    return torch.nn.Parameter(tensor, requires_grad=trained)


def _traced(
    module: mlx.nn.Module, inputs: Inputs, dynamic: Dynamic, given: Call | None = None
) -> _Traced:
    """Return MODULE as a graph, with what it takes and gives."""
    named = dict(inputs) if given and isinstance(inputs, Mapping) else by_name(module, inputs)
    arrays = {name: it for name, value in named.items() if (it := as_array(value)) is not None}
    fixed = {name: value for name, value in named.items() if name not in arrays}
    where = places(arrays, dynamic)
    example = {name: arrays[i].shape[axis] for name, (i, axis) in where.items()}
    step("tracing in MLX")
    call = _Call(module, [*arrays], given or (lambda them: module(**them, **fixed)))
    traced = points(example)
    example_at = functools.partial(resized, arrays, dynamic)
    wide = {**named, **{name: widest(it) for name, it in arrays.items()}}
    graphs = [call.trace([*example_at(sizes).values()]) for sizes in traced]
    step("building the graph in torch")
    runs = not census_of(graphs[0]).unsupported
    whole = merged(graphs, traced) if example and runs else graphs[0]
    broadcasting = {name for name, it in handlers().items() if it.broadcasts}
    sizes = {name: ([*arrays].index(i), axis) for name, (i, axis) in where.items()}
    ports = Ports(tuple(arrays), sizes, call.returned)
    return _Traced(
        simplified(whole, broadcasting),
        ports,
        whole,
        call,
        example,
        at=example_at,
        outlined=functools.partial(outlined, arrays, dynamic),
        again=functools.partial(_traced, module, wide, dynamic, given),
    )


class _Traced(NamedTuple):
    """A module as a graph, and how it came to be.

    Attributes:
        graph: with sizes that are computed.
        ports: what it takes and gives.
        whole: the graph before it was simplified.
        call: gives other traces.
        example: its sizes.
        at: gives the example with other sizes.
        outlined: gives arrays of such sizes, of no value, for traces.
        again: traces the module as it is then, on the example in float32.
    """

    graph: Graph
    ports: Ports
    whole: Graph
    call: _Call
    example: Mapping[str, int]
    at: Callable[[Mapping[str, int]], Arrays]
    outlined: Callable[[Mapping[str, int]], Arrays]
    again: Callable[[], _Traced]

    def limits(self) -> dict[str, Limit]:
        """Return the sizes between which the recording gives what MLX gives, of those that have limits."""

        @functools.cache
        def wide() -> CapturedMlx:  # traced anew: numbers in code were rounded to 16 bits
            with self.call.widened():
                return _captured(self.again())

        def same(sizes: Mapping[str, int]) -> bool:
            arrays = varied(self.at(sizes), self.at(self.example))
            if arrays is None:
                return False
            with contextlib.suppress(Exception), torch.no_grad():  # neither may run there
                return gap(self.call.wide(arrays), wide()(**as_tensors(arrays))) <= BAR
            return False

        return Search(self._graph_at, same, self.example, self.whole).limits()

    def _graph_at(self, sizes: Mapping[str, int]) -> Graph:
        shaped = self.outlined(sizes).values()
        if sum(it.size for it in shaped) > MOST:
            raise UnsupportedError("too large to look at")
        return self.call.trace([*shaped])


def by_name(module: mlx.nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Return INPUTS by the names that ``__call__`` of MODULE has for them.

    Raises:
        BadInputError: it does not take them.
    """
    signature = inspect.signature(type(module).__call__)
    given = inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)
    try:
        if isinstance(given, Mapping):
            bound = signature.bind(module, **given)
        else:
            bound = signature.bind(module, *given)
    except TypeError as error:
        raise BadInputError(f"{type(module).__name__} cannot be called so: {error}") from None
    _self, *named = bound.arguments
    kinds = {it: signature.parameters[it].kind for it in named}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        raise BadInputError(f"{type(module).__name__} takes inputs without names: wrap it")
    found = {name: bound.arguments[name] for name in named}
    for name, kind in kinds.items():
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= found.pop(name)
    return found


def as_array(value: Any) -> mx.array | None:
    """Return VALUE as an array of MLX, ``None`` if it is no array.

    Raises:
        BadInputError: it holds arrays, and is none.
    """
    if isinstance(value, mx.array):
        return value
    if isinstance(value, torch.Tensor):
        return to_mlx(value)
    if isinstance(value, np.ndarray | np.generic):
        return mx.array(np.asarray(value))
    leaves = pytree.tree_leaves(value)
    if any(isinstance(it, mx.array | torch.Tensor | np.ndarray) for it in leaves):
        raise BadInputError(
            f"an input is a {type(value).__name__} of arrays: only arrays themselves can be inputs"
        )
    return None


def places(arrays: Mapping[str, mx.array], dynamic: Dynamic) -> dict[str, tuple[str, int]]:
    """Return where each size that varies is read: name -> input and axis.

    Raises:
        BadInputError: there is no such input or axis, or the example has one size twice, differently.
    """
    found: dict[str, tuple[str, int]] = {}
    for name, axes in dynamic.items():
        if name not in arrays:
            raise BadInputError(
                f"dynamic: no input {name}; there are {', '.join(arrays) or 'none'}"
            )
        for axis, size in axes.items():
            if not 0 <= axis < arrays[name].ndim:
                raise BadInputError(f"dynamic: {name} has no axis {axis}")
            first, at = found.setdefault(size, (name, axis))
            if arrays[first].shape[at] != arrays[name].shape[axis]:
                raise BadInputError(f"dynamic: {size} is one size in {first} and another in {name}")
    return found


class _Call:
    """A module as a function of its inputs and parameters."""

    def __init__(self, module: mlx.nn.Module, names: Sequence[str], call: Call) -> None:
        self.module, self.names, self.call = module, names, call
        self.returned: Any = None

    def trace(self, arrays: Sequence[mx.array]) -> Graph:
        """Return the graph of a call with ARRAYS; the module is left as it was."""
        mx.eval(arrays, *_arrays_of(self.module))
        _refuse_shared(self.module)
        parameters = dict(tree_flatten(self.module.parameters()))
        try:
            return trace(self, arrays, parameters)
        finally:
            self.module.update(tree_unflatten([*parameters.items()]))

    @contextlib.contextmanager
    def widened(self) -> Iterator[None]:
        """Have the module's parameters in float32 in the block: 16 bits would hide what differs."""
        parameters = self.module.parameters()
        try:
            self.module.update(tree_map(widest, parameters))
            yield
        finally:
            self.module.update(parameters)

    def wide(self, arrays: Arrays) -> Any:
        """Return what the module gives in float32."""
        with self.widened():
            made = as_fields(self.call(arrays))
            mx.eval(*[it for it in pytree.tree_leaves(made) if isinstance(it, mx.array)])
            return made

    def __call__(
        self, arrays: Sequence[mx.array], parameters: Mapping[str, mx.array]
    ) -> list[mx.array]:
        """Call the module with traced arrays; return the arrays among what it returns."""
        self.module.update(tree_unflatten([*parameters.items()]))
        made = self.call(dict(zip(self.names, arrays, strict=True)))
        self._require_unchanged(parameters)
        leaves = pytree.tree_leaves(fields := as_fields(made))
        found = [it for it in leaves if isinstance(it, mx.array)]
        if strange := sorted({type(it).__name__ for it in leaves if not isinstance(it, KNOWN)}):
            raise UnsupportedError(
                f"{type(self.module).__name__} returns {', '.join(strange)}: only arrays, numbers,"
                " texts, and tuples, lists and dictionaries of these can be captured"
            )
        numbers = itertools.count()
        self.returned = pytree.tree_map(
            lambda it: Place(next(numbers)) if isinstance(it, mx.array) else it, fields
        )
        return found

    def _require_unchanged(self, parameters: Mapping[str, mx.array]) -> None:
        now = dict(tree_flatten(self.module.parameters()))
        changed = [name for name in now if now[name] is not parameters.get(name)]
        if changed:
            raise UnsupportedError(
                f"{type(self.module).__name__} writes to {', '.join(changed[:5])} when it is called"
                " (batch norms do while they train): call eval() first"
            )


def _refuse_shared(module: mlx.nn.Module) -> None:
    names: dict[int, list[str]] = {}
    for name, part in module.named_modules():
        if tree_flatten(part.parameters()):
            names.setdefault(id(part), []).append(name)
    twice = [" and ".join(them) for them in names.values() if len(them) > 1]
    if twice:
        raise UnsupportedError(
            f"{', '.join(twice[:5])} of {type(module).__name__} are one module, whose parameters MLX would give and"
            " take under each name: hold it under one name, and call it by that"
        )


def _arrays_of(module: mlx.nn.Module) -> Iterator[mx.array]:
    """Yield all arrays of MODULE, those that are no parameters too, so that none is traced unevaluated."""
    for part in module.modules():
        yield from (
            it for it in dict(tree_flatten(dict(part))).values() if isinstance(it, mx.array)
        )


def as_fields(value: Any) -> Any:
    """Return VALUE, a data class as a dictionary of those fields that are not ``None``."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {it.name: getattr(value, it.name) for it in dataclasses.fields(value)}
    return {name: it for name, it in fields.items() if it is not None}
