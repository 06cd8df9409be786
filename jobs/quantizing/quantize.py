"""Quantize a model: plan, stage, check, publish."""

from __future__ import annotations

from pathlib import Path

from ...converters.planning.prefetch import prefetch
from ..converting import require_apart
from ..options import Options
from ..pipeline import Outcome, Written, publish
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

    def write_into(folder: Path) -> Written:
        return write(made, folder, options)

    return publish(place, f"{made.key}-{options.max_shard_size}", write_into)
