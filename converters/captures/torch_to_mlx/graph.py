"""The interpreter: a recorded graph as a list of steps over named values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from .census import WRAPPERS, body_of, live_nodes
from .dispatch import (
    Call,
    Environment,
    Reference,
    bind,
    closed,
    overload,
    references,
    resolve,
    template,
)
from .operations.registry import handlers
from .recording.autograd.custom import Custom, custom
from .recording.autograd.lifting import META
from .sites import module_path, sites_of

Run = Callable[[Environment], Any]
Tap = Callable[[tuple[str, ...], Any], Any]  # (sites, value) -> the value to go on with

_SIZES: Final[dict[str, Callable[..., int]]] = {
    "aten.sym_size.int": lambda array, axis: array.shape[axis],
    "aten.sym_numel.default": lambda array: array.size,
}


@dataclass(frozen=True)
class Step:
    """One operation of the graph.

    Attributes:
        name: of the value that it computes.
        run: computes it from the values so far.
        frees: values that nothing needs afterwards.
        sites: submodules whose output the value is, innermost first.
        label: the operation and its module, for messages.
        takes: values that it is computed from.
        taken: the value that later steps take in place of this one, and its axes among this one's.
    """

    name: str
    run: Run
    frees: tuple[str, ...]
    sites: tuple[str, ...]
    label: str
    takes: tuple[str, ...] = ()
    taken: tuple[str, tuple[int, ...]] | None = None

    @property
    def operation(self) -> str:
        """The operation, such as ``aten.linear.default``."""
        return self.label.partition(" ")[0]


@dataclass(frozen=True)
class Graph:
    """A recorded graph; ``inputs`` names the values that it starts from."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    output: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> Graph:
        """Return this graph: nothing in it changes, and MLX's dtypes cannot be copied."""
        return self

    def run(self, values: dict[str, Any], tap: Tap | None = None) -> Any:
        """Compute the output from VALUES, which is used up; TAP sees and may replace site outputs."""
        values.update(closed(values))
        step = None
        try:
            for step in self.steps:
                values[step.name] = step.run(values)
                if tap and step.sites:
                    _tapped(step, values, tap)
                for name in step.frees:
                    values.pop(name, None)
        except Exception as error:
            error.add_note(f"while running {step and step.label} captured from torch")
            raise
        return resolve(self.output, values)

    def rewritten(self, rewrite: Callable[[Step], Run | None]) -> Graph:
        """Return the graph with the steps replaced for which REWRITE returns another run."""
        steps = [(step, rewrite(step)) for step in self.steps]
        return replace(
            self, steps=tuple(replace(step, run=run) if run else step for step, run in steps)
        )

    def lean(self) -> Graph:
        """Return the graph without what its output does not need, as sites do that are seen with other axes."""
        needed, steps = {*references(self.output)}, []
        for step in reversed(self.steps):
            if step.name in needed:
                frees = tuple(name for name in dict.fromkeys(step.takes) if name not in needed)
                needed.update(frees)
                steps.append(replace(step, frees=frees))
        return replace(self, steps=tuple(reversed(steps)))

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, in order of computation."""
        return tuple(site for step in self.steps for site in step.sites)


def inner(run: Any) -> list[Graph]:
    """Return the graphs that RUN, what a step does, runs itself."""
    if isinstance(run, Custom):
        return [method.graph for method in run.methods]
    return [run.graph] if isinstance(run, Wrapped) else []


def _tapped(step: Step, values: dict[str, Any], tap: Tap) -> None:
    """Put what TAP makes of the value of STEP in its place among VALUES."""
    before = values[step.name]
    values[step.name] = tap(step.sites, before)
    if step.taken and values[step.name] is not before:
        name, axes = step.taken
        values[name] = values[step.name].transpose(axes)


def _last_uses(nodes: Sequence[Node]) -> dict[Node, tuple[str, ...]]:
    """Return node -> names of the values of which it is the last user."""
    last = {used: node for node in nodes for used in node.all_input_nodes}
    uses: dict[Node, list[str]] = {}
    for used, node in last.items():
        uses.setdefault(node, []).append(used.name)
    return {node: tuple(names) for node, names in uses.items()}


@dataclass(frozen=True)
class Wrapped:
    """A graph inside the graph; what wraps it says nothing that its dtypes do not."""

    graph: Graph
    arguments: Any

    def __call__(self, values: Environment) -> Any:
        """Run the graph on its arguments among VALUES."""
        given = resolve(self.arguments, values)
        return self.graph.run(dict(zip(self.graph.inputs, given, strict=True)))


@dataclass(frozen=True)
class PythonCall:
    """Arithmetic on sizes, or one of several results; ``name`` is where the function is found."""

    name: str
    arguments: Any

    def __post_init__(self) -> None:
        """Find the function."""
        module, _, name = self.name.rpartition(".")
        known = _SIZES.get(self.name)
        object.__setattr__(self, "_function", known or getattr(import_module(module), name))

    def __call__(self, values: Environment) -> Any:
        """Call the function on its arguments among VALUES."""
        return self._function(*resolve(self.arguments, values))  # type: ignore[attr-defined]


def _python_call(node: Any) -> PythonCall:
    sized = overload(node) in _SIZES
    name = overload(node) if sized else f"{node.target.__module__}.{node.target.__name__}"
    return PythonCall(name, template(node.args))


def _run_of(node: Node, module: GraphModule) -> Run:
    body = body_of(node, module)
    if body is not None:
        return Wrapped(build_graph(body), template(node.args[WRAPPERS[str(node.target)] + 1 :]))
    if META in node.meta:
        return custom(node, build_graph)
    operation = handlers().get(overload(node))
    if isinstance(node.target, torch._ops.OpOverload) and operation is not None:
        return bind(node, operation)
    return _python_call(node)


def _taken(node: Node) -> tuple[str, tuple[int, ...]] | None:
    """Return what a pass noted of NODE: which value is taken in its place, in which order of axes."""
    taken, axes = node.meta.get("taken", (None, ()))
    return (taken.name, axes) if taken else None


def build_graph(module: GraphModule) -> Graph:
    """Turn a graph that passed the census, and whose sites are marked, into steps."""
    nodes = live_nodes(module.graph)
    frees = _last_uses(nodes)
    steps = tuple(
        Step(
            node.name,
            _run_of(node, module),
            frees.get(node, ()),
            sites_of(node),
            f"{overload(node)} in {module_path(node) or 'the module itself'}",
            tuple(used.name for used in node.all_input_nodes),
            _taken(node),
        )
        for node in nodes
        if node.op == "call_function"
    )
    inputs = tuple(node.name for node in module.graph.nodes if node.op == "placeholder")
    (output,) = nodes[-1].args
    return Graph(inputs, steps, template(output))


def weight_of(step: Step) -> tuple[Call, str] | None:
    """Return the call of STEP and the name of the value that it takes as weight, if it is one."""
    if not isinstance(step.run, Call):
        return None
    weight: Mapping[str, Any] | Any = step.run.arguments.get("weight")
    return (step.run, weight.name) if isinstance(weight, Reference) else None
