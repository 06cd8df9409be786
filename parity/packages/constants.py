"""Constants of an ML program that are no tensor of the source: explained by a rule, proven by value.

The package's manifest says how each came about. What it says counts only where the values agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...converters.captures.mlprogram.arithmetic import (
    evaluate,
    expressions_of,
    only_moves,
    rounded_once,
    rounds_to,
    tensors_of,
)
from ...converters.models.pictures import CHANNELS
from ...converters.values import Array
from ..weights.assembly import carried
from ..weights.folding import EPSILONS, agree
from ..weights.reference_index import Explanation, is_constant
from ..weights.sketches.casts import roundoff
from ..weights.sketches.sketch import Sketch, Weights
from .source import SourceTensors

PARTIAL: Final = frozenset({"split", "cropped"})  # zeros are rows of any zeros
HALVES: Final = frozenset(
    {"F16", "BF16"}
)  # a reference in these is not what was exported in float32
LITERAL: Final = frozenset({"fill", "numbers"})  # rules that need nothing of the source
NEUTRAL: Final = (0.0, 1.0)  # adding the one or multiplying by the other changes nothing
VARIANCE: Final = ".running_var"
VARIANCES: Final = tuple(float(np.float32(1 - it)) for it in EPSILONS)
HIDDEN: Final = -1e4  # a score of this size is as good as none
LEAST_HALF: Final = float(np.finfo(np.float16).min)  # sources hide by this number or a smaller one
Rules = Mapping[str, Mapping[str, Any]]


def rules_of(manifest: Mapping[str, Any]) -> Rules:
    """Return the rules in MANIFEST by constant; older manifests have names only."""
    made = manifest.get("made")
    return made if isinstance(made, dict) else {}


def explain_made(
    explanations: Sequence[Explanation],
    manifest: Mapping[str, Any],
    weights: Weights,
    sketches: Mapping[str, Sketch],
    source: SourceTensors | None,
    unused: Callable[[], Collection[str]] = tuple,
) -> list[Explanation]:
    """Return EXPLANATIONS, with those constants that the converter made explained by their rules.

    Args:
        explanations: by ``fingerprints.explain``.
        manifest: of the package.
        weights: its constants.
        sketches: of the reference's tensors.
        source: the reference's tensors; ``None`` where only a golden is at hand.
        unused: returns the tensors of the reference that no output needs.
    """
    rules, found = rules_of(manifest), []
    for it in explanations:
        rule = rules.get(it.name) or {}
        if it.name not in weights.headers or (is_explained(it) and not tells_more(rule, it)):
            found.append(it)
        else:
            explained = made(it, weights.read(it.name), rule, source)
            found.append(it if is_explained(it) and not explained.parts else explained)
    rest = list(absent(found, weights, sketches, unused))
    renewed = {it.name for it in rest}
    return [*(it for it in found if it.kind != "missing" and it.name not in renewed), *rest]


def is_explained(it: Explanation) -> bool:
    """Say whether no rule is to say where the constant of IT comes from."""
    return it.ok and it.kind not in PARTIAL


def tells_more(rule: Mapping[str, Any], it: Explanation) -> bool:
    """Say whether RULE has IT made of other tensors besides the one that it equals.

    So it is with a weight and its norms, where the weight has these norms already.
    """
    made_of = {*tensors_of(rule)}
    return it.source in made_of and len(made_of) > 1


def absent(
    found: Sequence[Explanation],
    weights: Weights,
    sketches: Mapping[str, Sketch],
    unused: Callable[[], Collection[str]],
) -> Iterator[Explanation]:
    """Yield what becomes of the reference's tensors that no constant carries, by what is FOUND."""
    ours = [it for it in found if it.name in weights.headers]
    decided = {"unused"} if all(it.ok for it in ours) else {"unused", "inconclusive"}
    known = {it.name for it in found if it.kind in decided}
    own = with_twins(carried(ours), sketches)
    lost = sorted(sketches.keys() - own - known)
    needless = unused() if lost else ()
    for name in lost:
        it = Explanation(name, name, "missing", f"no constant carries {name}", ok=False)
        spared = it._replace(kind="unused", detail="no output needs it", ok=True)
        yield spared if name in needless else left_out(it, sketches)


def with_twins(names: Collection[str], sketches: Mapping[str, Sketch]) -> set[str]:
    """Return NAMES, and the tensors of the same bytes: what is computed from either is one constant for both."""
    own = {name: (it.dtype, it.shape, it.hashes.get(it.dtype)) for name, it in sketches.items()}
    kept = {own[name] for name in names if name in own}
    return {*names, *(name for name, it in own.items() if it in kept)}


def made(
    it: Explanation, array: Array, rule: Mapping[str, Any], source: SourceTensors | None
) -> Explanation:
    """Return what RULE makes of the explanation IT of the constant ARRAY, where the values agree."""
    exact = exact_by_rule(array, rule, source)
    if exact is not None:
        parts = source.parts(rule) if source else ()
        explained = as_made(it, describe(rule))
        return explained._replace(source=parts[0] if parts else None, parts=parts)
    if is_constant(array) and array.ndim:
        detail = f"{array.reshape(-1)[0]:g} everywhere, as a converter fills it"
        return as_made(it, detail)
    if is_mask(array):
        return as_made(it, f"a mask: 0, or {array.min():g}")
    if not rule and source and (name := _buffer_like(array, source)):
        return as_made(it, name)
    if rule and source is None:
        return it._replace(kind="inconclusive", detail="needs the source's own values")
    return it


def is_mask(array: Array) -> bool:
    """Say whether ARRAY is zeros and one number that leaves nothing of what it is added to.

    >>> is_mask(np.float32([[0, -3e4], [0, 0]])), is_mask(np.float32([0, 0.5]))
    (True, False)
    """
    least = array.min() if array.size else 0.0
    return bool(least <= HIDDEN and np.isin(array, (0, least)).all())


def _buffer_like(array: Array, source: SourceTensors) -> str | None:
    """Return the tensor that the source computes itself and ARRAY is, whoever exported it."""
    same = (name for name, it in source.buffers.items() if it.size > 1 and rounds_to(it, array))
    return next(same, None)


def as_made(it: Explanation, detail: str) -> Explanation:
    """Return IT as a constant that the converter made, as DETAIL says."""
    plain = it._replace(source=None, axes=None, also=(), parts=(), amount=None)
    return plain._replace(kind="made", detail=detail, ok=True)


def describe(rule: Mapping[str, Any]) -> str:
    """Return RULE in words.

    >>> describe({"value": ["add", {"key": "w"}, 1.0]})
    'add(w, 1)'
    """
    if "fill" in rule:
        return f"{rule['fill']:g} everywhere"
    if "numbers" in rule:
        return f"{', '.join(f'{float(it):g}' for it in rule['numbers'])} of channels"
    if "computed" in rule:
        applied, where = rule.get("applied"), f", in {rule['in']}" if "in" in rule else ""
        return f"{applied}({rule['computed']})" if applied else f"{rule['computed']}{where}"
    return _words(rule.get("value", rule))


def _words(expression: Any) -> str:
    if isinstance(expression, Mapping):
        return str(next(iter(expression.values())))
    if isinstance(expression, list):
        return f"{expression[0]}({', '.join(map(_words, expression[1:]))})"
    return f"{expression:g}"


def exact_by_rule(
    array: Array, rule: Mapping[str, Any], source: SourceTensors | None
) -> Array | None:
    """Return the numbers that RULE says ARRAY was rounded from, if that is so; else ``None``.

    A rule may say several things, which have to hold together.
    """
    alone = ({"value": it} for it in expressions_of(rule)[1:])
    if any(exact_by_rule(array, it, source) is None for it in alone):
        return None
    try:
        exact = _value(rule, source)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None  # no rule at all, whoever wrote it
    if exact is None:
        return None
    exact = np.broadcast_to(exact, array.shape) if "fill" in rule else exact
    exact = hidden_alike(exact, array) if "computed" in rule else exact
    value = rule.get("value")
    if array.dtype == np.float32 and (only_moves(value) or rounded_once(value)):
        same = np.array_equal(exact.ravel().astype(np.float32), array.ravel())
        return exact.reshape(array.shape) if same else None
    return exact.reshape(array.shape) if bears_out(exact, array) else None


def hidden_alike(exact: Array, array: Array) -> Array:
    """Return EXACT; where it hides a score, as ARRAY does by another large number, with the number of ARRAY.

    >>> hidden_alike(np.float32([0.5, -3e38]), np.float16([0.5, -3e4])).tolist()
    [0.5, -30000.0]
    """
    if exact.size != array.size:
        return exact
    both = (exact.reshape(array.shape) <= LEAST_HALF) & (array <= HIDDEN)
    return np.where(both, array, exact.reshape(array.shape))


def bears_out(exact: Array, array: Array) -> bool:
    """Say whether ARRAY may be EXACT rounded; sums that were formed in float32 err by a few units more.

    >>> bears_out(np.full(9, 0.3), np.full(9, np.float32(0.3) * (1 + 2.0**-23)))
    True
    """
    if rounds_to(exact, array):
        return True
    single = array.dtype == np.float32 and exact.size == array.size
    return single and agree(array, exact.reshape(array.shape), roundoff("F32"))


def in_float32(rule: Mapping[str, Any], source: SourceTensors) -> Array | None:
    """Return what RULE makes of SOURCE, computed in float32 although the rule says another dtype; else ``None``."""
    try:
        exact = _value({name: it for name, it in rule.items() if name != "in"}, source)
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
        return None
    return None if exact is None else exact.astype(np.float32)


def _value(rule: Mapping[str, Any], source: SourceTensors | None) -> Array | None:
    if "fill" in rule:
        return np.asarray(float(rule["fill"]))
    if "numbers" in rule:
        given = np.asarray(rule["numbers"], np.float64)
        return given if given.size <= CHANNELS else None
    if source is None:
        return None
    if "computed" in rule:
        known = source.in_half[rule["in"]] if "in" in rule else source.computed
        found = known[rule["computed"]].value
        found = found.T if rule.get("turned") else found
        return (
            evaluate([rule["applied"], {"key": ""}], lambda *_: found)
            if "applied" in rule
            else found
        )
    if "buffer" in rule:
        return source.read("buffer", rule["buffer"])
    return evaluate(rule["value"], source.read) if "value" in rule else None


def left_out(it: Explanation, sketches: Mapping[str, Sketch]) -> Explanation:
    """Excuse the tensor of IT that is missing, where it is all zeros or ones and so without effect.

    So is a variance that is one with its epsilon. Whether it has none where it stood is what the outputs show.
    """
    if it.kind != "missing" or it.name not in sketches:
        return it
    moments = sketches[it.name].moments
    neutral = {*NEUTRAL, *(VARIANCES if it.name.endswith(VARIANCE) else ())}
    if moments.not_finite or moments.least != moments.largest or moments.least not in neutral:
        return it
    detail = f"{moments.least:g} everywhere, which a converter leaves out"
    return it._replace(kind="unused", detail=detail, ok=True)


def contradictions(
    manifest: Mapping[str, Any],
    explanations: Sequence[Explanation],
    weights: Weights,
    sketches: Mapping[str, Sketch],
    source: SourceTensors | None,
) -> Iterator[str]:
    """Yield where what MANIFEST says of constants is not so.

    A constant that no value explains is left aside: it fails by itself, and may be the one at fault.
    """
    found = {it.name: it for it in explanations if it.ok and it.name in weights.headers}
    entries, rules = dict(manifest.get("weights") or {}), rules_of(manifest)
    for name in sorted({*entries, *rules} - {*weights.headers}):
        yield f"{name} is named, and is no constant of the program"
    for name in found.keys() & entries.keys():
        key = str(entries[name]["key"])
        own = source.own(key) if source else key
        yield from _wrong_key(found[name], own, entries[name], sketches)
    known = {name for name, it in rules.items() if it and (source or it.keys() & LITERAL)}
    for name in found.keys() & known:
        if exact_by_rule(weights.read(name), rules[name], source) is None:
            yield f"{name} is said to be {describe(rules[name])}, and is not"


def _wrong_key(
    it: Explanation, key: str, entry: Mapping[str, Any], sketches: Mapping[str, Sketch]
) -> Iterator[str]:
    digest = entry.get("xxh3")
    known = {it.source, *it.also, *it.parts} - {None}
    if known and key in sketches and key not in known:
        yield f"{it.name} carries the values of {it.source or it.parts[0]}, not of {key}"
    elif it.kind in ("equal", "cast") and digest is not None and it.source:
        sketch = sketches[key if key in sketches else it.source]
        rounded = entry.get("dtype") == "float32" and sketch.dtype in HALVES
        if str(digest).removeprefix("xxh3:") not in sketch.hashes.values() and not rounded:
            yield f"{it.name}: {key} has another hash"
