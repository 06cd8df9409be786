"""Where the two sides of a check that DIFFERS part, and why nothing is named where nothing can be."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from ...converters.common.memory import pass_on_shortage
from ...converters.common.policy import full_tokens
from ...converters.common.users_code import described
from ...converters.models import PROGRAMS
from ...converters.runtimes.base import Runner
from ...converters.values import Array
from ..goldens.golden import Golden
from ..goldens.recorder import Recorder
from ..probes.probes import Probe
from ..weights.reference_index import Explanation
from ..weights.weights import base_weights
from .blame import Explain, Fault, Recording, Recordings, blame
from .evidence import INPUT, Observation
from .pairing import Paired, paired_sites

MEMORY: Final = 800_000_000  # bytes that all recordings of inner sites may take together
# Bytes for each row and column of a weight, per token: what enters and leaves it and what else has its
# width, in float64 and float32 of the source, as corrections, and of the candidate.
COPIES: Final = 40
LEAST: Final = 8  # tokens: fewer tell no kind of fault
MATRIX: Final = 2
GRAPH: Final = "graph"


class Located(NamedTuple):
    """What was found.

    Attributes:
        faults: the sites at fault, worst first.
        notes: why there are none, for the lines of what was not checked.
    """

    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()


def locate(
    golden: Golden,
    runner: Runner,
    storage: str,
    chosen: Sequence[Probe],
    explanations: Sequence[Explanation],
) -> Located:
    """Name the sites at which RUNNER parts from GOLDEN; what goes wrong here costs no verdict.

    Args:
        golden: the reference.
        runner: the candidate, in float32.
        storage: how the candidate keeps its weights.
        chosen: probes to run where the reference is at hand; else the recorded ones are taken.
        explanations: of the candidate's weights.
    """
    complete = getattr(runner, "kind", "captured") == "captured"
    try:
        chosen = affordable(golden, chosen)
        recorded = sites_of(golden, storage, chosen)
        if not recorded.reference:
            note = "no inner sites: the golden is of level verdict (--level blame)"
            return Located(notes=(note,))
        if not complete:
            names = paired_sites(as_loaded(golden, explanations))
            graph = (
                getattr(runner, "kind", "") == GRAPH
            )  # its sites have the names of a torch module
            names |= {path: path for path in modules_in(recorded.reference)} if graph else {}
            runner = Paired(runner, names)
            explanations = misplaced(explanations) if graph else explanations
        return Located(tuple(blame(recorded, runner, explanations=explanations, complete=complete)))
    except Exception as error:
        pass_on_shortage(error)
        note = f"inner sites: looking for the place at fault failed ({described(error)})"
        return Located(notes=(note,))


def as_loaded(golden: Golden, explanations: Sequence[Explanation]) -> Sequence[Explanation]:
    """Return EXPLANATIONS with names of the reference's class, whose files may have others.

    Where the source is not at hand they stay as they are.
    """
    if golden.model is None or not importlib.util.find_spec("torch"):
        return explanations
    from ...converters.runtimes.streamed.modules import loaded_names

    names = loaded_names(golden.model, sorted({it.source for it in explanations if it.source}))
    return [it._replace(source=names.get(it.source or "", it.source)) for it in explanations]


def affordable(golden: Golden, chosen: Sequence[Probe]) -> Sequence[Probe]:
    """Return of CHOSEN what fits into memory with all inner sites: of a large model a part of one."""
    model = golden.model
    if model is None or model.path is None or model.framework in PROGRAMS:
        return chosen
    shapes = [it.shape for it in base_weights(model).headers.values()]
    widths = sum(sum(shape) for shape in shapes if len(shape) == MATRIX)
    tokens = max(LEAST, MEMORY // max(COPIES * widths, 1))
    sizes = [max((it.size for it in probe.inputs.values()), default=0) for probe in chosen]
    if full_tokens(sum(map(math.prod, shapes))) is None or sum(sizes) <= tokens:
        return chosen
    masks = [port.name for port in golden.signature.inputs if port.role == "attention_mask"]
    return [part(probe, tokens, masks) for probe in chosen[-1:]]


def part(probe: Probe, tokens: int, masks: Sequence[str] = ()) -> Probe:
    """Return the beginning of the rows of PROBE, or of the first, with TOKENS in all.

    Where one of MASKS begins with padding it is the end.

    >>> import numpy as np
    >>> rows = {"ids": np.arange(64).reshape(2, 32)}
    >>> [part(Probe("p", rows), tokens).inputs["ids"].shape for tokens in (20, 15)]
    [(2, 10), (1, 15)]
    """
    rows = max((len(array) for array in probe.inputs.values()), default=1)
    kept = rows if rows * LEAST <= tokens else 1
    padded = any(not probe.inputs[name][:, 0].all() for name in masks if name in probe.inputs)
    columns = slice(-(tokens // kept), None) if padded else slice(tokens // kept)
    cut = {
        name: array[:kept, columns]
        if array.ndim == MATRIX and array.dtype.kind in "iu"
        else array[:kept]
        for name, array in probe.inputs.items()
    }
    return probe._replace(inputs=cut)


def misplaced(explanations: Sequence[Explanation]) -> list[Explanation]:
    """Return EXPLANATIONS, those at fault that carry the name of one weight and the values of another.

    >>> made = [Explanation(one, other, "equal", "", True) for one, other in ("ab", "ba", "cc")]
    >>> [(it.name, it.source, it.detail) for it in misplaced(made) if not it.ok]
    [('a', 'a', 'holds the values of b'), ('b', 'b', 'holds the values of a')]
    """
    known = {it.source for it in explanations}
    return [
        it._replace(
            source=it.name, kind="exchanged", detail=f"holds the values of {it.source}", ok=False
        )
        if it.ok and it.name in known and it.name not in (it.source, *it.also)
        else it
        for it in explanations
    ]


def own_from(
    recorder: Recorder, storage: str, reference: Sequence[Recording], sites: Collection[str]
) -> list[dict[str, Array]]:
    """Return the sites of the source of RECORDER in float32, those SITES corrected by REFERENCE."""
    from ..reference.float64 import constants_of
    from ..reference.reference import forced_sites

    corrections = [{site: it for site, it in row.items() if site in sites} for row in reference]
    with constants_of(storage):
        narrow = recorder.module("float32", storage)
        return forced_sites(narrow, recorder.signature, recorder.asked, corrections)


def explained_by(recorder: Recorder, storage: str) -> Explain:
    """Return what looks for a fault in the source of RECORDER itself, which is built when it is asked."""
    made: list[Any] = []

    def explain(it: Observation, probe: Probe, known: Collection[str]) -> Any:
        from .supposed import Suppositions

        if not made:
            module = recorder.module("float64", storage)
            made.append(Suppositions(module, recorder.signature, storage))
        return made[0].explain(it, probe, known)

    return explain


def modules_in(recordings: Sequence[Recording]) -> set[str]:
    """Return the paths of the modules in RECORDINGS."""
    return {site.removesuffix(INPUT).partition("@")[0] for it in recordings for site in it}


def sites_of(golden: Golden, storage: str, chosen: Sequence[Probe]) -> Recordings:
    """Return the reference's sites and the source's own, recorded or run now."""
    if golden.model is not None and importlib.util.find_spec("torch"):
        recorder = Recorder(golden.model, chosen)
        reference, own = recorder.sites(storage, chosen)
        corrected_at = partial(own_from, recorder, storage, reference)
        return Recordings(chosen, reference, own, corrected_at, explained_by(recorder, storage))
    reference = golden.sites.get(storage, ())
    return Recordings(
        golden.probes[: len(reference)], reference, golden.source_sites.get(storage, ())
    )
