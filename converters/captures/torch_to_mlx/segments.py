"""Segments of a captured graph whose values are computed again for the gradient (Chen et al. 2016).

The steps of a module become one step, which keeps nothing for the gradient but what it was computed
from. A module that draws random numbers would draw others the second time, and MLX 0.32 does not
differentiate what returns statistics of the batch as well: such modules stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import mlx.core as mx

from .adapters.forms import Slot
from .dispatch import Call, Environment, references
from .drawing import draws
from .graph import Graph, Step, inner
from .quantized.value import Values, held


def segmented(graph: Graph, modules: Collection[str], slots: Mapping[str, Slot]) -> Graph:
    """Return GRAPH with the steps of each of MODULES as one.

    Args:
        graph: as recorded, adapters and quantized weights in its steps.
        modules: their paths.
        slots: adapters by graph value of their weight.
    """
    steps: list[Step] = []
    modules = set(modules) - kept(graph, modules)
    needed = {name for step in graph.steps for name in step.takes} | {*references(graph.output)}
    for module, run in groupby(graph.steps, lambda step: _owner(step, modules)):
        own = list(run)
        made = {step.name for step in own} & needed
        freed = {name for step in own for name in step.frees}
        alone = module is None or len(own) < 2 or not made - freed
        steps += own if alone else [_joined(own, slots, module)]
    return replace(graph, steps=tuple(steps))


def kept(graph: Graph, modules: Collection[str]) -> set[str]:
    """Return those of MODULES that stay as they are."""
    return {owner for step in graph.steps if _once(step) and (owner := _owner(step, modules))}


def _owner(step: Step, modules: Collection[str]) -> str | None:
    """Return which of MODULES computes STEP."""
    path = step.label.partition(" in ")[2].partition("@")[0]
    return next((it for it in modules if path == it or path.startswith(f"{it}.")), None)


def _once(step: Step) -> bool:
    """Return whether STEP can be computed once only."""
    arguments = step.run.arguments if isinstance(step.run, Call) else {}
    dropped = any(arguments.get(name) for name in ("dropout_p", "dropout"))
    own = draws(step.operation) or "batch_norm" in step.operation
    return dropped or own or any(_once(it) for graph in inner(step.run) for it in graph.steps)


def _joined(steps: Sequence[Step], slots: Mapping[str, Slot], module: str | None) -> Step:
    """Return STEPS as one."""
    made = {step.name for step in steps}
    freed = [name for step in steps for name in step.frees]
    taken = dict.fromkeys(name for step in steps for name in step.takes if name not in made)
    factors = [name for it in taken if it in slots for name in slots[it].parameters]
    leaving = tuple(step.name for step in steps if step.name not in freed)
    outside = tuple(name for name in freed if name not in made)
    run = Segment(tuple(steps), (*taken, *factors), leaving)
    return Step(f"segment_{steps[-1].name}", run, outside, (), f"segment in {module}", tuple(taken))


@dataclass(frozen=True)
class Segment:
    """Runs steps, and once more where a gradient asks for it.

    Attributes:
        steps: in order.
        taken: values that they need.
        leaving: values of theirs that are needed afterwards.
    """

    steps: tuple[Step, ...]
    taken: tuple[str, ...]
    leaving: tuple[str, ...]

    def __call__(self, values: Environment) -> None:
        """Add what the steps compute to VALUES."""
        given = {name: held(values, name) for name in self.taken}
        flowing = [name for name, value in given.items() if _flows(value)]
        plain: dict[str, Any] = {}

        def compute(*arrays: mx.array) -> list[mx.array]:
            inner: Any = Values({**given, **dict(zip(flowing, arrays, strict=True))})
            for step in self.steps:
                inner[step.name] = step.run(inner)
            plain.update((name, held(inner, name)) for name in self.leaving)
            return [value for value in plain.values() if _flows(value)]

        found = _recomputed(compute)(*(given[name] for name in flowing))
        kept = [name for name, value in plain.items() if _flows(value)]
        target: Any = values
        target.update({**plain, **dict(zip(kept, found, strict=True))})


def _recomputed(compute: Callable[..., list[mx.array]]) -> Callable[..., list[mx.array]]:
    """Return COMPUTE, which is run again when the gradient of its results is there, not before.

    ``mx.checkpoint`` waits for the results alone, so that all segments may be computed again at once.
    """
    run: Any = mx.custom_function(compute)

    @run.vjp  # type: ignore[untyped-decorator]
    def _(primals: Any, cotangents: Any, _outputs: Any) -> Any:
        primals = primals if isinstance(primals, tuple | list) else [primals]
        again = mx.depends([*primals], [*cotangents])
        return tuple(mx.vjp(compute, again, [*cotangents])[1])

    found: Callable[..., list[mx.array]] = run
    return found


def _flows(value: Any) -> bool:
    """Return whether VALUE is an array that a gradient may flow through."""
    return isinstance(value, mx.array) and bool(mx.issubdtype(value.dtype, mx.inexact))
