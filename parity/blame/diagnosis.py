"""Try every hypothesis on a site that errs, the most specific first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from . import evidence, norms, rotary, wiring
from .attention import (
    attention_mask,
    attention_scale,
    exchanged,
    heads_apart,
    scores_alone,
    sees_ahead,
)
from .evidence import Hypothesis, Observation

BEFORE: Final = "branch before"  # the fault lies in what the holder of the site feeds it
UNKNOWN: Final = "unknown"

HYPOTHESES: Final[tuple[tuple[str, Hypothesis], ...]] = (
    ("shape", evidence.shape),
    ("non-finite", evidence.non_finite),
    ("activation", evidence.activation),
    ("skipped", wiring.skipped),
    ("cast", evidence.narrowed),
    ("epsilon", norms.epsilon),
    ("groups", norms.groups),
    ("transposed", evidence.transposed),
    ("permuted", evidence.flattened),
    ("permuted", evidence.permuted),
    ("scale", evidence.scale),
    ("bias", evidence.bias),
    ("batch norm", norms.channels),
    ("residual", wiring.residual),
    ("order", wiring.order),
    ("order", norms.of_another),
    ("mask", attention_mask),
    ("attention", attention_scale),
    ("swapped projections", exchanged),
    ("heads", heads_apart),
    ("swapped projections", rotary.swapped),
    ("position", rotary.turned),
    ("mask", partial(attention_mask, find=rotary.rotated_core)),
    ("attention", partial(attention_scale, find=rotary.rotated_core)),
    ("gate", wiring.gate),
    ("activation", wiring.gate_activation),
    ("position", evidence.shifted),
    ("branch", evidence.mixture),
    (BEFORE, norms.branch_before),
)
# They tell where values are wrong and account for none of them.
HINTS: Final[tuple[tuple[str, Hypothesis], ...]] = (
    ("mask", evidence.mask),
    ("attention", scores_alone),
    ("mask", sees_ahead),
    ("position", evidence.position),
)


def diagnose(it: Observation) -> tuple[str, str]:
    """Return the kind of fault and its evidence, ``unknown`` if no hypothesis holds."""
    return accounted(it) or hinted(it)


def accounted(it: Observation) -> tuple[str, str] | None:
    """Return the kind of fault that accounts for what IT found, and its evidence, if one does."""
    return _first(HYPOTHESES, it)


def hinted(it: Observation) -> tuple[str, str]:
    """Return the kind of fault that the places of errors tell, and its evidence, ``unknown`` if they tell none."""
    module = it.site.removesuffix(evidence.INPUT)
    where = "the difference" if module == it.site else f"what reaches {module}"
    words = f"no kind of fault that is known here accounts for {where}"
    return _first(HINTS, it) or (UNKNOWN, words)


def _first(hypotheses: Sequence[tuple[str, Hypothesis]], it: Observation) -> tuple[str, str] | None:
    """Return the first of HYPOTHESES that holds.

    A site of rank 4 is looked at as an image, its channels second, then with features last.
    """
    for seen in (it, evidence.features_last(it)) if it.wanted.ndim > 3 else (it,):
        for kind, hypothesis in hypotheses:
            if found := hypothesis(seen):
                return kind, found
    return None
