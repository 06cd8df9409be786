"""A package as a check sees it: its program, its constants, and what its manifest says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...converters.captures.mlprogram.arithmetic import tensors_of
from ...converters.checkpoints.formats.coreai.asset import Asset
from ...converters.checkpoints.formats.onnx_model import OnnxFile
from ...converters.common.dtypes import FLOATS
from ...converters.values import Array
from ...errors import BadInputError
from ..goldens.recorder import unused_of
from ..probes.probes import Probe
from ..weights.reference_index import Explanation
from ..weights.sketches.sketch import Sketch, Weights
from ..weights.weights import Constants, program_weights
from .ahead import changed_since, computed_ahead
from .constants import Rules, bears_out, contradictions, explain_made, is_explained, rules_of
from .exact import exact_constants, exact_scalars, likely_scalars, put_back
from .likely import likely_rules
from .pictures import contradicted
from .source import SourceTensors

if TYPE_CHECKING:
    from ...converters.captures.mlprogram.program import Program
    from ..check.candidate import Candidate
    from ..goldens.golden import Golden


FINE: Final = 64  # parts of 1 that a number has none of that rounding made
SHOWN: Final = 5  # of what is untrue; the first ones tell


def judge(
    golden: Golden, candidate: Candidate, found: list[Explanation]
) -> tuple[list[Explanation], list[str]]:
    """Return FOUND with the constants explained that a converter made, and what a manifest gets wrong.

    CANDIDATE learns its constants as they were before rounding. One that is no package is left alone.
    """
    if candidate.manifest is None:
        return found, []
    source = SourceTensors(golden.model) if golden.model else None
    if candidate.program is None:
        weights, sketches = candidate.weights, golden.sketches
        rules = rules_of(candidate.manifest)
        likely = likely_of(None, rules, weights, found, (source, golden.probes))
        manifest = {**candidate.manifest, "made": {**rules, **likely}}
        unused = partial(unused_of, golden)
        explained = explain_made(found, manifest, weights, sketches, source, unused)
        candidate.constants = unrounded_constants(golden, candidate, explained, source)
        candidate.constants |= unrounded_numbers(golden, candidate, explained)
        candidate.constants |= computed_ahead(golden, candidate, explained, manifest)
        explained = changed_since(explained, weights, source)
        return explained, [*contradictions(manifest, explained, weights, sketches, source)]
    package = JudgedPackage(candidate.program, candidate.weights, golden.sketches, source)
    package = package.with_likely(found, golden.probes)
    if not candidate.manifest and golden.model and golden.probes:
        from ..reference.numbers import numbers_of

        package = replace(package, numbers=numbers_of(golden.model, golden.probes[0]))
    explained = package.explain(found, partial(unused_of, golden))
    candidate.exact = package.exact(explained)
    explained = changed_since(explained, candidate.weights, source)
    return explained, package.contradictions(explained)


def unrounded_constants(
    golden: Golden,
    candidate: Candidate,
    explained: Sequence[Explanation],
    source: SourceTensors | None,
) -> dict[str, Array]:
    """Return the constants of an ONNX file of others that it rounded to float16, as they were before.

    They are no weights: what the source computes with besides these, and as much as rounding moves it.
    """
    file = candidate.model.tensors
    if not isinstance(file, OnnxFile) or candidate.manifest or candidate.storage != "float16":
        return {}
    if source is None or not golden.probes:
        return {}
    from ..reference.numbers import numbers_of

    narrow = {name for name, header in file.headers.items() if header.dtype == "F16"}
    narrow -= {it.name for it in explained if it.source}
    constants = {name: file.read(name) for name in sorted(narrow)}
    numbers = numbers_of(source.model, golden.probes[0])
    return put_back({**file.constants(np.float16), **constants}, numbers, source.buffers)


def unrounded_numbers(
    golden: Golden, candidate: Candidate, explained: Sequence[Explanation]
) -> dict[str, Array]:
    """Return the single numbers of a Core AI asset in float16, as they were before rounding, where all are known.

    Such is the scale of attention, which is nowhere in the source: a source whose numbers are rounded has it whole.
    """
    file, model = candidate.model.tensors, golden.model
    if not isinstance(file, Asset) or candidate.storage != "float16" or not model:
        return {}
    from ..reference.numbers import numbers_of

    known = {it.name for it in explained if it.source or it.kind == "made"}
    narrow = {n: float(it) for n, it in numbers_in(file).items() if it.dtype == np.float16}
    fine = {n for n, it in narrow.items() if np.isfinite(it) and it * FINE % 1}
    rest = {n: it for n, it in numbers_in(file).items() if n in fine - known}
    if not rest:
        return {}
    numbers = numbers_of(model, golden.probes[0])
    found = put_back(rest, numbers, {})
    return found if all(n in found or float(it) in numbers for n, it in rest.items()) else {}


def likely_of(
    program: Program | None,
    rules: Rules,
    weights: Weights,
    found: Sequence[Explanation],
    against: tuple[SourceTensors | None, Sequence[Probe]],
) -> Rules:
    """Return likely rules for those of WEIGHTS that are not explained and that RULES say nothing of.

    Args:
        program: whose constants they are; ``None`` where the file is no ML program.
        rules: of the manifest.
        weights: of the file.
        found: what is explained by values.
        against: the source's tensors, if they are at hand, and inputs that fit.
    """
    source, probes = against
    known = {name for name, rule in rules.items() if rule}
    known |= {it.name for it in found if is_explained(it)}
    unknown = [it.name for it in found if it.name in weights.headers.keys() - known]
    if source is None or not unknown:
        return {}
    constants = {name: weights.read(name) for name in unknown}
    return likely_rules(program, constants, source, probes)


def with_numbers(golden: Golden, candidate: Candidate) -> Weights:
    """Return the weights of CANDIDATE; of a package without a manifest numbers that a tensor explains too.

    Which of its constants without axes are weights is known from the reference's tensors of one element. Of
    other files those that the reference computes from such tensors, where no constant carries them.
    """
    if candidate.manifest is None:
        return candidate.weights
    if candidate.program is None or candidate.manifest:
        return with_computed_numbers(golden, candidate, candidate.manifest)
    single = {
        name: it.moments.mean
        for name, it in golden.sketches.items()
        if math.prod(it.shape) == 1 and it.dtype in FLOATS
    }
    numbers = candidate.program.scalars()
    found = set(map(float, numbers.values())) & {*single.values()}
    rounded = likely_scalars(single.values(), numbers)
    found |= set(map(float, rounded.values()))
    named = rounded.keys() | {name for name, it in numbers.items() if float(it) in found}
    lost = {name for name, value in single.items() if value not in found}
    return program_weights(candidate.program, named | computed_numbers(golden, numbers, lost))


def with_computed_numbers(
    golden: Golden, candidate: Candidate, manifest: Mapping[str, Any]
) -> Weights:
    """Return the weights of CANDIDATE, with numbers that the reference computes from tensors that MANIFEST lacks."""
    weights, program = candidate.weights, candidate.program
    file: Any = candidate.model.tensors
    known = {it["key"] for it in dict(manifest.get("weights") or {}).values()}
    known |= {key for rule in rules_of(manifest).values() for key in tensors_of(rule)}
    lost = {
        name: np.asarray(it.moments.mean)
        for name, it in golden.sketches.items()
        if math.prod(it.shape) == 1 and it.dtype in FLOATS and name not in known
    }
    if not lost:
        return weights
    numbers = program.scalars() if program else numbers_in(file)
    free = {name: it for name, it in numbers.items() if name not in weights.headers}
    found = {n for n, it in free.items() if any(bears_out(one, it) for one in lost.values())}
    found |= computed_numbers(golden, free, lost)
    if not found:
        return weights
    return (
        program_weights(program, found) if program else Constants(file, {*weights.headers, *found})
    )


def numbers_in(file: Any) -> dict[str, Array]:
    """Return the constants in floating point of FILE that have no axes."""
    single = (n for n, it in file.headers.items() if not it.shape and it.dtype in FLOATS)
    return {name: file.read(name) for name in single}


def computed_numbers(
    golden: Golden, numbers: Mapping[str, Array], lost: Collection[str]
) -> set[str]:
    """Return those NUMBERS that the reference computes from tensors of one element that are LOST, no number is.

    The temperature of CLIP is such a tensor: a package holds its exponential.
    """
    if golden.model is None or not lost:
        return set()
    source = SourceTensors(golden.model)
    source.compute(golden.probes, {1})
    if any(it.dtype == np.float16 for it in numbers.values()):
        source.compute_in_half(golden.probes, {1})
    computed = [it for way in (source.computed, *source.in_half.values()) for it in way.values()]
    made = [it.value for it in computed if {*map(source.own, it.parts)} & {*lost}]
    return {name for name, it in numbers.items() if any(bears_out(value, it) for value in made)}


def refuse_untrue(spec: str, untrue: Sequence[str]) -> None:
    """Refuse the package SPEC whose record of its export is UNTRUE, although it computes the right thing.

    Raises:
        BadInputError: names what is not so.
    """
    if untrue:
        shown = "; ".join(untrue[:SHOWN])
        raise BadInputError(
            f"{spec}: its record of the export is not true of it: {shown}; export it again"
        )


@dataclass(frozen=True)
class JudgedPackage:
    """A package, and the reference that it is held against.

    Attributes:
        program: what it computes.
        weights: its constants.
        sketches: of the reference's tensors.
        source: the reference's tensors; ``None`` where only a golden is at hand.
        numbers: what the reference computes with besides, for a package that does not say it.
        likely: rules for constants that its manifest has none of.
    """

    program: Program
    weights: Weights
    sketches: Mapping[str, Sketch]
    source: SourceTensors | None
    numbers: frozenset[float] = frozenset()
    likely: Rules = field(default_factory=dict)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What the package says of itself, and what is likely where it says nothing."""
        own = self.program.manifest
        given = {name: rule for name, rule in rules_of(own).items() if rule}
        return {**own, "made": {**self.likely, **given}}

    def with_likely(self, found: Sequence[Explanation], probes: Sequence[Probe]) -> JudgedPackage:
        """Return the same with rules for those constants that are not explained, FOUND being what is."""
        rules = rules_of(self.program.manifest)
        rest = (self.source, probes)
        return replace(self, likely=likely_of(self.program, rules, self.weights, found, rest))

    def explain(
        self, found: Sequence[Explanation], unused: Callable[[], Collection[str]]
    ) -> list[Explanation]:
        """Return FOUND, with the constants explained that the converter made."""
        rest = (self.weights, self.sketches, self.source, unused)
        return explain_made(found, self.manifest, *rest)

    def contradictions(self, explained: Sequence[Explanation]) -> list[str]:
        """Return where the package's manifest says what is not so."""
        manifest = self.program.manifest
        ours = contradictions(manifest, explained, self.weights, self.sketches, self.source)
        numbers = exact_scalars(manifest, self.program.scalars())
        wrong = sorted(dict(manifest.get("exact") or {}).keys() - numbers.keys())
        others = [f"{name} is not rounded from what it is said to be" for name in wrong]
        origin = self.source.model if self.source else None
        about = [*contradicted(self.program, origin)] if origin else []
        return [*self.program.contradictions(), *ours, *others, *about]

    def exact(self, explained: Sequence[Explanation]) -> dict[str, Array]:
        """Return its constants as they were before rounding; none where not all are known."""
        if self.source is None:
            return {}
        manifest = self.manifest
        found, unknown = exact_constants(manifest, explained, self.weights, self.source)
        numbers = self.program.scalars()
        given = exact_scalars(manifest, numbers) or likely_scalars(self.numbers, numbers)
        made = {it.name for it in explained if it.kind == "made"} & found.keys()
        lone = {name: self.weights.read(name).reshape(()) for name in made if found[name].size == 1}
        likely = likely_scalars(self.numbers, lone)
        found |= {name: it.reshape(found[name].shape) for name, it in likely.items()}
        return {} if unknown else {**given, **found}
