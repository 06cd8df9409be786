"""Where the two sides of a check that DIFFERS part, and why nothing is named where nothing can be."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import NamedTuple

from ...converters.common.memory import pass_on_shortage
from ...converters.common.users_code import described
from ...converters.runtimes.base import Runner
from ..goldens.golden import Golden
from ..goldens.recorder import Recorder
from ..probes.probes import Probe
from ..weights.reference_index import Explanation
from .blame import Fault, Recording, blame
from .pairing import Paired, paired_sites


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
    if getattr(runner, "kind", "captured") != "captured":
        runner = Paired(runner, paired_sites(explanations))
    try:
        probes, reference, own = sites_of(golden, storage, chosen)
        if not reference:
            note = "no inner sites: the golden is of level verdict (--level blame)"
            return Located(notes=(note,))
        return Located(tuple(blame(reference, own, runner, probes, explanations=explanations)))
    except Exception as error:
        pass_on_shortage(error)
        note = f"inner sites: looking for the place at fault failed ({described(error)})"
        return Located(notes=(note,))


def sites_of(
    golden: Golden, storage: str, chosen: Sequence[Probe]
) -> tuple[Sequence[Probe], Sequence[Recording], Sequence[Recording]]:
    """Return probes, the reference's sites and the source's own, recorded or run now."""
    if golden.model is not None and importlib.util.find_spec("torch"):
        return chosen, *Recorder(golden.model, chosen).sites(storage, chosen)
    reference = golden.sites.get(storage, ())
    return golden.probes[: len(reference)], reference, golden.source_sites.get(storage, ())
