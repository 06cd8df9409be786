"""Lengths too large for a run of the whole model, crossed on one block of each kind.

Both sides' blocks are given the same hidden states, as many as the length and 64 more, and the positions
about the length and the last eight are compared. Each builds its masks and positions as in any run.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...converters.common.steps import step
from ...converters.models import Signature
from ...converters.runtimes import Runner
from ...converters.runtimes.blocks.kinds import one_of_each, traits
from ...converters.values import Array
from ...errors import UnsupportedError
from ..blame.blame import LOCAL_FLOOR
from ..check.candidate import Candidate
from ..check.distances import Distance, distance, token_errors
from ..check.stages import quotient
from ..check.verdict import Stage
from ..goldens.golden import Golden
from ..probes.probes import Probe, make_probes
from ..probes.thresholds import BEYOND, BLOCK, Cost, Threshold
from .effects import block_count
from .lengths import NAME, config_of

Run = Callable[
    [int, Probe], Array
]  # number of a block, and what is asked -> its output at the rows


class Sides(NamedTuple):
    """Blocks of both sides, ready to run.

    Attributes:
        kinds: the number of the first block of each kind.
        parameters: of the largest of these.
        exact: runs the source's in float64.
        own: runs the source's in float32.
        found: runs the candidate's in float32.
    """

    kinds: Sequence[int]
    parameters: int
    exact: Run
    own: Run
    found: Run


class Outcome(NamedTuple):
    """How far a block of the candidate is from the source's.

    Attributes:
        block: its number.
        ratio: of its error to the source's own.
        allowed: share of the allowed error that is used; it parts above 1.
        first: the first position that errs more; ``None`` for none.
    """

    block: int
    ratio: float
    allowed: float
    first: int | None


def hidden_states(shape: tuple[int, ...]) -> Array:
    """Return hidden states of SHAPE, some features far larger than others, as in real models."""
    random = np.random.default_rng(0)
    scale = np.exp(random.normal(size=shape[-1]))
    return np.asarray(random.normal(size=shape) * scale, np.float32)


def question(signature: Signature, threshold: Threshold) -> Probe:
    """Return a text that is longer than THRESHOLD, of which the positions about it are compared."""
    probes = make_probes(signature, tokenizer=None, quick=True, past=[threshold])
    return next(it for it in probes if it.rows)


def short(signature: Signature) -> Probe:
    """Return one short text, all of which is compared."""
    small, *_ = make_probes(signature, tokenizer=None, quick=True)
    inputs = {name: array[:1] for name, array in small.inputs.items()}
    tokens = next(it.name for it in signature.inputs if it.role == "token_ids")
    return Probe("short", inputs, tuple(range(inputs[tokens].shape[1])))


def sides_of(golden: Golden, runner: Runner | None, storage: str) -> Sides:
    """Return the blocks of GOLDEN's source, its weights as STORAGE keeps them, and of RUNNER.

    Raises:
        UnsupportedError: those of one side cannot be reached; why.
    """
    if golden.model is None or importlib.util.find_spec("torch") is None:
        raise UnsupportedError("the source is not at hand")
    if runner is None:
        raise UnsupportedError("the candidate does not run in float32")
    from ...converters.runtimes.blocks import torch as in_torch
    from ..reference.reference import stored_as

    config = config_of(golden.model)
    part, count = vars(config).get("text_config", config), block_count(config)
    own = stored_as(golden.model, "float32", storage)
    source = in_torch.blocks_of(own, count)
    wide = stored_as(golden.model, "float64", storage)
    exact = partial(source_block, wide, in_torch.blocks_of(wide, count), golden.signature)
    blocks, found = of_candidate(runner, count)
    named = getattr(part, "layer_types", None) or [""] * count
    rows = [[{"": it} for it in named], *([traits(it) for it in side] for side in (source, blocks))]
    kinds = one_of_each(*rows)
    return Sides(
        kinds,
        max(sum(it.numel() for it in source[kind].parameters()) for kind in kinds),
        partial(exact, "float64"),
        partial(source_block, own, source, golden.signature, "float32"),
        found,
    )


def source_block(
    module: Any, blocks: Sequence[Any], signature: Signature, dtype: str, number: int, asked: Probe
) -> Array:
    """Return what the block NUMBER of the source's MODULE, which is in DTYPE, answers to ASKED."""
    import torch

    from ...converters.runtimes.blocks.torch import run_block
    from ...converters.runtimes.torch import call
    from ..reference.float64 import true_float64
    from ..reference.reference import feed

    names = tuple(port.name for port in signature.outputs)
    mode = true_float64() if dtype == "float64" else contextlib.nullcontext()
    with mode, torch.no_grad():
        inputs = feed(signature, asked, dtype)
        run = partial(call, module, inputs, names)
        return run_block(blocks, number, run, hidden_states, asked.rows)


def of_candidate(runner: Any, count: int) -> tuple[Sequence[Any], Run]:
    """Return the COUNT blocks of RUNNER's module, and what runs one of them."""
    if runner.runtime == "torch":
        from ...converters.runtimes.blocks.torch import blocks_of, run_block
    elif getattr(runner, "kind", "captured") not in ("captured", "graph"):
        from ...converters.runtimes.blocks.mlx import blocks_of, run_block  # type: ignore[assignment]
    else:
        raise UnsupportedError("the candidate has no blocks of its own that could be run alone")
    blocks = blocks_of(runner.module, count)

    def run(number: int, asked: Probe) -> Array:
        once = partial(runner.run, asked.inputs)
        return run_block(blocks, number, once, hidden_states, asked.rows)

    return blocks, run


def outcome(sides: Sides, block: int, asked: Probe) -> Outcome:
    """Return how far the number BLOCK of the candidate is from the source's on what is ASKED."""
    wanted, found = sides.exact(block, asked), sides.found(block, asked)
    own, error = (distance(it, wanted, None) for it in (sides.own(block, asked), found))
    errors = zip(asked.rows, token_errors(found, wanted), strict=True)
    wrong = (row for row, it in errors if LOCAL_FLOOR.allowed(Distance(0.0, float(it)), own) > 1)
    ratio, allowed = LOCAL_FLOOR.ratio(error, own).whole, LOCAL_FLOOR.allowed(error, own)
    return Outcome(block, ratio, allowed, next(wrong, None))


def worst(sides: Sides, asked: Probe) -> Outcome:
    """Return how the worst kind of block does on what is ASKED."""
    found = [outcome(sides, block, asked) for block in sides.kinds]
    return max(found, key=lambda it: it.allowed)


def affordable(sides: Sides, threshold: Threshold) -> bool:
    """Say whether one block may be run past THRESHOLD: its products, and masks in float64."""
    length = threshold.tokens + BEYOND
    need = Cost(2.0 * sides.parameters * length, 3 * 8.0 * length**2)
    return need.operations <= BLOCK.operations and need.memory <= BLOCK.memory


def crossed_by_blocks(
    golden: Golden, candidate: Candidate, storage: str, missed: Sequence[Threshold]
) -> Stage:
    """Run one block of each kind past each length MISSED, and say what came out.

    Args:
        golden: the reference, its source at hand.
        candidate: its blocks are a class's own.
        storage: how the candidate keeps its weights.
        missed: lengths that no probe crossed.
    """
    step("checking: one block of each kind on long texts")
    try:
        sides = sides_of(golden, candidate.structure, storage)
        found = run_past(sides, golden.signature, missed)
    except UnsupportedError as error:
        return unseen(missed, f"and blocks were not run alone: {error}")
    return judged(found, sides.kinds, str(getattr(candidate.structure, "library", "")))


def run_past(
    sides: Sides, signature: Signature, missed: Sequence[Threshold]
) -> list[tuple[Threshold, Outcome]]:
    """Return each length MISSED and how the worst kind of block does past it.

    Raises:
        UnsupportedError: it takes too much, or blocks alone part on a short text.
    """
    if not worst(sides, short(signature)).allowed <= 1:
        raise UnsupportedError("alone they give something else on a short text already")
    if beyond := [str(it) for it in missed if not affordable(sides, it)]:
        raise UnsupportedError(
            f"{', '.join(beyond)} is too long for the time and memory of a check"
        )
    return [(it, worst(sides, question(signature, it))) for it in missed]


def unseen(missed: Sequence[Threshold], why: str) -> Stage:
    """Return the stage of lengths MISSED by every probe, and WHY by blocks too."""
    text = ", ".join(map(str, missed))
    reason = f"no probe was longer than {text}, {why}; what is computed from there on was not seen"
    return Stage(NAME, "unverified", reason, {"missed": [list(it) for it in missed]})


def judged(found: Sequence[tuple[Threshold, Outcome]], kinds: Sequence[int], library: str) -> Stage:
    """Return the stage of what blocks of KINDS FOUND past each length; LIBRARY has the class."""
    who = library or "the candidate"
    wrong = [it for it in found if not it[1].allowed <= 1]
    blocks = f"block{'s' if len(kinds) > 1 else ''} {', '.join(map(str, kinds))}"
    if not wrong:
        text, ratios = ", ".join(str(it) for it, _ in found), [it.ratio for _, it in found]
        words = f"{blocks}, one of each kind, ran alone past {text}"
        return Stage(NAME, "pass", words, {"blocks": [*kinds], "ratios": ratios})
    threshold, outcome = wrong[0]
    first = max(outcome.first or 0, threshold.tokens) + 1
    words = (
        f"it parts from token {first:,} on: {who} does not do what {threshold} says; block"
        f" {outcome.block} alone, given the same hidden states, errs {quotient(outcome.ratio)} times"
        " as much as the source's own float32"
    )
    return Stage(NAME, "fail", words, {"from_tokens": first, "upstream": library})
