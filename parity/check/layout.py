"""Whether the weights lie in MLX as the class takes them that reads them without a map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ...converters.runtimes import Runner
from ...converters.runtimes.native.classes import has_own_class
from ...converters.runtimes.native.runner import class_runner
from ...errors import MismatchError, UnsupportedError
from ..weights.weights import own_copy
from .candidate import Candidate
from .verdict import Stage

Measure = Callable[[Runner, Candidate], Stage]


def layout_stage(by: str, ran: Candidate, measure: Measure, *, is_source: bool) -> Stage:
    """Run the class that reads the MLX directory of RAN, where it is not what structure runs.

    Where the source is in MLX, the reference was run in torch, its weights brought back by a map: that
    a candidate agrees with it says nothing of the map. Neither does a capture of torch's computation.

    Args:
        by: what checks the layout.
        ran: the side in MLX.
        measure: runs it, and judges its errors.
        is_source: whether that is the reference.
    """
    try:
        runner = class_of(ran, is_source=is_source)
    except MismatchError as error:
        return Stage("layout", "fail", str(error))
    except UnsupportedError as error:  # such as an adapter whose layers mlx-lm has
        return Stage("layout", "unverified", f"{by}, but not here: {error}")
    if runner is None:
        return Stage("layout", "pass", by)
    stage = measure(runner, ran)
    return stage._replace(name="layout", detail=f"{by}; it {stage.detail}")


def class_of(ran: Candidate, *, is_source: bool) -> Runner | None:
    """Return the class that reads the directory of RAN; ``None`` where there is none to run.

    Raises:
        MismatchError: the tensors are not those that the class has.
        UnsupportedError: the class cannot run this model here.
    """
    if has_own_class(ran.model):
        return class_runner(own_copy(ran.model), replace(ran.policy, compute="float32"))
    runner = ran.structure if is_source and ran.model.factory is None else None
    return runner if getattr(runner, "kind", "") == "library" else None
