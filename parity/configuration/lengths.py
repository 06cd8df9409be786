"""The lengths at which a model computes otherwise: which of them the probes crossed, and what it showed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from ...converters.configs.to_mlx import known
from ...converters.models import Model, Signature
from ..check.verdict import Stage
from ..probes.probes import Probe, sequence_limit
from ..probes.thresholds import LAST, Threshold, affordable, thresholds
from .settings import with_agreed_ids

NAME: Final = "lengths"
PIXELS: Final = "pixels"


def config_of(model: Model) -> Any:
    """Return transformers' configuration object for MODEL; ``None`` where code builds it."""
    if model.factory is not None or not model.config:
        return None
    return known(with_agreed_ids(model))


def to_cross(model: Model, signature: Signature, *, quick: bool) -> tuple[Threshold, ...]:
    """Return the lengths that a probe for MODEL is to cross, of those that SIGNATURE allows."""
    config = config_of(model)
    if config is None:
        return ()
    parameters = sum(prod(header.shape) for header in model.checkpoint.headers.values())
    return affordable(config, parameters, sequence_limit(signature), quick=quick)


def recorded(model: Model) -> list[list[Any]]:
    """Return every length that MODEL's configuration names, as JSON values."""
    config = config_of(model)
    return [] if config is None else [list(it) for it in thresholds(config)]


def tokens_of(signature: Signature, probe: Probe) -> int:
    """Return how many tokens the longest row of PROBE has, padding aside."""
    for role in ("attention_mask", "token_ids"):
        for port in signature.inputs:
            if port.role == role:
                array = probe.inputs[port.name]
                return (
                    int(np.max(np.sum(array != 0, axis=-1))) if role[0] == "a" else array.shape[-1]
                )
    return 0


def lengths_stage(
    named: Iterable[Sequence[Any]], signature: Signature, probes: Sequence[Probe]
) -> list[Stage]:
    """Say whether PROBES crossed every length that is NAMED; nothing where none is.

    A length that no text reaches, since SIGNATURE takes none so long, is no question, nor is any where it takes
    pictures of one size alone: what is called a window there is one of patches.
    """
    if all(port.role == PIXELS for port in signature.inputs):
        return []
    limit = sequence_limit(signature)
    found = [Threshold(key, tokens) for key, tokens in named if tokens < limit]
    longest = max((tokens_of(signature, probe) for probe in probes), default=0)
    missed = [it for it in found if it.tokens + min(LAST, limit - it.tokens) > longest]
    if not found:
        return []
    if missed:
        text = ", ".join(map(str, missed))
        reason = (
            f"no probe was longer than {text}; what the model computes from there on was not seen"
        )
        return [Stage(NAME, "unverified", reason, {"missed": [list(it) for it in missed]})]
    return [Stage(NAME, "pass", f"probes are longer than {', '.join(map(str, found))}")]


def parting(
    named: Iterable[Sequence[Any]], lengths: Mapping[str, int], stage: Stage
) -> Threshold | None:
    """Return the length beyond which alone a STAGE of errors failed; ``None`` where there is no such.

    Args:
        named: what the configuration names.
        lengths: tokens of each probe, by name.
        stage: ``structure``, with the errors of each probe.
    """
    rows = stage.figures.get("rows", ())
    bad = {lengths[row["probe"]] for row in rows if not row["allowed"] <= 1}
    good = {lengths[row["probe"]] for row in rows} - bad
    between = [
        Threshold(key, tokens)
        for key, tokens in named
        if bad and min(bad) > tokens and any(it <= tokens for it in good)
    ]
    return max(between, key=lambda it: it.tokens, default=None)
