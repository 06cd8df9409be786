"""The questions a check asks, each a function from what was measured to a Stage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from ...converters.common.dtypes import unit_roundoff
from ...converters.common.hints import counted
from ...converters.models import Signature
from ...converters.models.ports import UNKNOWN
from ...converters.values import Array
from ..goldens.golden import Golden
from ..probes.probes import Probe, masks_of
from ..reference.floors import Comparison, Floor, compare, floor_key
from ..weights.reference_index import Explanation
from .distances import Distance, describe_non_finite, resolution, select_tokens, token_errors
from .verdict import Stage

SHOWN: Final = 5  # problems quoted in a stage's line; all of them are in its figures
NOTHING_MEASURED: Final = ("unverified", "no floating-point output was compared")
INTEGERS: Final = " integers"  # ends what is said of integers that differ
STUDY: Final = "benchmarks/null_study.py"


def join(problems: Sequence[str], most: int = SHOWN) -> str:
    """Return PROBLEMS as one line, the first few of them.

    >>> join(["a", "b"])
    'a; b'
    """
    more = len(problems) - most
    return "; ".join([*problems[:most], *([f"and {more} more"] if more > 0 else [])])


def fingerprint_stage(explanations: Sequence[Explanation], disagreements: Sequence[str]) -> Stage:
    """Say whether the reference's weights explain every one of the candidate's."""
    kinds = Counter(it.kind for it in explanations)
    wrong = [f"{it.name}: {it.kind}, {it.detail}" for it in explanations if not it.ok]
    problems = [*wrong, *disagreements]
    figures: dict[str, Any] = {"kinds": dict(kinds), "problems": problems}
    if problems:
        undecided = not disagreements and all(
            it.ok or it.kind == "inconclusive" for it in explanations
        )
        status = "unverified" if undecided else "fail"
        own = [it for it in explanations if it.kind not in ("missing", "unused")]
        if len(own) > 1 and not undecided and not any(it.ok for it in own):
            foreign = f"none of the candidate's {len(own)} weights is one of the reference's: were they loaded?"
            return Stage("fingerprints", status, join([foreign, *problems], most=2), figures)
        return Stage("fingerprints", status, join(problems), figures)
    if not explanations:
        return Stage("fingerprints", "pass", "neither side has weights", figures)
    total = sum(count for kind, count in kinds.items() if kind not in ("unused", "missing"))
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return Stage("fingerprints", "pass", f"{counted(total, 'weight')} explained: {counts}", figures)


def auxiliary_stage(
    reference: Signature,
    candidate: Signature | None,
    names: Mapping[str, str] = MappingProxyType({}),
) -> Stage:
    """Say whether the candidate takes every input of the reference, in the same role.

    One that asks for more cannot be run, which says nothing of what it computes.

    NAMES are the reference's name -> the candidate's of what that calls otherwise.
    """
    if candidate is None:
        return Stage("auxiliary", "skipped", "the candidate does not declare its inputs")
    wanted = {port.name: port for port in reference.inputs}
    found = {port.name: port for port in candidate.inputs}
    problems = [
        f"{name} ({wanted[name].role}) is not an input of the candidate, so it is ignored"
        for name in wanted.keys() - found.keys()
    ]
    problems += [
        f"{name}: role {wanted[name].role} became {found[name].role}"
        for name in wanted.keys() & found.keys()
        if found[name].role not in (wanted[name].role, "", UNKNOWN)
    ]
    called = "".join(f"; {name} is {other} in the candidate" for name, other in names.items())
    if problems:
        words = f"{join(sorted(problems))}{called}"
        return Stage("auxiliary", "fail", words, {"problems": sorted(problems)})
    if unknown := sorted(found.keys() - wanted.keys()):
        words = (
            f"{join([f'{it} is asked for and unknown' for it in unknown])}; nothing was run{called}"
        )
        return Stage("auxiliary", "unverified", words, {"unknown": unknown})
    roles = ", ".join(f"{it.name}: {it.role}" if it.role else it.name for it in wanted.values())
    return Stage("auxiliary", "pass", f"inputs agree ({roles}){called}")


def output_problems(
    probe: str,
    found: Mapping[str, Array],
    wanted: Mapping[str, Array],
    masks: Mapping[str, Array | None],
) -> list[str]:
    """Return what is wrong with FOUND before any error is measured."""
    problems = [f"{probe}: {name} is missing" for name in sorted(wanted.keys() - found.keys())]
    for name in sorted(wanted.keys() & found.keys()):
        problem = _array_problem(found[name], wanted[name], masks.get(name))
        problems += [f"{probe}: {name} {problem}"] if problem else []
    return problems


def is_float(array: Array) -> bool:
    """Say whether ARRAY is floating-point, bfloat16 and float8 included."""
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))


def _array_problem(found: Array, wanted: Array, mask: Array | None) -> str:
    if found.shape != wanted.shape:
        return f"has shape {list(found.shape)}, expected {list(wanted.shape)}"
    if is_float(found) != is_float(wanted):
        return f"has dtype {found.dtype}, expected one like {wanted.dtype}"
    if is_float(wanted):
        problem = describe_non_finite(found, wanted, mask)
        return f"has {problem}" if problem else ""
    rows = [select_tokens(array, mask) for array in (found, wanted)]
    different = int(np.count_nonzero(rows[0] != rows[1]))
    return f"differs in {different} of {rows[1].size}{INTEGERS}" if different else ""


def outputs_stage(
    golden: Golden,
    probes: Sequence[Probe],
    found: Sequence[Mapping[str, Array]],
    wanted: Sequence[Mapping[str, Array]],
) -> Stage:
    """Say whether names, shapes, dtypes, infinities and integers are right; a NaN never is."""
    problems = [
        problem
        for probe, row, reference in zip(probes, found, wanted, strict=True)
        for problem in output_problems(
            probe.name, row, reference, masks_of(golden.signature, probe)
        )
    ]
    if problems:
        return Stage("outputs", "fail", join(problems), {"problems": problems})
    names = ", ".join(port.name for port in golden.signature.outputs)
    return Stage(
        "outputs", "pass", f"{names}: names, shapes, dtypes and finiteness right on every probe"
    )


def integers_alone(outputs: Stage) -> bool:
    """Say whether nothing but integers is wrong with OUTPUTS, a failed stage of them."""
    return all(problem.endswith(INTEGERS) for problem in outputs.figures.get("problems", ()))


def chosen_otherwise(stage: Stage, outputs: Stage) -> Stage:
    """Return STAGE, of 16 bits, where integers differ as OUTPUTS says; those in float32 have a stage of their own."""
    why = "rounding may choose otherwise where two numbers are nearly alike"
    status = "unverified" if stage.status == "pass" else stage.status
    return stage._replace(status=status, detail=f"{outputs.detail}; {why}; {stage.detail}")


def cosine(found: Array, wanted: Array, mask: Array | None) -> float:
    """Return the cosine between two outputs; printed because people ask for it, never decisive."""
    one, other = (
        np.nan_to_num(select_tokens(np.asarray(array, np.float64), mask)).ravel()
        for array in (found, wanted)
    )
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norms if norms else 1.0


def _row(comparison: Comparison, similarity: float, ceiling: float) -> dict[str, Any]:
    return {
        "probe": comparison.probe,
        "output": comparison.output,
        "ratio": comparison.ratio.whole,
        "ratio_worst_token": comparison.ratio.worst,
        "by_ratio": comparison.allowed,
        "allowed": max(comparison.allowed, comparison.target.whole / ceiling),
        "ceiling": ceiling,
        "error": comparison.target.whole,
        "source_error": comparison.source.whole,
        "cosine": similarity,
    }


def unstudied(name: str, description: Mapping[str, str]) -> Stage:
    """Return the stage of a runtime for which nobody has measured what a correct one does."""
    key = floor_key(*(description[part] for part in ("runtime", "device", "dtype", "accumulate")))
    return Stage(
        name, "unverified", f"no null study for {key}; {STUDY} measures one on such a machine"
    )


def error_stage(
    name: str,
    golden: Golden,
    probes: Sequence[Probe],
    found: Sequence[Mapping[str, Array]],
    wanted: Sequence[Mapping[str, Array]],
    calibration: tuple[Floor, Sequence[Mapping[str, Distance]]],
) -> Stage:
    """Say whether each output errs no more than a correct implementation may.

    The rule: ``e_target <= k max(e_source, c u)``, on the whole output and on its worst token. In
    the dtype that ships there is a ceiling besides, ``resolution``: a source may be useless in it too.
    Where it ships in that dtype itself, and is, nothing is said of a candidate that errs no more.

    Args:
        name: ``structure`` or ``precision``.
        golden: gives the signature.
        probes: inputs.
        found: the candidate's outputs per probe.
        wanted: the float64 outputs per probe.
        calibration: the floor, and the source's own errors per probe.
    """
    floor, errors = calibration
    rows = []
    for probe, row, reference, own in zip(probes, found, wanted, errors, strict=True):
        masks = masks_of(golden.signature, probe)
        for output, array in reference.items():
            if not is_float(array):
                continue
            if not all(map(math.isfinite, own[output])):
                return Stage(
                    name, "unverified", f"the source is not finite in {floor.dtype} itself"
                )
            label, mask = (probe.name, output), masks.get(output)
            comparison = compare(label, row[output], array, mask, (floor, own[output]))
            ceiling = resolution(array, mask) if name == "precision" else math.inf
            found_row = _row(comparison, cosine(row[output], array, mask), ceiling)
            first = first_beyond(probe, row[output], array, (floor, own[output]))
            rows.append(found_row | {"first_position": first})
    return _judge(name, floor, rows, golden.storage) if rows else decisions(name, golden, probes)


def decisions(name: str, golden: Golden, probes: Sequence[Probe]) -> Stage:
    """Say what integers that are all equal on PROBES show: what would have changed with a small fault, as GOLDEN knows."""
    known = golden.provenance.get("slopes", {}).get("decisions", {})
    rows = [(output, *it) for probe in probes for output, it in known.get(probe.name, {}).items()]
    if not rows:
        return Stage(name, *NOTHING_MEASURED)
    sizes: dict[str, float] = {}
    for output, _, _, size in rows:
        sizes[output] = min(size or math.inf, sizes.get(output, math.inf))
    numbers, by_rounding = (sum(row[at] for row in rows) for at in (1, 2))
    words = f"{counted(numbers, 'integer')} equal"
    if by_rounding:
        words += f"; rounding alone decides {by_rounding} of them, which show nothing"
    if blind := sorted(output for output, size in sizes.items() if math.isinf(size)):
        why = "might be the same if all that layers give were off by as much as itself"
        ask = "give inputs with more decisions (--inputs)"
        return Stage(name, "unverified", f"{words}; {', '.join(blind)} {why}: {ask}")
    size, what = max(sizes.values()), "the inputs and what layers give"
    words += f"; smallest fault that this stage would have caught: {what} off by {size:.2g}"
    return Stage(name, "pass", words, {"smallest_fault": {"what": what, "size": size}})


def first_beyond(
    probe: Probe, found: Array, wanted: Array, calibration: tuple[Floor, Distance]
) -> int | None:
    """Return the first position at which FOUND errs more than is allowed; ``None`` for none.

    It is asked of a PROBE that chooses positions, of one text.
    """
    if not probe.rows or found.shape[:2] != (1, len(probe.rows)):
        return None
    floor, own = calibration
    errors = zip(probe.rows, token_errors(found, wanted), strict=True)
    wrong = (it for it, error in errors if floor.allowed(Distance(0.0, float(error)), own) > 1)
    return next(wrong, None)


def _judge(name: str, floor: Floor, rows: list[dict[str, Any]], storage: str) -> Stage:
    """Judge ROWS of a candidate whose source ships in STORAGE."""
    worst = max(rows, key=lambda row: float(row["allowed"]))
    figures = {
        "dtype": floor.dtype,
        "k": floor.k,
        "k_token": floor.k_token,
        "c": floor.c,
        "null_99_9": floor.null_99_9,
        "cases": floor.cases,
        "rows": rows,
    }
    detail = (
        f"errs {quotient(worst['ratio'])} times as much as the source's own {floor.dtype}"
        f" ({quotient(worst['ratio_worst_token'])} at the worst token), allowed {floor.k:.2f}"
        f" ({floor.k_token:.2f}); worst probe: {worst['probe']}"
    )
    if worst["error"] > worst["ceiling"]:
        detail += f"; its error of {worst['error']:.2g} hardly leaves one token apart from another"
    if worst["allowed"] <= 1:
        return Stage(name, "pass", detail, figures)
    if floor.dtype == storage and all(map(_as_useless, rows)):
        own = f"that of the source, which ships in {storage} itself, is {worst['source_error']:.2g}"
        return Stage(name, "unverified", f"{detail}; {own}", figures)
    return Stage(name, "fail", f"{detail}. {_in_words(worst, floor)}", figures)


def _as_useless(row: Mapping[str, Any]) -> bool:
    """Say whether what is wrong in ROW, if anything, is wrong with the source too."""
    by_ratio = row["by_ratio"] <= 1 and row["source_error"] > row["ceiling"]
    return bool(row["allowed"] <= 1 or by_ratio)


def share(stage: Stage) -> float:
    """Return how much of the allowed error STAGE uses; infinity where it measured none.

    >>> share(Stage("outputs", "fail", ""))
    inf
    """
    return max((float(it["allowed"]) for it in stage.figures.get("rows", ())), default=math.inf)


def _in_words(row: Mapping[str, Any], floor: Floor) -> str:
    """Say what failed for a reader who knows nothing of ratios."""
    least = floor.c * unit_roundoff(floor.dtype)
    allowed = floor.k * max(float(row["source_error"]), least)
    return (
        f"In words: {row['output']} is off by {row['error']:.1g} of its size; rounding to"
        f" {floor.dtype} moves the source's own by {row['source_error']:.1g}, and no correct candidate"
        f" was seen beyond {allowed:.1g}"
    )


def quotient(value: float) -> str:
    """Return VALUE for a reader: two decimals below 100, no exponent below a million.

    >>> quotient(1.0), quotient(5600.0), quotient(3.2e7)
    ('1.00', '5,600', '3.2e+07')
    """
    if not math.isfinite(value) or value >= 1e6:
        return f"{value:.2g}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
