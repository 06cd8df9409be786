"""A text read piece by piece with the candidate's cache, as generation does, gives what one reading gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from ...converters.common.dtypes import unit_roundoff
from ...converters.models import Port, Signature
from ...converters.runtimes import Runner
from ...converters.runtimes.pieces import NothingKeptError, per_token, stepped
from ...converters.values import Array
from ..blame.caches import name_caches
from ..goldens.golden import Golden
from ..probes.probes import Probe, compared
from .candidate import Candidate, unrunnable
from .distances import Distance, token_errors
from .stages import outputs_stage
from .verdict import Stage

NAME: Final = "decoding"
LARGE: Final = 1 << 26  # parameters from which on the calls are few
MOST: Final = 320  # tokens in all rows of the text that is read whole
LAST: Final = 7  # tokens at the end: one by one, some together as in a chat's next turn, and one
TURN: Final = 3
ABOUT: Final = 2  # tokens read one by one on each side of a length at which the model changes
NO_CACHE: Final = "not checked: the candidate has no cache"
WHOLE: Final = "not checked: a prompt of this model is seen whole, never piece by piece"
SAME: Final = "both sides are read piece by piece by the same code of transformers"
Judge = Callable[[Sequence[Probe], tuple[Any, Any, Any]], Stage]


class Text(NamedTuple):
    """A probe that is read in several calls.

    Attributes:
        probe: the inputs.
        plan: how many tokens each call reads.
        wanted: the reference's outputs for each token, read at once, in float64.
        own: how far the source's own float32 is from them.
    """

    probe: Probe
    plan: Sequence[int]
    wanted: Mapping[str, Array]
    own: Mapping[str, Distance]


def sizes_of(length: int, crossed: Sequence[int] = (), *, few: bool = False) -> list[int]:
    """Return how many tokens each call reads of a text of LENGTH.

    The beginning in two calls, single tokens about each length in CROSSED; at the end single tokens, a
    few together, and one. With FEW, where each call reads all weights from disk, two calls and a token.

    >>> sizes_of(16), sizes_of(96, [32]), sizes_of(3)
    ([5, 4, 1, 1, 1, 3, 1], [15, 15, 1, 1, 1, 1, 55, 1, 1, 1, 3, 1], [1, 1, 1])
    >>> sizes_of(16, few=True), sizes_of(96, [32], few=True)
    ([8, 7, 1], [31, 64, 1])
    """
    if few:
        cuts = {max(crossed, default=(length + 2) // 2) - 1, length - 1} & {*range(1, length)}
        return [stop - start for start, stop in pairwise([0, *sorted(cuts), length])]
    spans = [(it - ABOUT, it + ABOUT) for it in crossed]
    spans += [(length - LAST, length - TURN - 1), (length - 1, length)]
    cuts = {cut for start, stop in spans for cut in range(start, stop + 1) if 0 < cut < length}
    first = min(cuts, default=length)
    return [stop - start for start, stop in pairwise(sorted({0, (first + 1) // 2, *cuts, length}))]


def decoding_stages(
    golden: Golden,
    candidate: Candidate,
    storage: str,
    probes: Sequence[int],
    judge: Judge,
) -> list[Stage]:
    """Return the stage that reads texts piece by piece; none where the model continues no text.

    Args:
        golden: the reference.
        candidate: gives in float32 what the reference gives, where it reads a text at once.
        storage: which recording of GOLDEN the candidate is compared with.
        probes: indices of those that the candidate takes.
        judge: measures outputs of some probes, from their wanted ones and the source's own errors.
    """
    port, runner = stepped(golden.signature), candidate.structure
    if port is None or runner is None:
        return []
    if any(it.role == "prompt" for it in golden.signature.inputs):
        return [Stage(NAME, "unverified", WHOLE)]
    try:
        cache = cache_of(golden.signature, port, runner)
    except Exception as error:
        return [unrunnable(error)._replace(name=NAME)]
    if not cache:
        return [not_read(runner)] if continues(golden.signature, port) else []
    few = sum(prod(it.shape) for it in candidate.weights.headers.values()) > LARGE
    chosen = chosen_of(golden, port, probes)
    texts = [text_of(golden, storage, port, it, few=few) for it in chosen]
    if texts and len(golden.signature.inputs) > 1:
        texts.append(turned(texts[0]))
    return [stage_of(golden, runner, texts, judge)] if texts else []


def turned(text: Text) -> Text:
    """Return TEXT with its rows in another order, in few calls: what is kept of the first text shows."""
    probe = text.probe._replace(
        name=f"{text.probe.name}, rows turned",
        inputs={name: array[::-1].copy() for name, array in text.probe.inputs.items()},
    )
    wanted = {name: array[::-1] for name, array in text.wanted.items()}
    return Text(probe, sizes_of(sum(text.plan), few=True), wanted, text.own)


def cache_of(signature: Signature, port: Port, runner: Runner) -> str:
    """Return what RUNNER keeps the text of PORT in between calls; empty where it keeps none.

    Classes in MLX take no mask together with one; encoders of transformers take one and need it not. What a
    file of another runtime takes beside its caches it names itself.
    """
    masks = [it.shape for it in signature.inputs if it.role == "attention_mask"]
    usable = {"torch": continues(signature, port), "onnxruntime": True}.get(
        runner.runtime, port.shape not in masks
    )
    return getattr(runner, "cache", "") if usable else ""


def not_read(runner: Runner) -> Stage:
    """Return the stage of a RUNNER that reads no text piece by piece: whether it could, and why not."""
    if reason := getattr(runner, "cache_unread", ""):
        return Stage(NAME, "unverified", f"not checked: {reason}")
    return Stage(NAME, "skipped", NO_CACHE if getattr(runner, "users", True) else SAME)


def continues(signature: Signature, port: Port) -> bool:
    """Say whether SIGNATURE is one of a model that continues the text of PORT.

    It is where every token has scores of a vocabulary and there is no mask, or another text beside.
    """
    names, beside = per_token(signature, port), [it for it in signature.inputs if it is not port]
    sizes = {it.shape[-1] for it in signature.outputs if it.name in names}
    alone = all(it.shape != port.shape for it in beside)
    return alone and (port.limit("vocabulary", 0) in sizes or bool(beside))


def chosen_of(golden: Golden, port: Port, probes: Sequence[int]) -> list[int]:
    """Return which of PROBES are read piece by piece: smallest, largest, and those that cross a length.

    After another text, what a class keeps of that one shows.
    """
    sizes = {it: golden.probes[it].inputs[port.name].size for it in probes}
    whole = [it for it in probes if not golden.probes[it].rows and sizes[it] <= MOST]
    crossing = [it for it in probes if golden.probes[it].rows]
    ordered = sorted(whole, key=sizes.__getitem__)
    return [*dict.fromkeys([*ordered[:1], *ordered[-1:]]), *crossing]


def text_of(golden: Golden, storage: str, port: Port, index: int, *, few: bool) -> Text:
    """Return how probe INDEX of GOLDEN is read, in FEW calls or many, and what is to come out."""
    probe, names = golden.probes[index], per_token(golden.signature, port)
    crossed = [int(tokens) for _, tokens in golden.provenance.get("lengths", ())]
    plan = sizes_of(probe.inputs[port.name].shape[1], crossed if probe.rows else (), few=few)
    wanted, own = golden.outputs[storage][index], golden.errors[f"{storage}/float32"][index]
    return Text(probe, plan, {name: wanted[name] for name in names}, own)


def stage_of(golden: Golden, runner: Any, texts: Sequence[Text], judge: Judge) -> Stage:
    """Read TEXTS with the cache of RUNNER and judge what came out."""
    how, upstream = f"with its cache ({runner.cache})", getattr(runner, "library", "")
    probes, wanted = [it.probe for it in texts], [it.wanted for it in texts]
    try:
        ran = [runner.run_in_pieces(it.probe.inputs, it.plan) for it in texts]
        found = [compared(golden.signature, *it) for it in zip(probes, ran, strict=True)]
        stage = outputs_stage(golden, probes, found, wanted)
    except NothingKeptError as error:
        return Stage(NAME, "unverified", f"not checked: {error}")
    except Exception as error:
        stage = unrunnable(error)
    if stage.status == "fail":
        named = with_caches(golden, runner, texts)
        return Stage(NAME, "fail", f"{how}, {stage.detail}{named}", {"upstream": upstream})
    stage = judge(probes, (found, wanted, [it.own for it in texts]))
    figures = {**stage.figures, "calls": {it.probe.name: list(it.plan) for it in texts}}
    if stage.status != "fail":
        calls = " and ".join(f"{sum(it.plan):,} tokens in {len(it.plan)} calls" for it in texts)
        return stage._replace(detail=f"{how}, {calls}, it {stage.detail}", figures=figures)
    places = map(first_wrong, texts, found, [stage] * len(texts))
    place = next((it for it in places if it), None)
    begins = f" from {place} on" if place else ""
    named = with_caches(golden, runner, texts)
    detail = f"{how} it parts{begins}, read at once it does not{named}; it {stage.detail}"
    figures |= {"from_tokens": place.token if place else None, "upstream": upstream}
    return stage._replace(detail=detail, figures=figures)


def with_caches(golden: Golden, runner: Any, texts: Sequence[Text]) -> str:
    """Return which caches of a RUNNER that shows them go wrong as it reads the first of TEXTS, to end a detail."""
    found = name_caches(runner, golden.model, golden.signature, texts[0])
    return f"; {found}" if found else ""


class Place(NamedTuple):
    """Where a text read piece by piece begins to be wrong; all are counted from 1.

    Attributes:
        token: the first that is wrong.
        row: of the batch.
        call: the one that read the token.
        size: how many tokens that call read.
        before: how many had been read before.
    """

    token: int
    row: int
    call: int
    size: int
    before: int

    def __str__(self) -> str:
        """Print as ``token 6 (row 1; call 2, 4 tokens behind 5)``."""
        tokens = f"{self.size:,} token{'s' if self.size > 1 else ''}"
        return f"token {self.token:,} (row {self.row}; call {self.call}, {tokens} behind {self.before:,})"


def first_wrong(text: Text, found: Mapping[str, Array], stage: Stage) -> Place | None:
    """Return where an output in FOUND is first beyond what the figures of STAGE allow; ``None`` nowhere."""
    about, begun = stage.figures, [0, *accumulate(text.plan)]
    least = about["c"] * unit_roundoff(about["dtype"])
    wrong = []
    for name, wanted in text.wanted.items():
        errors = token_errors(found[name], wanted).reshape(wanted.shape[:2])
        beyond = ~(errors <= about["k_token"] * max(text.own[name].worst, least))
        wrong += [(int(token), int(row)) for row, token in np.argwhere(beyond)]
    if not wrong:
        return None
    index, row = min(wrong)
    token = text.probe.rows[index] if text.probe.rows else index
    call = max(number for number, before in enumerate(begun[:-1]) if before <= token)
    return Place(token + 1, row + 1, call + 1, text.plan[call], begun[call])
