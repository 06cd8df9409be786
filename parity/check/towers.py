"""Parts of a model that take images or sound, where every probe is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...converters.models import Signature
from ...converters.models.towers import parts_of, tower_names
from ..goldens.golden import Golden
from ..weights.reference_index import Explanation
from .candidate import Candidate
from .verdict import Stage

NAME: Final = "towers"
# Parts that a picture runs.
SHOWN: Final = frozenset({"vision_config", "perceiver_config", "projector_config"})
# Settings of a whole model that change none of its numbers, whatever its towers are.
NOTES: Final = frozenset(
    {"transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype", "auto_map"}
)
SEEN: Final = frozenset({"pixels", "spectrogram", "waveform"})  # roles of inputs that are not text


def tower_stages(
    golden: Golden, candidate: Candidate, explanations: Sequence[Explanation]
) -> list[Stage]:
    """Return the stage that says what no probe ran; none where there is no such part.

    A part counts as not run where the configuration has one besides the text model, and there are
    weights that no output needs, or that are a tower's by name while no input is an image or sound. In
    one framework the same code runs both sides: there equal weights and an equal configuration leave
    nothing to run.
    """
    known = golden.provenance.get("config") or (golden.model.config if golden.model else {})
    parts = dict(parts_of(known))
    names = {*golden.provenance.get("unused", ())}
    names |= {it.name for it in explanations if it.kind == "unused"}
    shown = takes_pictures(golden.signature)
    named = (it.source or it.name for it in explanations)
    names = tower_names(names) if shown else names | tower_names(named)
    if not parts or not names:
        return []
    why = "nothing that the class gives depends on it" if shown else "every probe is text"
    same = {it.source for it in explanations if it.kind == "equal" and it.source == it.name}
    alike = around(known) == around(candidate.model.config)
    if golden.framework == candidate.model.framework and alike and names <= same:
        return []
    found = {it.source or it.name for it in explanations if it.kind != "unused"}
    lost = f", {len(names - found)} of them in one side alone" if names - found else ""
    return [
        Stage(
            NAME,
            "unverified",
            f"{' and '.join(sorted(parts))}: {why}, so {len(names)} weights"
            f" ({', '.join(starts(names))}) were not run{lost}",
            {"parts": sorted(parts)},
        )
    ]


def takes_pictures(signature: Signature) -> bool:
    """Return whether an input of SIGNATURE is an image or sound, so that probes hold some."""
    return any(it.role in SEEN for it in signature.inputs)


def around(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of CONFIG, and the settings beside them, which say how towers and text meet.

    >>> around({"text_config": {}, "vision_config": {"depth": 2}, "image_token_id": 3, "dtype": "float32"})
    {'image_token_id': 3, 'vision_config': {'depth': 2}}
    """
    outer = {key: it for key, it in config.items() if not isinstance(it, Mapping)}
    own = {key: it for key, it in outer.items() if key not in NOTES and it is not None}
    return own | dict(parts_of(config))


def completed(text: Stage, seen: Stage) -> Stage:
    """Return the stage TEXT, which says what no text runs, with what a picture in one said."""
    if seen.status == "unverified":
        return text._replace(detail=f"{text.detail}: {seen.detail}")
    rest = [it for it in text.figures["parts"] if it not in SHOWN]
    if seen.status == "fail" or not rest:
        return seen
    detail = f"{' and '.join(rest)}: neither text nor pictures run it; {seen.detail}"
    return seen._replace(status="unverified", detail=detail)


def starts(names: set[str]) -> list[str]:
    """Return what NAMES begin with: the first two parts of each, as many as tell them apart.

    >>> starts({"model.visual.blocks.0.norm1.weight", "model.visual.blocks.1.norm1.weight"})
    ['model.visual.*']
    """
    return sorted({".".join(name.split(".")[:2]) + ".*" for name in names})[:4]
