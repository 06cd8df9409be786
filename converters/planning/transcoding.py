"""Quantized models on their way to another format: the same codes and scales under other names."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import BadInputError, MismatchError, UnsupportedError, WeighbridgeError
from ..checkpoints import Checkpoint, Header
from ..checkpoints.derived import Joined
from ..common.dtypes import FLOATS, NUMPY
from ..common.hints import dequantizing
from ..libraries.modules import LINEAR, describe
from ..maps import Plan, WeightMap
from ..maps.binding.quantized import PARTS, CannotMoveError, QuantizedPlan, quantized_plan
from ..maps.execution.view import Mapped
from ..maps.sources.torch_side import Widened
from ..models import Model
from ..models.config_fields import read_config
from ..quantization import Dequantized, Scheme
from ..quantization.formats import registry
from ..quantization.formats.modules import EMBEDDING
from ..quantization.mlx import part_name, rounding, stem
from ..quantization.recipe import COPY, KEY
from .config import CONFIG
from .conversion import IDENTITY
from .dense import METHOD, PACKING
from .job import Job, plan_job
from .manifest import manifest_of
from .view import dense_view

DTYPES: Final[Mapping[str, str]] = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
RECORDED: Final = "transcoded"  # where a manifest says how codes were carried over
QUANTIZED: Final = "quantized"  # where it says how they were chosen
DTYPE: Final = "dtype"
FORMERLY: Final = "torch_dtype"  # what transformers called it before version 5
# Methods whose checkpoints the classes of the MLX libraries read themselves, by their `sanitize`.
LINEAR_ONLY: Final = frozenset(
    {"metal"}
)  # formats that transformers loads into linear layers alone
LEFT_TO_THE_CLASS: Final = frozenset({"fp8", "mxfp4"})


class Transcoded(NamedTuple):
    """A quantized model as it will be written.

    Attributes:
        plan: what is written, from ``checkpoint``.
        checkpoint: the tensors that are read.
        config: the sections of ``config.json`` that say how it is quantized.
        facts: what a manifest says of it.
        losses: by weight, how far it moves, in steps; empty where every code and scale is kept.
    """

    plan: Plan
    checkpoint: Checkpoint
    config: Mapping[str, Any]
    facts: Mapping[str, Any]
    losses: Mapping[str, float]
    rounded: Mapping[str, str] = {}  # never written to

    def lines(self) -> Iterator[str]:
        """Yield the plan, a line each."""
        yield from lines_of(self.facts)


def lines_of(facts: Mapping[str, Any] | None, most: int | None = None) -> list[str]:
    """Return what FACTS say of codes that were carried over: notes, and which weights move how far.

    Of these the MOST that move furthest, where there are more; a manifest has all.
    """
    if not facts:
        return []
    losses = facts.get("losses") or {}
    shown = (worst := sorted(losses, key=lambda name: -losses[name]))[:most]
    more = [f"{len(worst) - len(shown)} more move, none further"] if len(shown) < len(worst) else []
    return [
        f"{facts['weights']} weights stay quantized: {facts['to']}",
        *(f"note: {note}" for note in facts["notes"]),
        *(f"{name}: moves by {losses[name]:.2g} of a step" for name in shown),
        *more,
    ]


class Parts(Joined):
    """A checkpoint seen dense, but its quantized weights as they are stored."""

    def __init__(self, seen: Checkpoint, quantized: Dequantized) -> None:
        self.schemes = quantized.schemes
        self.left_dense, self.notes = quantized.left_dense, notes_of(quantized)
        stored = (full for name in self.schemes for full in quantized.part_names(name).values())
        super().__init__(seen, {full: (quantized.raw, full) for full in stored})


def quantized_view(model: Model, dtype: str = "F32") -> Model:
    """Return MODEL with its quantized weights shown in DTYPE, whatever format they are stored in.

    Their codes stay at hand, ``model.tensors.raw``. A model that is not quantized is returned as it
    is, and so is one that goes back by a map that was recorded for its packed blocks.

    Raises:
        MismatchError: the tensors do not fit what the configuration says of their quantization.
        UnsupportedError: the method that it names is not known.
    """
    if model.path is None or goes_back_packed(model):
        return model
    if model.framework == "mlx":
        return dense_view(model, dtype)
    method = (model.config.get(PACKING) or {}).get(METHOD)
    if model.framework != "torch" or method is None or method in LEFT_TO_THE_CLASS:
        return model
    found = registry.read(model.checkpoint, model.config)
    dense = {key: value for key, value in model.config.items() if key != PACKING}
    section: dict[str, Any] = {KEY: found.section} if found.section else {}
    tensors = Dequantized(found.tensors, section, dtype=dtype, notes=found.notes)
    return replace(model, config=dense, tensors=tensors)


def goes_back_packed(model: Model) -> bool:
    """Say whether a map was recorded for MODEL that leads to packed blocks, not to weights seen dense."""
    manifest = manifest_of(model)
    ours = model.map_text is not None and model.map_text == manifest.get("map")
    return ours and not {RECORDED, QUANTIZED} & manifest.keys()


def dequantized(model: Model, dtype: str) -> Model:
    """Return MODEL with its quantized weights shown in DTYPE, a key of ``DTYPES``.

    Raises:
        BadInputError: none of them is quantized, or its config does not say how.
        MismatchError: its tensors do not fit what its config says of their quantization.
    """
    dense = quantized_view(model, DTYPES[dtype])
    if dense is model and model.framework == "mlx":
        Dequantized(model.checkpoint, {})  # says what is missing, where codes are there
    if not isinstance(dense.tensors, Dequantized):
        raise BadInputError(f"{model.spec} has no quantized weights; leave --dequantize out")
    return dense


def own_dtype(model: Model) -> str:
    """Return the key of ``DTYPES`` that most of what is not a code has in MODEL, a quantized one."""
    seen = model.tensors
    stored = seen.raw.headers if isinstance(seen, Dequantized) else model.checkpoint.headers
    count = Counter(header.dtype for header in stored.values())
    return max(DTYPES, key=lambda key: count[DTYPES[key]])


def rewrite_sections(folder: Path, sections: Mapping[str, Any]) -> None:
    """Let ``config.json`` of FOLDER say by SECTIONS, and by nothing else, how it is quantized."""
    replaced = {KEY, COPY, PACKING, *([FORMERLY] if DTYPE in sections else [])}
    config = {k: v for k, v in read_config(folder).items() if k not in replaced}
    text = json.dumps(config | {**sections}, indent=2) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def is_quantized(model: Model) -> bool:
    """Say whether MODEL is seen dense and has codes behind it."""
    return isinstance(model.tensors, Dequantized) and bool(model.tensors.schemes)


def transcoded(job: Job, method: str | None = None, *, allow_lossy: bool = False) -> Transcoded:
    """Return how JOB, of a model that is seen dense, is written with the codes that it has.

    Args:
        job: planned for the dense weights.
        method: Hugging Face's name of the target's format, for PyTorch; the first that keeps every
            code and scale where none is given.
        allow_lossy: whether that may be a format that moves weights.

    Raises:
        MismatchError: a weight cannot be carried over as it is, or would move by more than MLX's own
            rounding and ALLOW_LOSSY is not given; all of them are listed.
        UnsupportedError: no format holds the model, or METHOD does not.
    """
    quantized = job.model.tensors
    assert isinstance(quantized, Dequantized)  # noqa: S101  (`is_quantized` was asked)
    stored = Parts(job.checkpoint, quantized)
    moved = quantized_plan(job.plan, stored.headers, quantized.schemes)
    if job.to == "torch":
        return for_torch(job, moved, stored, method, allow_lossy=allow_lossy)
    section = section_of(moved.schemes)
    facts = {"weights": len(moved.schemes), "notes": notes_of(quantized), "to": "mlx"}
    facts |= {"rounded": quantized.left_dense}
    return Transcoded(moved.plan, stored, {KEY: section, COPY: section}, facts, {})


def movable(job: Job) -> Job:
    """Return JOB, of a model that is seen dense, with those weights dense whose codes cannot move.

    A map may transpose a weight, part a group or join weights that are quantized in different ways. Such
    weights are rounded once, to the dtype of the scales.

    Raises:
        CannotMoveError: the value of a quantized weight would have to change, or none is left.
    """
    quantized = job.model.tensors
    assert isinstance(quantized, Dequantized)  # noqa: S101  (`is_quantized` was asked)
    try:
        quantized_plan(job.plan, Parts(job.checkpoint, quantized).headers, quantized.schemes)
    except CannotMoveError as error:
        if error.changed or error.names >= quantized.schemes.keys():
            raise
        dtype = dtype_of_scales(quantized.raw, quantized.schemes)
        dense = quantized.narrowed(dict.fromkeys(error.names, dtype))
        model = replace(job.model, tensors=dense)
        return movable(plan_job(replace(job.conversion, model=model)))
    return job


def notes_of(quantized: Dequantized) -> list[str]:
    """Return what a person should know of weights that are dense because their codes do not move."""
    dense = quantized.left_dense
    if not dense:
        return []
    first, code = next(iter(dense.items()))
    return [
        (
            f"{len(dense)} weights are dense, {first} first, rounded once to {NUMPY[code]}: their rows and"
            " columns lie otherwise in the target, and groups of codes would be parted"
        )
    ]


def for_torch(
    job: Job, moved: QuantizedPlan, stored: Parts, method: str | None, *, allow_lossy: bool
) -> Transcoded:
    """Return how JOB, whose parts are MOVED from those STORED, is written for PyTorch."""
    raw = in_one_dtype(Mapped(moved.plan, stored), moved.schemes)
    dtype = dtype_of_scales(raw, moved.schemes)
    parts = Dequantized(raw, {KEY: section_of(moved.schemes)}, dtype=dtype)
    chosen, written = choose(parts, held(job), method)
    if not allow_lossy and (far := beyond_rounding(written.losses, parts)):
        raise lossy(chosen, far, job.model)
    copied = WeightMap.parse(IDENTITY).bind(written.tensors.headers)
    dense = dense_sources(moved.plan, written.tensors.headers)
    rounded = {name: dtype for name in dense if name in stored.schemes} | stored.left_dense
    facts = {
        "to": chosen,
        "weights": len(moved.schemes),
        "notes": [*stored.notes, *written.notes],
        "losses": dict(written.losses),
        "rounded": rounded,
    }
    sections: dict[str, Any] = {PACKING: written.section, DTYPE: NUMPY[dtype].name}
    return Transcoded(copied, written.tensors, sections, facts, written.losses)


def as_written(model: Model, rounded: Mapping[str, str]) -> Model:
    """Return MODEL, seen dense, with the weights ROUNDED to the dtypes that they have in a target."""
    if not rounded or not isinstance(model.tensors, Dequantized):
        return model
    return replace(model, tensors=model.tensors.rounding(rounded))


def as_recorded(model: Model, target: Model) -> Model:
    """Return MODEL as the manifest of TARGET says that some of its weights were rounded.

    It is a claim: the weights of TARGET are held against what it leads to, value by value.
    """
    recorded = manifest_of(target).get(RECORDED)
    rounded = recorded.get("rounded") if isinstance(recorded, Mapping) else None
    known = rounded.items() if isinstance(rounded, Mapping) else ()
    return as_written(model, {name: code for name, code in known if code in ("F16", "BF16")})


def dense_sources(plan: Plan, written: Mapping[str, Header]) -> Iterator[str]:
    """Yield the sources of PLAN whose targets are floating-point numbers among those WRITTEN."""
    for step in plan.steps:
        if all(name in written and written[name].dtype in FLOATS for name in step.target_names):
            yield from step.source_names


def in_one_dtype(raw: Checkpoint, schemes: Iterable[str]) -> Checkpoint:
    """Return RAW with all floating-point numbers in float32, if most tensors beside SCHEMES are in it.

    So are the norms of a GGUF file beside scales in float16, and transformers casts neither.
    """
    coded = {part_name(name, part) for name in schemes for part in PARTS}
    beside = Counter(it.dtype for name, it in raw.headers.items() if name not in coded)
    if not beside or beside.most_common(1)[0][0] != "F32":
        return raw
    return Widened(raw, [name for name, it in raw.headers.items() if it.dtype in ("F16", "BF16")])


def dtype_of_scales(raw: Checkpoint, names: Iterable[str]) -> str:
    """Return the dtype of most scales of the weights NAMES of RAW: their layers compute in it.

    What is not quantized in the target is rounded to it once, which MLX does as well whenever it reads
    such a weight; layers in other dtypes than their neighbours would not run in PyTorch.
    """
    found = Counter(raw.headers[part_name(name, "scales")].dtype for name in names)
    [(code, _)] = found.most_common(1)
    return code if code in FLOATS else "BF16"


class Held(NamedTuple):
    """Where transformers' class has weights: in linear layers, or in modules of its own, such as routers.

    Experts, which it holds together, are in neither.
    """

    linear: frozenset[str]
    elsewhere: frozenset[str]

    def codes(self, parts: Dequantized, method: str) -> Dequantized:
        """Return PARTS with those weights dense that transformers would not find as codes of METHOD."""
        quantized = parts.schemes.keys()
        found = self.linear if method in LINEAR_ONLY else quantized - self.elsewhere
        return parts.only(quantized & found)


def held(job: Job) -> Held | None:
    """Return where transformers' class for the target of JOB has weights; ``None`` where it knows none."""
    try:
        modules = describe(job.conversion.config)
    except WeighbridgeError:
        return None
    linear = frozenset(f"{path}.weight" for path, it in modules.kinds.items() if it == LINEAR)
    return Held(linear, frozenset(modules.headers.keys() - linear))


def choose(
    parts: Dequantized, held: Held | None, method: str | None
) -> tuple[str, registry.Written]:
    """Return the format of METHOD, or else the best for PARTS, and what it writes.

    The best leaves the fewest weights dense besides embeddings, which no format quantizes; of these it is
    the first that moves them least.

    Args:
        parts: under PyTorch's names.
        held: where transformers' class has them, where somebody knows.
        method: as on the command line.

    Raises:
        UnsupportedError: METHOD cannot hold PARTS, or no format can.
    """
    found: dict[str, registry.Written] = {}
    refusals: dict[str, str] = {}
    for name in [method] if method else registry.METHODS:
        try:
            found[name] = registry.write(held.codes(parts, name) if held else parts, name)
        except UnsupportedError as error:
            refusals[name] = str(error)
            continue
        if rank(found[name], parts) == (0, 0.0):
            break
    if not found:
        reasons = [f"{name}: {why}" for name, why in refusals.items()]
        raise UnsupportedError(
            "the format cannot hold these weights; --dequantize bf16 makes them dense", reasons
        )
    best = min(found, key=lambda name: rank(found[name], parts))
    return best, found[best]


def rank(written: registry.Written, parts: Dequantized) -> tuple[int, float]:
    """Return how many weights of PARTS are WRITTEN dense, embeddings aside, and how far one moves at most."""
    headers = written.tensors.headers
    dense = [n for n in parts.schemes if n in headers and headers[n].dtype in FLOATS]
    worst = max(written.losses.values(), default=0.0)
    return sum(not EMBEDDING.search(stem(name)) for name in dense), worst


def beyond_rounding(losses: Mapping[str, float], parts: Dequantized) -> dict[str, float]:
    """Return those of LOSSES that exceed what the dtype of the scales rounds anyway."""
    headers = parts.raw.headers
    return {
        name: loss
        for name, loss in losses.items()
        if loss > rounding(parts.schemes[name], headers[part_name(name, "scales")].dtype)
    }


def lossy(method: str, losses: Mapping[str, float], model: Model) -> MismatchError:
    """Return what is raised for weights of MODEL that would move by LOSSES."""
    worst = sorted(losses, key=lambda name: -losses[name])
    return MismatchError(
        f"{method} would move {len(worst)} weights; --allow-lossy writes it all the same, dense"
        f" weights keep all: {dequantizing(model.spec)}",
        [f"{name}: by up to {losses[name]:.2g} of a step" for name in worst],
    )


def section_of(schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Return MLX's section of ``config.json`` for weights quantized by SCHEMES.

    The commonest scheme is the default; modules with another are named.

    >>> section_of({"a.weight": Scheme(4, 64), "b.weight": Scheme(4, 64), "c.weight": Scheme(8, 64)})
    {'group_size': 64, 'bits': 4, 'mode': 'affine', 'c': {'group_size': 64, 'bits': 8, 'mode': 'affine'}}
    """
    [(default, _), *_] = Counter(schemes.values()).most_common(1)
    named = {stem(name): it.record for name, it in schemes.items() if it != default}
    return {**default.record, **named}
