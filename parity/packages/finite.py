"""Where half precision makes infinities or NaN that a program's float32 run does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ...converters.common.dtypes import unit_roundoff
from ...converters.models import Signature
from ...converters.runtimes import Runner
from ..check.distances import describe_non_finite, distance
from ..check.verdict import Stage
from ..probes.probes import Probe, masks_of

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.watching import Watched


def finite_stage(
    precision: Stage,
    runners: tuple[Runner, Runner | None],
    signature: Signature,
    probes: Sequence[Probe],
) -> Stage:
    """Return the stage PRECISION, changed where values inside a program overflow.

    It fails where they do as the program runs. Where its runtime widens them and others need not, nothing
    is known of the others.

    Args:
        precision: as the outputs alone have it.
        runners: the candidate as it ships, after its runs on the probes; the same in float32, after its own.
        signature: of the reference.
        probes: what they ran on.
    """
    declared, structure = runners
    if found := _overflows(declared, structure):
        detail = f"{found}, where float32 has none; {precision.detail}"
        return precision._replace(status="fail", detail=detail)
    if precision.status != "pass" or not hasattr(declared, "limited"):
        return precision
    found = next(
        (it for probe in probes if (it := _widened(declared, structure, signature, probe))), ""
    )
    return precision._replace(status="unverified", detail=found) if found else precision


def _overflows(declared: Runner, structure: Runner | None) -> str:
    """Say what is not finite in the runs of DECLARED and is in those of STRUCTURE, or nothing."""
    narrow: Mapping[int, Sequence[Watched]] = getattr(declared, "watched", {})
    if not narrow:  # no package: its tools need not be installed
        return ""
    from ...converters.captures.mlprogram.watching import overflows

    wide: Mapping[int, Sequence[Watched]] = getattr(structure, "watched", {})
    pairs = (zip(rows, wide[key], strict=True) for key, rows in narrow.items() if key in wide)
    return next((it for pair in chain.from_iterable(pairs) if (it := overflows(*pair))), "")


def _widened(declared: Any, structure: Runner | None, signature: Signature, probe: Probe) -> str:
    """Say what the runtime of DECLARED keeps finite on PROBE and float16 does not, to another result."""
    ran = declared.limited(probe.inputs)
    if ran is None or not ran.largest or structure is None:
        return ""
    wanted, masks = structure.run(probe.inputs), masks_of(signature, probe)
    finest = unit_roundoff("float16")
    for name in (port.name for port in signature.outputs if port.name in wanted):
        pair = ran.outputs[name], wanted[name], masks.get(name)
        if describe_non_finite(*pair) or distance(*pair).whole > finest:
            return (
                f"{ran.place} holds numbers up to {ran.largest:.3g}, which are infinite in float16 and"
                f" change {name}; this runtime widens them, others need not: keep float32"
            )
    return ""
