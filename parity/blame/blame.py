"""Name the sites that are at fault: each computes from the reference's inputs and is judged alone.

Every site's output, and where the runner can its first input, is replaced by the reference's
recording (teacher forcing), so errors do not travel. A parent then errs only by what it computes
between its children: the attention core, a residual sum, a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from ...converters.common.dtypes import unit_roundoff
from ...converters.runtimes.base import Runner
from ...converters.values import Array
from ..check.distances import Distance, distance
from ..probes.probes import Probe
from ..reference.floors import Floor
from ..weights.reference_index import Explanation
from .diagnosis import BEFORE, accounted, hinted
from .evidence import INPUT, WHOLE_MODEL, Observation, multiple

Recording = Mapping[str, Array]  # site -> output; site + "|in" -> first input

# One operation at a time, correct implementations differ by more than whole models do. One model was
# measured (benchmarks/known_faults.py, "local null"): MiniLM captured in MLX, float32, two BLAS.
# ``null_99_9`` is the largest ratio seen, not a quantile; k leaves three times as much and was set
# after the catalogue's faults had been seen too. A study over widths and lengths is still to be made.
LOCAL_FLOOR: Final = Floor(k=16.0, k_token=24.0, c=1.0, null_99_9=5.4, cases=2)
SYSTEMIC: Final = 0.5  # share of leaf sites that must err for the fault to be everywhere
SHAPE: Final = "shape"  # a kind that says nothing of what is computed
SAME_FACTOR: Final = 0.01  # a scale that is kept in 16 bits is off by less


class Fault(NamedTuple):
    """A site that errs, and why.

    Attributes:
        site: path of the submodule; ``(model)`` for what concerns all of it.
        kind: ``activation``, ``epsilon``, ``transposed`` ..., see ``diagnosis.HYPOTHESES``.
        evidence: one line with figures.
        ratio: local error over the source's own.
    """

    site: str
    kind: str
    evidence: str
    ratio: float


class LocalError(NamedTuple):
    """The local error of a site on one probe.

    Attributes:
        site: path; with ``|in`` appended, what reached the site before it was corrected.
        probe: name of the probe.
        error: against the reference.
        own: the source's own, from the same inputs.
        ratio: whole error over the source's own, or over the floor.
        allowed: share of the allowed error that is used; a fault above 1.
    """

    site: str
    probe: str
    error: Distance
    own: Distance
    ratio: float
    allowed: float


def forced(recording: Recording) -> dict[str, Array]:
    """Return RECORDING as corrections for a run in float32 or narrower."""
    return {site: narrowed(array) for site, array in recording.items()}


# What was seen, on which probe, the candidate corrected at which sites -> site, kind and evidence.
Explain = Callable[[Observation, Probe, Collection[str]], tuple[str, str, str] | None]


class Recordings(NamedTuple):
    """What the sites of a candidate are held against.

    Attributes:
        probes: what was run.
        reference: the sites of each, in float64.
        own: the source's own, in float32 as a rule, from the reference's inputs.
        corrected_at: returns its own where the sites that it is given alone are the reference's. What a
            candidate has no site for it computes itself, and errs by that in the next one.
        explain: finds what no recorded value tells, in the source itself.
    """

    probes: Sequence[Probe]
    reference: Sequence[Recording]
    own: Sequence[Recording]
    corrected_at: Callable[[Collection[str]], Sequence[Recording]] | None = None
    explain: Explain | None = None


def blame(
    recorded: Recordings,
    runner: Runner,
    *,
    explanations: Sequence[Explanation] = (),
    complete: bool = False,
) -> list[Fault]:
    """Return the faults of the candidate in RUNNER, worst first.

    Args:
        recorded: of the first probes.
        runner: the candidate; only sites that it records are corrected.
        explanations: of the candidate's weights; a wrong weight names its site's fault.
        complete: whether RUNNER records every module that has weights, if it is computed.
    """
    own, corrected_at = recorded.own, recorded.corrected_at
    corrected: dict[str, tuple[Probe, set[str]]] = {}
    worst: dict[str, tuple[LocalError, Observation]] = {}
    errors: list[LocalError] = []
    order: dict[str, None] = {}
    for number, (probe, wanted, _) in enumerate(
        zip(recorded.probes, recorded.reference, own, strict=False)
    ):
        sites = runner.trace(probe.inputs, forced(wanted)).sites
        if corrected_at and not wanted.keys() <= sites.keys():
            own, corrected_at = corrected_at(sites), None
        if complete and (lost := not_computed(wanted, sites, explanations)):
            return lost
        order |= dict.fromkeys(sites)
        corrected[probe.name] = probe, {it for it in wanted if fits(wanted[it], sites.get(it))}
        for error in local_errors(probe, wanted, own[number], sites, LOCAL_FLOOR):
            errors.append(error)
            before = worst.get(error.site)
            if error.allowed > (before[0].allowed if before else 1):
                worst[error.site] = error, _observe(error, probe, wanted, sites[error.site])
    holders = {parent(site) for wanted in recorded.reference for site in wanted}
    worst = without_other_cuts(worst)
    explain = partial(_explained, recorded.explain, corrected)
    return _systemic(errors, worst, holders) or _faults(worst, explanations, [*order], explain)


def _explained(
    explain: Explain | None,
    corrected: Mapping[str, tuple[Probe, set[str]]],
    error: LocalError,
    it: Observation,
) -> tuple[str, str, str] | None:
    """Return what EXPLAIN finds of IT, on the probe of ERROR, where so many sites were CORRECTED."""
    return explain(it, *corrected[error.probe]) if explain else None


def fits(wanted: Array, found: Array | None) -> bool:
    """Say whether a site has what was FOUND, in the shape of what is WANTED: then it was corrected."""
    return found is not None and found.shape == wanted.shape


def not_computed(
    reference: Recording, sites: Recording, explanations: Sequence[Explanation]
) -> list[Fault]:
    """Return the modules with weights that REFERENCE has and SITES of a candidate have not, nor below.

    What follows one gets other inputs than the reference's, so no other fault is told apart.
    """
    computed = {holder for site in sites for holder in holders_of(site.removesuffix(INPUT))}
    direct = {parent(one.source or one.name) for one in explanations}
    holding = {holder for it in direct for holder in holders_of(it)}
    lost = {it for it in reference if it in holding and it not in computed}
    for it in sorted(holding & reference.keys(), key=len, reverse=True):
        inner = {one for one in holding if parent(one) == it}
        own = it in direct and not passes_on(
            it, reference, sites
        )  # computes with weights of its own
        if inner and inner <= lost and not own:  # all that has weights in it is lost
            lost.add(it)
    words = "the reference computes it, the candidate nothing in its place"
    outermost = (it for it in reference if it in lost and parent(it) not in lost)
    return [Fault(it, "skipped", words, float("inf")) for it in outermost]


def passes_on(site: str, reference: Recording, sites: Recording) -> bool:
    """Say whether SITE has what the reference gives to it, to the last bit of float32."""
    given = reference.get(site + INPUT)
    return given is not None and site in sites and np.array_equal(sites[site], narrowed(given))


def narrowed(array: Array) -> Array:
    """Return ARRAY in float32; a float64 mask's least number is minus infinity there."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def holders_of(site: str) -> list[str]:
    """Return SITE and the paths of the modules around it.

    >>> holders_of("layer.0.norm")
    ['layer.0.norm', 'layer.0', 'layer']
    """
    parts = site.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def without_other_cuts(
    worst: Mapping[str, tuple[LocalError, Observation]],
) -> dict[str, tuple[LocalError, Observation]]:
    """Return WORST without pairs of sites that are a multiple each, together one.

    The candidate multiplies after a module and the reference in it, such as an embedding's scale.
    """
    found = {site: multiple(it) for site, (_, it) in worst.items()}
    factors = {site: it for site, it in found.items() if it and it > 0 and not 0.9 < it < 1 / 0.9}
    other = {
        site
        for site, factor in factors.items()
        if any(abs(factor * it - 1) <= SAME_FACTOR for it in factors.values())
    }
    return {site: it for site, it in worst.items() if site not in other}


def local_errors(
    probe: Probe, reference: Recording, source: Recording, sites: Recording, floor: Floor
) -> Iterator[LocalError]:
    """Yield the error of each site that all three recordings have."""
    mask = probe.inputs.get("attention_mask")
    for site, found in sites.items():
        if site not in reference or site not in source:
            continue
        own = distance(source[site], reference[site], mask)
        if found.shape != reference[site].shape:
            inf = float("inf")
            yield LocalError(site, probe.name, Distance(inf, inf), own, inf, inf)
            continue
        error = distance(found, reference[site], mask)
        ratio = floor.ratio(error, own).whole
        yield LocalError(site, probe.name, error, own, ratio, floor.allowed(error, own))


def _observe(error: LocalError, probe: Probe, reference: Recording, found: Array) -> Observation:
    site = error.site
    own = max(error.own.whole, LOCAL_FLOOR.c * unit_roundoff(LOCAL_FLOOR.dtype))
    inputs = {path: reference[path] for path in _entries(site, reference)}
    mask = padding_mask(probe.inputs)
    return Observation(site, found, reference[site], own, mask, inputs, reference)


def padding_mask(inputs: Mapping[str, Array]) -> Array | None:
    """Return which tokens of INPUTS are none of padding, ``(batch, sequence)``, if one input says it.

    A module of one's own may call it otherwise than transformers; what PyTorch calls a padding mask
    is true at padding.

    >>> padding_mask({"x": np.zeros((1, 2)), "key_padding_mask": np.array([[False, True]])})
    array([[ True, False]])
    """
    if "attention_mask" in inputs:
        return inputs["attention_mask"]
    masks = {
        name: array
        for name, array in inputs.items()
        if name.endswith("mask") and array.ndim == 2 and array.dtype.kind in "biu"
    }
    if len(masks) != 1:
        return None
    [(name, mask)] = masks.items()
    return np.asarray(mask == 0) if name.endswith("padding_mask") else mask


def _entries(site: str, reference: Recording) -> list[str]:
    inner = [path for path in reference if parent(path) == site and not path.endswith(INPUT)]
    return [path for path in (site + INPUT, *inner) if path in reference]


def parent(site: str) -> str:
    """Return the path of the module that holds SITE.

    >>> parent("encoder.layer.0"), parent("encoder")
    ('encoder.layer', '')
    """
    return site.rpartition(".")[0]


def culprit(site: str, order: Sequence[str] = ()) -> str:
    """Return who is to blame for SITE: for what reached a module, the module that holds it.

    ORDER are all sites, as they were met. A module that is none of them, whose parts the candidate keeps
    elsewhere, is not to blame for what reaches the first of its parts.

    >>> culprit("layer.0.norm|in"), culprit("layer.0.norm")
    ('layer.0', 'layer.0.norm')
    >>> [culprit(f"block.mlp.{it}|in", ["block", "block.mlp.0|in", "block.mlp.2|in"]) for it in (0, 2)]
    ['block', 'block.mlp']
    """
    holder = parent(site) if site.endswith(INPUT) else site
    before = order[: order.index(site)] if site in order else ()
    known = {it.removesuffix(INPUT) for it in order} if site in order else {holder}
    while holder and holder not in known and not any(it.startswith(f"{holder}.") for it in before):
        holder = parent(holder)
    return holder or WHOLE_MODEL


def _systemic(
    errors: Sequence[LocalError],
    worst: Mapping[str, tuple[LocalError, Observation]],
    holders: Collection[str],
) -> list[Fault]:
    """Return one fault if most leaf sites err alike, else none; the reference's HOLDERS are no leaves.

    What a candidate skips has no sites of its own, yet is no leaf for that.
    """
    leaves = {it.site for it in errors if not it.site.endswith(INPUT)} - set(holders)
    failing = [worst[site][0] for site in leaves if site in worst]
    other_shapes = any(np.isinf(it.error.whole) for it in failing)
    if other_shapes or len(failing) < max(4, SYSTEMIC * len(leaves)):
        return []
    sizes = np.array([it.error.whole for it in failing])
    dtype = _like_rounding(float(np.median(sizes)))
    evidence = (
        f"{len(failing)} of {len(leaves)} leaf sites err, by {sizes.min():.1g} to {sizes.max():.1g},"
        f" as if {f'rounded to {dtype}' if dtype else 'all were at fault'}"
    )
    ratio = float(np.median([it.ratio for it in failing]))
    return [Fault(WHOLE_MODEL, "cast" if dtype else "systemic", evidence, ratio)]


def _like_rounding(error: float) -> str | None:
    """Return the dtype whose rounding errs by about ERROR (a third of u for random mantissas)."""
    sizes = {name: error / (unit_roundoff(name) / 3) for name in ("bfloat16", "float16")}
    name = min(sizes, key=lambda it: abs(np.log(max(sizes[it], 1e-300))))
    return name if 1 / 6 <= sizes[name] <= 6 else None


FROM_WEIGHTS: Final[Mapping[str, str]] = {
    "unmerged": "merge missing",
    "misscaled": "merge missing",
    "transposed": "transposed",
    "permuted": "transposed",
    "shuffled": "permuted",
    "flipped": "permuted",
    "scaled": "scale",
    "offset": "offset",
    "rounded": "cast",
    "zeroed": "zeroed",
    "exchanged": "exchanged",
}


def _faults(
    worst: Mapping[str, tuple[LocalError, Observation]],
    explanations: Sequence[Explanation],
    order: Sequence[str],
    explain: Callable[[LocalError, Observation], tuple[str, str, str] | None],
) -> list[Fault]:
    wrong: dict[str, list[Explanation]] = {}
    for it in explanations:
        if not it.ok:
            wrong.setdefault(parent(it.source or it.name), []).append(it)
    faults: dict[str, Fault] = {}
    for site, (error, observation) in sorted(worst.items(), key=lambda it: -it[1][0].allowed):
        guilty = culprit(site, order)
        if guilty in faults:
            continue
        if guilty in wrong and not site.endswith(INPUT):
            named = guilty, *of_weights(wrong[guilty])
        elif found := accounted(observation):
            before = found[0] == BEFORE
            named = (
                (culprit(site + INPUT, order), "branch", found[1]) if before else (guilty, *found)
            )
        else:
            named = explain(error, observation) or (guilty, *hinted(observation))
        if named[0] not in faults or faults[named[0]].kind == SHAPE:
            faults[named[0]] = Fault(*named, error.ratio)
    return without_other_outputs([*faults.values()])


def of_weights(wrong: Sequence[Explanation]) -> tuple[str, str]:
    """Return kind and evidence of a module of which the weights WRONG are at fault."""
    kinds = [FROM_WEIGHTS.get(it.kind, "weight") for it in wrong]
    kind = next((it for it in kinds if it != "weight"), "weight")
    return kind, "; ".join(f"{it.name}: {it.detail}" for it in wrong[:2])


def without_other_outputs(faults: list[Fault]) -> list[Fault]:
    """Return FAULTS without modules whose output has another shape, where some place else errs too.

    Of several outputs of a module a capture records the one that is used.
    """
    others = [it for it in faults if it.kind != SHAPE]
    return others or faults
