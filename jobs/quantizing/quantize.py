"""Quantize a model: plan, stage, check, publish."""

from __future__ import annotations

from pathlib import Path

from ...converters.planning.memory import require_memory
from ...converters.planning.prefetch import prefetch
from ...converters.results.targets import absolute
from ..converting import require_apart
from ..options import Options
from ..pipeline import Checked, Facts, Outcome, Written, publish
from .check import check
from .plan import plan
from .request import Request
from .write import write


def quantize(
    source: str, target: Path, request: Request, *, options: Options = Options()
) -> Outcome:
    """Quantize SOURCE as REQUEST says, into the directory TARGET in MLX's layout.

    Args:
        source: spec of a model in MLX's layout, or in PyTorch's, which is converted as it is read.
        target: directory to write.
        request: how.
        options: as for every verb that writes a model.

    Returns:
        The outcome; ``.facts["quantized"]`` has sizes and errors.

    Raises:
        WeighbridgeError: bad input; nothing is left behind.
    """
    place = options.begin(target, "model", source)
    prefetch(source, options.map, options.trust_code)
    made = plan(options.open(source), request, options)
    if options.dry_run:
        return Outcome(None, made.lines())
    require_apart(made.job.model, target)
    if options.checks:
        require_memory("check", made.job.model, quick=options.quick)

    def write_into(folder: Path) -> Written:
        return write(made, folder, options)

    def judge(folder: Path, _: Facts) -> Checked:
        return check(made, folder, absolute(target), options)

    key = f"{made.key}-{options.max_shard_size}"
    return publish(place, key, write_into, judge if options.checks else None)
