"""The stages ``configuration`` and ``lengths`` of a check, and who is at fault where only a class is."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Sequence
from typing import Final

from ...converters.configs.to_mlx import TIED, known
from ...converters.libraries import Target
from ...converters.models import PROGRAMS, Model
from ...errors import WeighbridgeError
from ..check.candidate import Candidate
from ..check.distances import Distance
from ..check.stages import join
from ..check.verdict import Stage
from ..goldens.golden import Golden
from ..probes.probes import Probe
from ..probes.thresholds import Threshold
from ..reference.floors import floor
from ..weights.reference_index import Explanation
from ..weights.sketches.casts import fingerprint
from .blocks import crossed_by_blocks
from .effects import NOTHING, measured, smallest
from .lengths import NAME as LENGTHS_STAGE
from .lengths import lengths_stage, parting, tokens_of
from .reach import far, reach_stage
from .settings import Difference, differences, limits, unread, value_at, written_twice

NAME: Final = "configuration"
UNMEASURED: Final = "what other values of it do could not be measured"
PACKING: Final = "quantization_config"
REFUSED: Final = "that is MLX's, and transformers' from_pretrained refuses the directory"
# How a weight may be the reference's without any choice of how it lies.
PLAIN: Final = frozenset(("equal", "cast", "unused"))


def running_class(candidate: Candidate) -> Target | None:
    """Return the class of an MLX library that runs CANDIDATE; ``None`` where transformers' code does."""
    model = candidate.model
    if candidate.runtime != "mlx" or model.family is None or model.family.map:
        return None
    from ...converters.runtimes.native.classes import misfits

    return None if misfits(model) else model.library


def reading_class(model: Model) -> Target | None:
    """Return the class of an MLX library that a user would load the directory of MODEL with, captured here."""
    in_mlx = model.framework == "mlx" and model.factory is None
    return model.library if in_mlx else None


def not_asked(golden: Golden, candidate: Candidate) -> str:
    """Return why configurations are not compared; empty where they are."""
    if kind := PROGRAMS.get(candidate.model.framework):
        return f"{kind} holds its constants; its outputs show them"
    if candidate.model.factory is not None or not candidate.model.config:
        return "the candidate is built by code, not by a configuration"
    if not golden.provenance.get("config"):
        return "the reference is built by code, or its golden does not say its configuration"
    if importlib.util.find_spec("transformers") is None:
        return "transformers, which fills in what a configuration leaves out, is not installed"
    return ""


def foreign_quantization(model: Model) -> bool:
    """Say whether MODEL is PyTorch's and its configuration has MLX's section of quantized weights."""
    settings = model.config.get(PACKING)
    return model.framework == "torch" and settings is not None and "quant_method" not in settings


def configuration_stage(golden: Golden, candidate: Candidate) -> Stage:
    """Say whether every setting that code reads is the same on both sides."""
    if reason := not_asked(golden, candidate):
        return Stage(NAME, "skipped", reason)
    if foreign_quantization(candidate.model):
        return Stage(NAME, "fail", f"config.json has a {PACKING} without quant_method: {REFUSED}")
    wanted, reads = golden.provenance["config"], golden.provenance.get("config_reads", ())
    try:
        target = running_class(candidate)
        found = differences(wanted, reads, candidate.model, target)
        reader = target or reading_class(candidate.model)
        missed = [] if reader is None else limits(reader, wanted)
        unknown = [] if target is None else doubts(golden, candidate, target)
    except WeighbridgeError as error:
        return Stage(NAME, "unverified", f"it could not be compared: {error}")
    untied = [row for row in found if head_written_out(row, golden, candidate)]
    found = [row for row in found if row not in untied]
    if found:
        rows = [row._asdict() for row in found]
        return Stage(NAME, "fail", join([str(row) for row in found]), {"differences": rows})
    if missed or unknown:
        figures = {"limits": missed, "class": str(reader) if missed else ""}
        return Stage(NAME, "unverified", join([*missed, *unknown]), figures)
    by = str(target or f"transformers' {wanted.get('model_type')}")
    detail = f"{len(reads)} settings that code reads are the same; by {by}"
    same = "; one side ties its head to the embedding, and the other writes the same values twice"
    return Stage(NAME, "pass", f"{detail}{same if untied else ''}")


def head_written_out(row: Difference, golden: Golden, candidate: Candidate) -> bool:
    """Say whether ROW is about a head that is tied on one side and has the embedding's values on the other."""
    if row.key.rpartition(".")[2] != TIED:
        return False
    model, wide = candidate.model, golden.provenance["config"].get("vocab_size")
    if row.wanted:  # the reference ties it
        names = [n for n, it in model.checkpoint.headers.items() if it.shape[:1] == (wide,)]
        return written_twice(row, {n: {fingerprint(model.checkpoint.read(n))} for n in names})
    own = {n: it for n, it in golden.sketches.items() if it.shape[:1] == (wide,)}
    return written_twice(row, {n: it.hashes_at(it.dtype) for n, it in own.items()})


def doubts(golden: Golden, candidate: Candidate, target: Target) -> list[str]:
    """Return what the source's code reads, TARGET's class does not, and probes would not show.

    A key whose other values change no output matters to nobody. One whose other values change more than
    a correct candidate may err is judged by the outputs: a class with another value in mind differs.
    """
    wanted, reads = golden.provenance["config"], golden.provenance.get("config_reads", ())
    keys = unread(target, wanted, reads)
    effects = golden.provenance.get("effects", {})
    if golden.model is not None and importlib.util.find_spec("torch"):
        asked = [key for key in keys if key not in effects]
        about = (golden.model, golden.signature, golden.probes, known(wanted), asked)
        effects = effects | measured(*about, golden.outputs["stored"])
    values = {key: value_at(known(wanted), key) for key in keys}
    return [
        f"{target} does not read {key}, which is {values[key]!r}; {reason}"
        for key in keys
        if (reason := hidden(effects.get(key), golden, candidate))
    ]


def hidden(effect: Sequence[float] | None, golden: Golden, candidate: Candidate) -> str:
    """Return why probes would not show what a setting with EFFECT does; empty where they would."""
    if effect is None:
        asked = golden.model is not None or "effects" in golden.provenance
        return UNMEASURED if asked else f"{UNMEASURED}: record the golden again"
    found, policy = Distance(*map(float, effect)), candidate.policy
    study = floor(candidate.runtime, policy.device, "float32", policy.accumulate)
    own = max(golden.errors["stored/float32"][smallest(golden.probes)].values())
    if found.whole <= NOTHING or study is None or study.allowed(found, own) > 1:
        return ""
    return f"other values of it change outputs by {found.whole:.1g}, less than rounding may"


def shorter(golden: Golden, chosen: tuple[int, ...]) -> tuple[int, ...]:
    """Return those probes of CHOSEN that cross no length; all of them where each does."""
    least = min((tokens for _, tokens in golden.provenance.get("lengths", ())), default=None)
    sizes = {index: tokens_of(golden.signature, golden.probes[index]) for index in chosen}
    return tuple(it for it in chosen if least is None or sizes[it] <= least) or chosen


def with_lengths(
    golden: Golden, candidate: Candidate, probes: Sequence[Probe], stages: list[Stage], storage: str
) -> list[Stage]:
    """Return STAGES with what PROBES say of the lengths that the reference's configuration names.

    Where the last of STAGES, ``structure``, fails beyond one of them alone, it says which. Where it
    passes, one block of each kind is run past what the probes do not reach.

    Args:
        golden: the reference.
        candidate: what is judged.
        probes: those that ran.
        stages: what they gave.
        storage: how the candidate keeps its weights.
    """
    named, structure = golden.provenance.get("lengths", ()), stages[-1]
    if structure.status != "fail":
        seen = lengths_stage(named, candidate.signature or golden.signature, probes)
        missed = missed_by(seen)
        if missed and structure.status == "pass":
            seen = [crossed_by_blocks(golden, candidate, storage, missed)]
        return [*stages, *seen]
    lengths = {probe.name: tokens_of(golden.signature, probe) for probe in probes}
    found = parting(named, lengths, structure)
    if found is None:
        return stages
    library = str(getattr(candidate.structure, "library", ""))
    first = first_wrong(structure, found.tokens)
    from_on = f"it parts from token {first:,} on: {library or 'the candidate'}"
    words = f"{from_on} does not do what {found} says; {structure.detail}"
    figures = {**structure.figures, "from_tokens": first, "upstream": library}
    return [*stages[:-1], structure._replace(detail=words, figures=figures)]


def with_reach(
    golden: Golden, candidate: Candidate, stages: list[Stage], storage: str, *, quick: bool
) -> tuple[list[Stage], list[str]]:
    """Return STAGES with that of ids and positions at the edges, and what was not reached.

    A length at which a rotary scaling changes is crossed by a text that begins there.
    """
    if not any(it.name == "structure" and it.status == "pass" for it in stages):
        return stages, []
    missed = missed_by(stages)
    switches = [it for it in missed if "rope_parameters" in it.key]
    found, notes = reach_stage(golden, candidate, storage, switches, quick=quick)
    ran = {row["probe"] for stage in found for row in stage.figures.get("rows", ())}
    if missed and {far(it.tokens) for it in missed} <= ran:
        words = f"a text that begins at {', '.join(map(str, missed))} was run; see reach"
        stages = [it for it in stages if it.name != LENGTHS_STAGE]
        stages.append(Stage(LENGTHS_STAGE, "pass", words))
    return [*stages, *found], notes


def missed_by(stages: Sequence[Stage]) -> list[Threshold]:
    """Return the lengths that one of STAGES says were not crossed."""
    return [Threshold(*it) for stage in stages for it in stage.figures.get("missed", ())]


def first_wrong(structure: Stage, tokens: int) -> int:
    """Return which token, counted from 1, is the first that is wrong beyond a length of TOKENS.

    It is the first that was seen to be wrong; where all of a longer text is wrong, the first beyond.
    """
    rows = structure.figures["rows"]
    seen = [it["first_position"] for it in rows if it["first_position"] is not None]
    return max(min(seen, default=tokens), tokens) + 1


def upstream_of(stages: Sequence[Stage], explanations: Collection[Explanation]) -> str:
    """Return the class of a library that alone is at fault, the weights being right; empty for none.

    It is where all agrees on texts up to a length that the configuration names, and parts beyond; where
    texts read at once agree, and those read with its cache part; or where a limit of the class was
    measured before, and every weight is the reference's as it lies.
    """
    by_name = {stage.name: stage for stage in stages}
    failed = {stage.name for stage in stages if stage.status == "fail"}
    asked = ("fingerprints", "layout")
    proven = all(by_name[name].status == "pass" for name in asked if name in by_name)
    seen = ("structure", "lengths", "reach", "batch", "decoding", "towers")
    if not proven or not failed or not failed <= {*seen, "precision"}:
        return ""
    for name in seen:
        if name in failed and by_name[name].figures.get("upstream"):
            return str(by_name[name].figures["upstream"])
    plain = all(it.kind in PLAIN for it in explanations)
    about = by_name["configuration"].figures if "configuration" in by_name else {}
    return str(about.get("class", "")) if plain else ""
