"""Quantize a model: plan, stage, check, publish."""

from __future__ import annotations

from pathlib import Path

from ...converters.models import Model
from ...converters.planning.memory import require_memory
from ...converters.planning.prefetch import prefetch
from ...converters.results.targets import absolute
from ...errors import BadInputError
from ..converting import require_apart, require_framework
from ..options import Options
from ..pipeline import Checked, Facts, Outcome, Target, Written, publish
from ..repairing import mended
from .calibration import Calibration
from .check import check
from .measure import measured
from .mixing import mixed
from .plan import Plan, plan
from .request import Request, parse_scheme
from .write import write


def quantize(
    source: str,
    target: Path,
    request: Request,
    *,
    framework: str | None = None,
    options: Options = Options(),
) -> Outcome:
    """Quantize SOURCE as REQUEST says, into the directory TARGET in MLX's layout.

    Args:
        source: spec of a model in MLX's layout, or in PyTorch's, which is converted as it is read.
        target: directory to write.
        request: how.
        framework: that SOURCE has to be in, ``torch`` for a conversion; ``None`` for any.
        options: as for every verb that writes a model.

    Returns:
        The outcome; ``.facts["quantized"]`` has sizes and errors.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    place = options.begin(target, "model", source)
    prefetch(source, options.map, options.trust_code)
    model = options.open(source)
    if framework:
        require_framework(model, framework, target)
        model = mended(model, options)
    made, calibration = planned(model, request, options)
    if options.dry_run:
        return place.planned(made.lines())
    require_apart(model, target)
    return published(made, calibration, place, options)


def published(
    made: Plan, calibration: Calibration | None, place: Target, options: Options
) -> Outcome:
    """Carry out what is planned."""
    if options.checks:
        require_memory("check", made.job.model, quick=options.quick)

    def write_into(folder: Path) -> Written:
        written = write(made, folder, options, calibration)
        if not made.request.measure:
            return written
        costs = measured(made, folder, made.request.measure, options)
        return written._replace(facts={**written.facts, "measured": costs})

    def judge(folder: Path, _: Facts) -> Checked:
        suited = calibration.done if calibration else ()
        return check(made, folder, absolute(place.path), options, suited)

    key = f"{made.key}-{options.max_shard_size}"
    return publish(place, key, write_into, judge if options.checks else None)


def planned(model: Model, request: Request, options: Options) -> tuple[Plan, Calibration | None]:
    """Return how MODEL is quantized as REQUEST says, bits per weight found, and what calibrates it."""
    made = plan(model, request, options)
    path = request.calibrate
    calibration = Calibration(made, path, options) if path else None
    if request.bits_per_weight:
        made = mixed(made, calibration, options)
    return made, calibration


def convert_quantized(
    source: str, target: Path, scheme: str, *, adapter: Path | None = None, options: Options
) -> Outcome:
    """Convert SOURCE, in PyTorch's layout, to MLX's at TARGET, quantized as SCHEME names it.

    Args:
        source: spec of a model.
        target: directory to write.
        scheme: ``BITS``, ``BITS:GROUP`` or a mode.
        adapter: has to be merged first.
        options: as for every verb that writes a model.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    request = Request(parse_scheme(scheme))
    if adapter or options.dequantize:
        what = "--adapter: merge it first" if adapter else "--dequantize: make it dense first"
        raise BadInputError(f"--quantize does not go with {what}, in a command of its own")
    return quantize(source, target, request, framework="torch", options=options)
