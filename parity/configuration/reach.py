"""What ordinary probes do not reach: ids at the edges of the vocabulary, positions far on.

Both sides are run on short texts of such ids, and on one that begins where the positions of a model end or
where a rotary scaling changes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from ...converters.common.arrays import from_torch
from ...converters.common.memory import pass_on_shortage
from ...converters.common.steps import step
from ...converters.common.users_code import described
from ...converters.models import Model, Port, Signature
from ...converters.runtimes.offsets import run_at, torch_at
from ...converters.values import Array
from ...errors import UnsupportedError
from ..check.candidate import Candidate, unrunnable
from ..check.distances import distance
from ..check.stages import error_stage, unstudied
from ..check.verdict import Stage
from ..goldens.golden import Golden
from ..goldens.rounding import parse_storage
from ..probes.probes import Probe, make_probes, masks_of, sequence_limit, stand_ins
from ..probes.thresholds import Threshold
from ..reference.floors import floor
from ..text.tokenizers import load_tokenizer
from .effects import LARGE
from .token_types import NOT_TAKEN, runner_for, signature_for, takes_types, types_of, with_types

NAME: Final = "reach"
TEXTS: Final = 8  # of ids at the edges, at most


class Asked(NamedTuple):
    """A short text.

    Attributes:
        probe: its inputs.
        offset: the position of its first token.
    """

    probe: Probe
    offset: int = 0


def edge_ids(model: Model, vocabulary: int) -> list[int]:
    """Return the first and last id of a VOCABULARY, the padding id, and every special and added one."""
    tokenizer, config = load_tokenizer(model.folder), model.config
    named = [config.get(f"{kind}_token_id") for kind in ("pad", "bos", "eos")]
    found = [0, vocabulary - 1, *(it for it in named if type(it) is int)]
    found += [*tokenizer.special.values(), *tokenizer.added] if tokenizer else []
    other = stand_ins(config)
    return [it for it in dict.fromkeys(found) if 0 <= it < vocabulary and it not in other]


def edge_texts(small: Probe, signature: Signature, ids: Sequence[int]) -> Iterator[Asked]:
    """Yield texts like SMALL with IDS in the place of its first tokens, as many as it takes."""
    masks = [it for it in signature.inputs if it.role == "attention_mask"]
    places = {
        it.name: np.argwhere(tokens_in(small, it, masks))
        for it in signature.inputs
        if it.role == "token_ids"
    }
    count = min(map(len, places.values()))
    for start in range(0, len(ids), count):
        some = ids[start : start + count]
        arrays = {name: small.inputs[name].copy() for name in places}
        for name, array in arrays.items():
            array[tuple(places[name][: len(some)].T)] = some
        yield Asked(Probe(f"ids {some[0]} to {some[-1]}", {**small.inputs, **arrays}))


def tokens_in(small: Probe, port: Port, masks: Sequence[Port]) -> Array:
    """Return the mask of the text of PORT in SMALL, ones where none of MASKS is for it."""
    mine = (small.inputs[it.name] for it in masks if it.shape == port.shape)
    return next(mine, np.ones(small.inputs[port.name].shape))


def far_texts(small: Probe, signature: Signature, switches: Sequence[Threshold]) -> Iterator[Asked]:
    """Yield SMALL at the end of the positions of a model, and where rotary scalings SWITCH."""
    limit, length = sequence_limit(signature), max(it.shape[-1] for it in small.inputs.values())
    for at in dict.fromkeys([*(it.tokens for it in switches), limit - length]):
        if length < at <= limit - length:
            yield Asked(Probe(far(at), small.inputs), at)


def far(at: int) -> str:
    """Return the name of the text that begins AT a position."""
    return f"from position {at:,} on"


class Sides:
    """Both sides of a check, ready to run short texts.

    Attributes:
        golden: the reference, its source at hand.
        candidate: what is judged.
        storage: how the candidate keeps its weights.
    """

    def __init__(self, golden: Golden, candidate: Candidate, storage: str) -> None:
        self.golden, self.candidate, self.storage = golden, candidate, storage
        self.names = tuple(port.name for port in golden.signature.outputs)

    @cached_property
    def modules(self) -> Mapping[str, Any]:
        """The source by the dtype in which it runs."""
        from ..reference.reference import stored_as

        model: Any = self.golden.model
        at_hand = self.golden.built
        return {
            it: at_hand.get((it, self.storage)) or stored_as(model, it, self.storage)
            for it in ("float64", "float32")
        }

    def of_source(self, asked: Asked) -> list[dict[str, Array]]:
        """Return what the source computes in float64, and in float32.

        Raises:
            UnsupportedError: it does not take what is ASKED, or its answer is NaN.
        """
        try:
            found = [self.source(asked, it) for it in ("float64", "float32")]
        except UnsupportedError:
            raise
        except Exception as error:
            pass_on_shortage(error)
            reason = f"the source does not take it: {described(error)}"
            raise UnsupportedError(reason) from error
        if any(np.isnan(it).any() for it in found[0].values() if it.dtype.kind == "f"):
            raise UnsupportedError("the source gives NaN")
        return found

    def source(self, asked: Asked, dtype: str) -> dict[str, Array]:
        """Return what the source computes in DTYPE."""
        import torch

        from ..reference.float64 import constants_of, true_float64
        from ..reference.reference import feed

        mode = true_float64() if dtype == "float64" else contextlib.nullcontext()
        with constants_of(self.storage), mode, torch.no_grad():
            inputs = feed(signature_for(self.golden.signature, asked.probe), asked.probe, dtype)
            found = torch_at(self.modules[dtype], inputs, self.names, asked.offset)
        return {name: from_torch(tensor) for name, tensor in found.items()}

    def found(self, asked: Asked) -> dict[str, Array]:
        """Return what the candidate computes in float32."""
        runner = runner_for(self.candidate.structure, asked.probe)
        return run_at(runner, asked.probe.inputs, asked.offset)


def vocabulary_of(signature: Signature) -> int:
    """Return how many ids every input of SIGNATURE takes that takes ids; 0 where that is not known."""
    tokens = (port for port in signature.inputs if port.role == "token_ids")
    return min((port.limit("vocabulary", 0) for port in tokens), default=0)


def questions(golden: Golden, switches: Sequence[Threshold], *, quick: bool) -> list[Asked]:
    """Return the short texts on which both sides are run; a QUICK check asks one of edges."""
    signature, model = golden.signature, golden.model
    if model is None:
        return []
    small, *_ = make_probes(signature, tokenizer=None, quick=True, reserved=stand_ins(model.config))
    edges = [*edge_texts(small, signature, edge_ids(model, vocabulary_of(signature)))]
    return [*edges[: 1 if quick else TEXTS], *far_texts(small, signature, switches)]


def reach_stage(
    golden: Golden,
    candidate: Candidate,
    storage: str,
    switches: Sequence[Threshold],
    *,
    quick: bool,
) -> tuple[list[Stage], list[str]]:
    """Run both sides at the edges; return the stage, if anything was run, and what was not reached.

    Args:
        golden: the reference.
        candidate: what is judged.
        storage: how the candidate keeps its weights.
        switches: lengths at which rotary scalings change and that no probe crossed.
        quick: whether only a little time may be spent.
    """
    if not vocabulary_of(golden.signature):
        return [], []
    if reason := not_asked(golden, candidate, storage):
        return [], [f"ids at the edges of the vocabulary, positions far on ({reason})"]
    step("checking: edges of the vocabulary, positions far on")
    sides, rows, notes = Sides(golden, candidate, storage), [], list[str]()
    try:
        texts = questions(golden, switches, quick=quick)
    except UnsupportedError as error:
        return [], [f"ids at the edges of the vocabulary, positions far on ({error})"]
    if count := types_of(golden):
        texts, words = typed(texts, golden.signature, count, candidate)
        notes += words
    for asked in texts:
        try:
            wanted, own = sides.of_source(asked)
            rows.append((asked.probe, sides.found(asked), wanted, own))
        except UnsupportedError as error:
            notes.append(f"{asked.probe.name}: {error}")
        except Exception as error:
            return [unrunnable(error)._replace(name=NAME)], notes
    return ([judged(golden, candidate, rows)] if rows else []), notes


def typed(
    texts: Sequence[Asked], signature: Signature, count: int, candidate: Candidate
) -> tuple[list[Asked], list[str]]:
    """Return TEXTS with COUNT token types where CANDIDATE takes them, and what is left out."""
    if not takes_types(candidate.structure):
        return [*texts], [NOT_TAKEN]
    found = [
        it if it.offset else it._replace(probe=with_types(signature, it.probe, count))
        for it in texts
    ]
    return found, []


def not_asked(golden: Golden, candidate: Candidate, storage: str) -> str:
    """Return why the edges are not run; empty where they are."""
    reason = not_at_hand(golden, candidate, storage)
    if reason or golden.model is None:
        return reason
    sizes = (math.prod(it.shape) for it in golden.model.checkpoint.headers.values())
    return "the model is large" if sum(sizes) > LARGE else ""


def not_at_hand(golden: Golden, candidate: Candidate, storage: str) -> str:
    """Return why the two sides cannot be run on what is asked now; empty where they can."""
    if golden.model is None or importlib.util.find_spec("torch") is None:
        return "the source is not at hand"
    if golden.model.path is None:
        return "the source is in memory alone"
    if candidate.program is not None or candidate.structure is None:
        return "the candidate takes sizes of its own"
    plain = parse_storage(storage).dtype in ("stored", "float32", "float16", "bfloat16")
    return "" if plain else "the candidate keeps other digits than the source"


def judged(golden: Golden, candidate: Candidate, rows: Sequence[tuple[Any, ...]]) -> Stage:
    """Return whether the candidate errs in ROWS (probe, its output, float64 and float32) no more than it may."""
    probes, found, wanted, own = ([*column] for column in zip(*rows, strict=True))
    about: Any = candidate.structure.describe() if candidate.structure else {}
    key = (about["runtime"], about["device"], about["dtype"], about["accumulate"])
    study = floor(*key, blas=about.get("blas", ""))
    if study is None:
        return unstudied(NAME, about)
    errors = [
        {
            name: distance(it[name], right[name], masks_of(golden.signature, probe).get(name))
            for name in right
        }
        for probe, it, right in zip(probes, own, wanted, strict=True)
    ]
    stage = error_stage(NAME, golden, probes, found, wanted, (study, errors))
    library = str(getattr(candidate.structure, "library", ""))
    return stage._replace(figures={**stage.figures, "upstream": library})
