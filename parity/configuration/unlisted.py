"""Lengths that no table lists: settings that a source's code reads and that act from some length on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from ...converters.models import Model, Signature
from ...converters.models.signature import LENGTHS
from ..probes.probes import Probe
from ..probes.thresholds import WINDOWS, Threshold, as_sizes
from .effects import NOTHING, measured
from .reads import HARMLESS, Reads, parts
from .settings import value_at

MASKS: Final = "transformers.masking_utils"  # every length that this reads is one of attention
# What keys are called that name a length. Those that turn out to do nothing are forgotten again.
NAMED: Final = re.compile(
    r".*(window|chunk|local|span|context|distance|block_(size|len)|_length).*"
)
LOW: Final = 4  # a length that every probe is beyond


def unlisted_lengths(
    model: Model, signature: Signature, probes: Sequence[Probe], config: Any, reads: Reads
) -> list[Threshold]:
    """Return the lengths among READS that the table of thresholds does not list, the shortest first.

    A key is one if the source computes otherwise where it is as low as no text is short, and if another
    value does not fit its weights it is a size. Where that cannot be told it counts as a length.

    Args:
        model: the source, at hand.
        signature: its inputs and outputs.
        probes: the smallest is run.
        config: transformers' object.
        reads: what the source's code was seen to read.
    """
    found = []
    places = parts(config)
    for (kind, key), files in reads.items():
        if kind not in places or key in WINDOWS or key in LENGTHS or HARMLESS.fullmatch(key):
            continue
        if (MASKS in files or NAMED.fullmatch(key)) and as_sizes(
            value_at(config, places[kind] + key)
        ):
            found.append(places[kind] + key)
    values = {key: as_sizes(value_at(config, key))[0] for key in found}
    asked = {key: [LOW] for key, value in values.items() if value > LOW}
    effects = measured(model, signature, probes, config, asked)
    acting = (
        key for key in asked if key not in effects or NOTHING < effects[key][0] < float("inf")
    )
    return sorted((Threshold(key, values[key]) for key in acting), key=lambda it: it.tokens)
