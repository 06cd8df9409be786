"""Compare two models, with what a map says to expect and what checks the layout independently of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..converters.checkpoints.formats.onnx_model import OnnxFile
from ..converters.common.policy import Policy
from ..converters.maps import Plan, Step
from ..converters.maps.notation.axes import UNIT, Atom, Axes, Product, Sum
from ..converters.maps.notation.rules import Cast
from ..converters.maps.programs.computed import Computed
from ..converters.maps.programs.preimages import leads_as_near
from ..converters.maps.sources.torch_side import with_torch_side
from ..converters.maps.sources.variants import table_of
from ..converters.models import PROGRAMS, Model
from ..converters.models.factories import framework_of
from ..converters.planning.conversion import conversion_of
from ..converters.planning.transcoding import is_quantized
from ..errors import BadInputError
from ..parity.check.verdict import Stage, Verdict

if TYPE_CHECKING:
    from ..converters.gguf.checked.tensors import GgufTensors
    from ..parity.goldens.golden import Golden
    from ..parity.weights.expectations import Expectation


def compare(
    reference: Model | Golden,
    candidate: Model,
    *,
    runtime: str | None = None,
    policy: Policy = Policy(),
    quick: bool = False,
    inputs: Path | None = None,
) -> Verdict:
    """Compare CANDIDATE with REFERENCE; see ``parity.check.check``.

    INPUTS is an ``.npz`` of a user's own inputs; a golden has its own.

    A captured MLX model gets its weights through the inverse of the map that a conversion used, so
    its outputs cannot show that the map is right. MLX's layout needs a check
    that is independent of the map: a native MLX module, or a table that is tested against the
    library that reads it. Where there is none, the stage ``layout`` says so and the verdict is UNVERIFIED.
    """
    from ..parity.check.check import check
    from ..parity.goldens.golden import Golden
    from ..parity.probes.given import probes_from_file

    candidate = with_torch_side(with_signature(with_reader(candidate, reference), reference))
    if isinstance(reference, Model):
        reference = with_reader(reference, candidate)
        reference = with_torch_side(with_signature(reference, candidate))
    source = reference.model if isinstance(reference, Golden) else reference
    # A golden of old does not say whose names it has; then it counts as torch's.
    independent = layout_check(reference.framework or "torch", source, candidate)
    expected = expected_of(source, candidate) if source else {}
    options: dict[str, Any] = {"quick": quick, "expected": expected, "layout": independent}
    if inputs and not isinstance(reference, Golden):
        options["probes"] = probes_from_file(inputs, reference.signature)
    reference, stage = by_codes(reference, candidate, source)
    verdict = check(reference, candidate, runtime=runtime, policy=policy, **options)
    return verdict.preceded_by(stage) if stage else verdict


def by_codes(
    reference: Model | Golden, candidate: Model, source: Model | None
) -> tuple[Model | Golden, Stage | None]:
    """Return REFERENCE, made from SOURCE, with the weights that the file CANDIDATE has on codes, and whether they are its.

    Raises:
        UnsupportedError: CANDIDATE rounds more than weights.
    """
    graph = candidate.tensors if isinstance(candidate.tensors, OnnxFile) else None
    if graph is not None:
        graph.require_exact_inputs()
    # A graph has the codes of a quantized source as they are, which fingerprints see.
    dense = graph is not None and source and not is_quantized(source)
    if candidate.framework not in ("mlprogram", "gguf") and not dense:
        return reference, None
    from ..parity.packages.compressed import as_compressed

    return as_compressed(reference, candidate)


def with_reader(model: Model, other: Model | Golden) -> Model:
    """Return MODEL, of PyTorch, with the inputs that the library has for which OTHER was written in MLX."""
    read = isinstance(other, Model) and other.framework == "mlx" and other.reader
    return replace(model, reader=read) if read and model.framework == "torch" else model


def with_signature(model: Model, other: Model | Golden) -> Model:
    """Return MODEL with the signature of OTHER where a function built it and gave none of its own."""
    if model.factory is None or model.declared or model.family:
        return model
    try:
        return replace(model, declared=other.signature)
    except BadInputError:
        return model  # neither has one: asking for it says how to write it


def layout_check(
    framework: str, reference: Model | None, candidate: Model
) -> tuple[bool, str] | None:
    """Return whether MLX's layout is checked independently, and by what; ``None`` if it need not be.

    FRAMEWORK is the reference's, which a golden knows without its model.
    """
    if {framework, candidate.framework} != {"torch", "mlx"}:
        return None
    sides = [side for side in (reference, candidate) if side]
    native = next((side for side in sides if is_native(side)), None)
    if native:
        return True, f"native MLX module {type(native.factory).__name__}"
    mlx = next((side for side in sides if side.framework == "mlx"), None)
    if mlx is None:  # an MLX golden: what ran to record it is not here
        return False, "the golden does not say what checked its layout; record it from torch"
    return layout_check_of(mlx)


def layout_check_of(model: Model) -> tuple[bool, str]:
    """Return whether anything besides its own map checks the layout of MODEL, in MLX, and what."""
    check = read_natively(model) or tested_table(model) or model.layout_check
    if check:
        return True, check
    return False, (
        f"{no_class(model)}only its own map says how {model.spec} lies in MLX; name a native mlx.nn"
        " module that loads it: --candidate-code MODULE:FUNCTION"
    )


def read_natively(model: Model) -> str | None:
    """Return which class reads and runs MODEL: an MLX library's that is installed, or one of ours.

    An architecture with a table is captured, so there no library is asked. A class of ours is run
    besides: by the table's names the files must fit it, by a user's map they may.
    """
    from ..converters.runtimes.native.classes import has_own_class, layout_reader, misfits, refusal

    if model.library is None or model.family is None:
        return None
    if not model.family.map:
        return layout_reader(model)
    if not has_own_class(model) or refusal(model) or (has_own_map(model) and misfits(model)):
        return None
    return f"{model.library}: its own class loads and runs the directory"


def no_class(model: Model) -> str:
    """Return why no class of a library or of ours runs MODEL, to be put before more."""
    from ..converters.runtimes.native.classes import has_own_class, misfits, refusal

    why = refusal(model) if has_own_class(model) and model.family else ""
    if not why and model.library and model.family and not model.family.map:
        problems = misfits(model)
        why = f"{model.library} does not load it ({problems[0]})" if problems else ""
    return f"{why}; " if why else ""


def has_own_map(model: Model) -> bool:
    """Say whether MODEL's map is the user's and not the table of its family."""
    if not model.map_text or model.family is None:
        return False
    return conversion_of(model, "mlx").map != table_of(model.family)


def is_native(model: Model) -> bool:
    """Say whether MODEL is run by an MLX module of its own, weights in MLX's layout."""
    if model.factory is None:
        return False
    return framework_of(model.factory) == "mlx"


def tested_table(model: Model) -> str | None:
    """Return whose loader MODEL's table is tested against; ``None`` where its map is the user's."""
    family = model.family
    if family is None or not family.native:
        return None
    if has_own_map(model):
        return None
    return f"table {family.map}, tested against the loader of {family.native}"


def expectations_of(plan: Plan) -> dict[str, Expectation]:
    """Return what PLAN says of each target: its sources, a permutation, whether values change."""
    from ..parity.weights.expectations import Expectation

    found: dict[str, Expectation] = {}
    for step in plan.steps:
        single = len(step.source_names) == len(step.target_names) == 1 and _plain(step)
        axes = _permutation(step) if single else None
        computed = isinstance(step.rule, Computed)
        ordered = len(step.sources) == 1 or all(len(it.names) == 1 for it in step.sources)
        shared = len(step.source_names) > 1 < len(step.target_names)
        expectation = Expectation(
            _sources(step), axes, _changes(step), computed, ordered, shared, _reorders(step)
        )
        found |= dict.fromkeys(step.target_names, expectation)
    return found


def _sources(step: Step) -> tuple[str, ...]:
    """Return what STEP reads, in the order in which it lies in the target where that joins it."""
    sums = [axis for it in step.targets for axis in it.axes or () if isinstance(axis, Sum)]
    parts = sums[0].parts if len(sums) == 1 else ()
    places = {_unordered(part): place for place, part in enumerate(parts)}
    found = [
        next((places[it] for it in map(_unordered, one.axes or ()) if it in places), -1)
        for one in step.sources
    ]
    if -1 in found:
        return step.source_names
    return tuple(
        name
        for _, it in sorted(zip(found, step.sources, strict=True), key=itemgetter(0))
        for name in it.names
    )


def _unordered(axis: Any) -> Any:
    """Return AXIS, its factors in no order, if it has any."""
    return frozenset(axis.factors) if isinstance(axis, Product) else axis


def _changes(step: Step) -> bool:
    terms = (*step.rule.left, *step.rule.right)
    return any(not isinstance(change, Cast) for term in terms for change in term.changes)


def _reorders(step: Step) -> bool:
    """Say whether STEP joins or cuts tensors, and has the factors of an axis of them in another order."""
    if len(step.sources) == len(step.targets) == 1:
        return False
    before, after = (
        {it for one in side for it in _products(one.axes or ())}
        for side in (step.sources, step.targets)
    )
    return any(one != other and {*one} == {*other} for one in before for other in after)


def _products(axes: Axes) -> Iterator[tuple[Any, ...]]:
    """Yield the factors of each product within AXES."""
    for axis in axes:
        if isinstance(axis, Product):
            yield axis.factors
        yield from _products(getattr(axis, "factors", getattr(axis, "parts", ())))


def _axes(step: Step) -> tuple[Axes | None, Axes | None]:
    return step.rule.left[0].axes, step.rule.right[0].axes


def _plain(step: Step) -> bool:
    sides = [side for side in _axes(step) if side is not None]
    return all(isinstance(axis, Atom) or axis == UNIT for side in sides for axis in side)


def _permutation(step: Step) -> tuple[int, ...] | None:
    left, right = _axes(step)
    if left is None or right is None or left == right or Counter(left) != Counter(right):
        return None
    places = {axis: [at for at, it in enumerate(left) if it == axis] for axis in left}
    return tuple(places[axis].pop(0) for axis in right)


def expected_of(reference: Model, candidate: Model) -> dict[str, Expectation]:
    """Return what CANDIDATE's weights should be, by REFERENCE's names; empty where no map says.

    In one framework every name is expected to be itself. Between torch and MLX the map of either
    side says it; whether the map is right is what the check finds out by values.

    Raises:
        MismatchError: the reference does not fit its own map.
    """
    from ..parity.weights.expectations import Expectation

    if candidate.framework == "gguf":
        tensors = cast("GgufTensors", candidate.tensors)
        computed, names = (
            tensors.computed,
            tensors.parts.keys() & reference.checkpoint.headers.keys(),
        )
        return {name: Expectation((name,), changed=name in computed) for name in names}
    if PROGRAMS.keys() & {reference.framework, candidate.framework} or reference.path is None:
        return {}
    if candidate.path is None:
        return {}
    headers = reference.checkpoint.headers
    if reference.framework == candidate.framework:
        return {
            name: Expectation((name,)) for name in candidate.checkpoint.headers if name in headers
        }
    table = conversion_of(reference, candidate.framework).map
    table = table or conversion_of(candidate, reference.framework).map
    if table is None:
        return {}
    directed = table if reference.framework == "torch" else table.inverse()
    plan = directed.bind(headers, config=reference.config, sizes=reference.sizes)
    return expectations_of(plan) | testable(plan, reference, candidate)


def testable(plan: Plan, reference: Model, candidate: Model) -> dict[str, Expectation]:
    """Return the expectations of PLAN that can be held against the values by running their programs.

    With an adapter the weights are not what a program was run on.
    """
    found = expectations_of(plan)
    if reference.adapter or candidate.adapter:
        return {}
    there = candidate.checkpoint.headers
    return {
        name: found[name]._replace(holds=partial(agrees, step, reference, candidate))
        for step in plan.steps
        if isinstance(step.rule, Computed) and step.rule.undoable
        for name in step.target_names
        if name in there
    }


def agrees(step: Step, reference: Model, candidate: Model) -> bool:
    """Say whether the program of STEP, which can be undone, leads from the one model to the other."""
    assert isinstance(step.rule, Computed)  # noqa: S101  (only these have programs)
    [source], [target] = step.source_names, step.target_names
    mine, theirs = reference.checkpoint.read(source), candidate.checkpoint.read(target)
    if step.rule.forward:
        return leads_as_near(step.rule.program, mine, theirs, back=False)
    return leads_as_near(step.rule.program, theirs, mine, back=True)
