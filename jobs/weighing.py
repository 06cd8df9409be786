"""Weigh one model against another, with what a map promised and who vouches for the layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..converters.common.policy import Policy
from ..converters.maps.sources.torch_side import with_torch_side
from ..converters.maps.sources.variants import table_of
from ..converters.models import Model
from .directions import map_of
from .promises import promised

if TYPE_CHECKING:
    from ..parity.check.verdict import Verdict
    from ..parity.goldens.golden import Golden


def weigh(
    reference: Model | Golden,
    candidate: Model,
    *,
    runtime: str | None = None,
    policy: Policy = Policy(),
    quick: bool = False,
    inputs: Path | None = None,
) -> Verdict:
    """Weigh CANDIDATE against REFERENCE; see ``parity.check.check``.

    INPUTS is an ``.npz`` of a user's own inputs; a golden has its own.

    A captured MLX model gets its weights through the inverse of the map that a conversion used, so
    its outputs cannot show that the map is right. Someone else has to vouch for MLX's layout: a
    native MLX module, or a table that is tested against the library that reads it. Where nobody
    does, the stage ``layout`` says so and the verdict is UNVERIFIED.
    """
    from ..parity.check.check import check
    from ..parity.goldens.golden import Golden
    from ..parity.probes.probes import probes_from_file

    candidate = with_torch_side(candidate)
    if isinstance(reference, Model):
        reference = with_torch_side(reference)
    source = reference.model if isinstance(reference, Golden) else reference
    # A golden of old does not say whose names it has; then it counts as torch's.
    vouched = vouch(reference.framework or "torch", source, candidate)
    expected = promised(source, candidate) if source else {}
    options: dict[str, Any] = {"quick": quick, "expected": expected, "layout": vouched}
    if inputs and not isinstance(reference, Golden):
        options["probes"] = probes_from_file(inputs, reference.signature)
    return check(reference, candidate, runtime=runtime, policy=policy, **options)


def vouch(framework: str, reference: Model | None, candidate: Model) -> tuple[bool, str] | None:
    """Return whether somebody vouches for the MLX side's layout, and who; ``None`` if none is needed.

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
        return False, "the golden does not say who vouches for its layout; record it from torch"
    return vouch_for(mlx)


def vouch_for(model: Model) -> tuple[bool, str]:
    """Return whether somebody besides its own map vouches for the layout of MODEL, in MLX."""
    witness = read_natively(model) or tested_table(model) or model.witness
    if witness:
        return True, witness
    return False, (
        f"only its own map says how {model.spec} lies in MLX; name a native mlx.nn module that"
        " loads it: --candidate-code MODULE:FUNCTION"
    )


def read_natively(model: Model) -> str | None:
    """Return which MLX library's own class reads and runs MODEL, if one is installed that does.

    An architecture with a table is captured, so there no such class is asked.
    """
    if model.library is None or model.family is None or model.family.map:
        return None
    from ..converters.runtimes.native import layout_reader

    return layout_reader(model)


def is_native(model: Model) -> bool:
    """Say whether MODEL is run by an MLX module of its own, weights in MLX's layout."""
    if model.factory is None:
        return False
    from ..converters.models.factories import framework_of

    return framework_of(model.factory) == "mlx"


def tested_table(model: Model) -> str | None:
    """Return whose loader MODEL's table is tested against; ``None`` where its map is the user's."""
    family = model.family
    if family is None or not family.native:
        return None
    if model.map_text and map_of(model) != table_of(family):
        return None
    return f"table {family.map}, tested against the loader of {family.native}"
