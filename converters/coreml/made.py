"""How each constant that is no tensor of the source came about, for the package's manifest.

A rule is ``{"fill": number}``; ``{"numbers": them}``, one for each channel of a picture; ``{"buffer": name}``,
a tensor that the source computes itself; or ``{"value": expression}``, arithmetic on tensors of the source
(see ``mlprogram.arithmetic``), with ``"also"`` for what else has the same value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from ..captures.constants import match_weights, origin_of
from ..captures.described import folded, picked_from, rows_of
from ..captures.interpolated.graphs import MATRICES
from ..captures.mlprogram.arithmetic import (
    FUNCTIONS,
    INVERTED,
    evaluate,
    rounds_to,
    tensors,
    tensors_of,
)
from ..captures.mlprogram.variables import scalars, weights
from ..models.pictures import CHANNELS
from ..values import Array
from .manifest import match_scalars
from .naming import before_rounding
from .translations import recurrent_parts

MODULE: Final = "module."  # what the exporter's wrapper puts before every name
# Operations that change the shape or the dtype of a tensor and none of its numbers.
CARRYING: Final = frozenset(
    {"_to_copy", "alias", "clone", "detach", "expand", "lift_fresh_copy", "reshape", "squeeze"}
    | {"to", "unsqueeze", "view", "type_as", "contiguous"}
)
DEEPEST: Final = 8  # functions within functions


class Origins:
    """What an exported graph says of its constants.

    Attributes:
        nodes: by name.
        state: names of the tensors that the module keeps.
        keys: placeholder -> the tensor of the module that it stands for.
        activations: names of the nodes that depend on weights or on floating-point inputs.
        matrices: what interpolations multiply by, as arithmetic.
    """

    def __init__(self, graph: Any, module: torch.nn.Module) -> None:
        given = graph.graph_signature
        self.state = frozenset(module.state_dict())
        self.nodes = {node.name: node for node in graph.graph.nodes}
        named = {**given.inputs_to_parameters, **given.inputs_to_buffers}
        self.keys = {name: key.removeprefix(MODULE) for name, key in named.items()}
        live = {*given.inputs_to_parameters}
        live |= {name for name in given.user_inputs if is_float(self.nodes.get(name))}
        for node in graph.graph.nodes:
            if any(source.name in live for source in node.all_input_nodes):
                live.add(node.name)
        self.activations = frozenset(live)
        self.matrices = graph.graph_module.meta.get(MATRICES, [])

    def expression(self, name: str) -> Any:
        """Return what the node called NAME computes from tensors of the module alone, or ``None``."""
        node = self.nodes.get(name)
        try:
            return None if node is None else self._expression(node, DEEPEST)
        except (KeyError, TypeError):
            return None

    def _expression(self, node: Any, depth: int) -> Any:
        if isinstance(node, int | float):
            return float(node)
        if node.name in self.keys:
            kind = "key" if self.keys[node.name] in self.state else "buffer"
            return {kind: self.keys[node.name]}
        called = node.target if depth and node.op == "call_function" else None
        function = getattr(getattr(called, "overloadpacket", called), "__name__", "")
        if function in CARRYING:
            return self._expression(node.args[0], depth)
        if function not in FUNCTIONS or node.kwargs:
            raise KeyError(function)
        return [function, *(self._expression(part, depth - 1) for part in node.args)]


def is_float(node: Any) -> bool:
    """Say whether a node of a graph makes floating-point numbers."""
    value = None if node is None else node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def rules(
    constants: Mapping[str, Array], module: torch.nn.Module, origins: Origins
) -> dict[str, dict[str, Any]]:
    """Return the rule of each of CONSTANTS that has one; a rule is given only where it holds.

    Args:
        constants: by name, at any floating dtype.
        module: the source.
        origins: of the graph that was exported.
    """
    state = module.state_dict()
    buffers = {name: it for name, it in module.named_buffers() if name not in state}

    def read(kind: str, name: str) -> Array:
        tensor = (buffers if kind == "buffer" else state)[name]
        found: Array = tensor.detach().cpu().double().numpy()
        return found

    parts = (*recurrent_parts(module), *origins.matrices)
    gates = rules_of_gates(constants, parts, read)
    rest = {name: array for name, array in constants.items() if name not in gates}
    return gates | dict(_rules(rest, buffers, origins, read))


def rules_of_gates(
    constants: Mapping[str, Array], parts: Iterable[Any], read: Callable[[str, str], Array]
) -> dict[str, dict[str, Any]]:
    """Return the rules of those CONSTANTS that are PARTS of recurrent layers: arithmetic on tensors.

    Of equal constants each has a part of its own, as far as they go; where a converter kept one of equal
    ones, the rule says what it is ``also``.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        exact = evaluate(part, read)
        alike = [name for name, array in constants.items() if rounds_to(exact, array)]
        if name := next((it for it in alike if it not in found), None):
            found[name] = {"value": part}
        elif alike:
            found[alike[0]].setdefault("also", []).append(part)
    return found


def _rules(
    constants: Mapping[str, Array],
    buffers: Mapping[str, torch.Tensor],
    origins: Origins,
    read: Callable[[str, str], Array],
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, array in constants.items():
        value = origins.expression(before_rounding(name))
        buffer = next((it for it in buffers if rounds_to(read("buffer", it), array)), None)
        if value is not None and rounds_to(evaluate(value, read), array):
            yield name, {"value": value}
        elif buffer is not None:
            yield name, {"buffer": buffer}
        elif array.size and bool((array == array.flat[0]).all()):
            yield name, {"fill": float(array.flat[0])}
        elif rows := rows_of(array, origins.state, read) or picked_from(array, origins.state, read):
            yield name, {"value": rows}


def constants_described(
    body: Any, module: torch.nn.Module, origins: Origins, exact: Mapping[str, Array]
) -> dict[str, dict[str, Any]]:
    """Return what a manifest says of the constants of BODY, EXACT before they were rounded."""
    constants, numbers, state = weights(body), scalars(body), module.state_dict()
    found = match_weights(constants, state) | match_scalars(numbers, origins.keys, state)
    rest = {name: array for name, array in constants.items() if name not in found}
    others = {name: array for name, array in numbers.items() if name not in found}
    made = rules(rest, module, origins) | rules_of_tensors(others, exact, module, origins)
    made |= products_with(constants, found, module, origins)
    made |= of_channels({name: array for name, array in rest.items() if name not in made}, exact)
    keys = {key for rule in made.values() for key in tensors_of(rule)}
    return {
        "weights": found,
        "made": {name: made.get(name, {}) for name in sorted({*rest, *made})},
        "origins": {key: origin_of(state[key]) for key in sorted(keys)},
        "exact": exact_scalars(numbers, exact),
    }


def products_with(
    constants: Mapping[str, Array],
    found: Mapping[str, Any],
    module: torch.nn.Module,
    origins: Origins,
) -> dict[str, dict[str, Any]]:
    """Return the rules of those CONSTANTS that are tensors, as FOUND, and made of others besides.

    So is a weight with its norms, where it has these norms already.
    """
    whole = {name: origins.expression(before_rounding(name)) for name in constants.keys() & found}
    joint = {name for name, it in whole.items() if len({*tensors(it)}) > 1}
    return rules({name: constants[name] for name in sorted(joint)}, module, origins)


def of_channels(
    constants: Mapping[str, Array], exact: Mapping[str, Array]
) -> dict[str, dict[str, Any]]:
    """Return the rules of those CONSTANTS that have a number for each channel of a picture."""
    small = {name: it for name, it in constants.items() if 1 < it.size <= CHANNELS}
    whole = {name: exact.get(before_rounding(name), it) for name, it in small.items()}
    return {name: {"numbers": [float(n) for n in it.ravel()]} for name, it in whole.items()}


def rules_of_tensors(
    numbers: Mapping[str, Array],
    exact: Mapping[str, Array],
    module: torch.nn.Module,
    origins: Origins,
) -> dict[str, dict[str, Any]]:
    """Return the rules of those NUMBERS, constants without axes, that are made of tensors.

    The graph does not say of which number coremltools took the inverse. As they were, EXACT, it shows: rounded,
    1 is that of 0.9998.
    """
    found = rules(numbers, module, origins)
    made = {name: it for name, it in found.items() if any(tensors_of(it))}
    inverted = {name: it for name, it in numbers.items() if INVERTED in name}
    whole = {name: exact.get(before_rounding(name), it) for name, it in inverted.items()}
    rest = {name: folded(it, module) for name, it in whole.items() if name not in made}
    return made | {name: rule for name, rule in rest.items() if rule}


def exact_scalars(numbers: Mapping[str, Array], exact: Mapping[str, Array]) -> dict[str, float]:
    """Return what constants without axes were before float16 rounded them, where it did."""
    known = {name: exact.get(before_rounding(name)) for name in numbers}
    return {
        name: float(value)
        for name, value in known.items()
        if value is not None and value.size == 1 and float(value) != float(numbers[name])
        if rounds_to(value, numbers[name])
    }
