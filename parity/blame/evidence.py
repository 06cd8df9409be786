"""What kind of fault a site has: small tests on its recorded values, each answers with figures.

A hypothesis proposes what the site computes instead of what it should. It holds if that accounts for
the difference, down to the noise that the source itself has there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ...converters.common.dtypes import dtype_of
from ...converters.values import Array
from ..check.distances import describe_non_finite, select_tokens
from ..weights.orders import describe_order, match_rows

INPUT: Final = "|in"
WHOLE_MODEL: Final = "(model)"
RESIDUE: Final = 0.05  # share of a difference that a hypothesis may leave unexplained
NOISE: Final = 4.0  # ... or this many times the source's own error, whichever is more


@dataclass(frozen=True, eq=False)
class Observation:
    """One site that errs, on the probe where it errs most.

    Attributes:
        site: its path.
        found: what it computed from the reference's inputs.
        wanted: what the reference has, float64.
        own: the source's own relative error there.
        mask: attention mask of the probe, shape ``(batch, sequence)``.
        inputs: what entered: the site's own input, the outputs of its children; by path.
        recording: all that the reference recorded for this probe.
    """

    site: str
    found: Array
    wanted: Array
    own: float
    mask: Array | None = None
    inputs: Mapping[str, Array] = field(default_factory=dict)
    recording: Mapping[str, Array] = field(default_factory=dict)

    def rows(self, array: Array) -> Array:
        """Return ARRAY in float64 with one row per token that counts."""
        return select_tokens(np.asarray(array, np.float64), self.mask)

    @property
    def pair(self) -> tuple[Array, Array]:
        """Rows found and rows wanted."""
        return self.rows(self.found), self.rows(self.wanted)

    def entries(self) -> Iterator[tuple[str, Array, Array, Array]]:
        """Yield path and rows of each input that has the token count of the output, and the pair."""
        found, wanted = self.pair
        for path, array in self.inputs.items():
            rows = self.rows(array)
            if len(rows) == len(wanted):
                yield path, rows, found, wanted

    def accounts(self, found: Array, wanted: Array, proposed: Array) -> bool:
        """Return whether PROPOSED, instead of WANTED, accounts for FOUND."""
        allowed = max(RESIDUE * norm(found - wanted), NOISE * self.own * norm(wanted))
        return norm(found - proposed) <= min(allowed, norm(found - wanted) / 2)


def norm(rows: Array) -> float:
    """Return the Euclidean norm of all elements."""
    return float(np.linalg.norm(rows))


def siblings(it: Observation) -> dict[str, Array]:
    """Return what the submodules beside the one that IT reaches compute, by path."""
    holder = it.site.removesuffix(INPUT).rpartition(".")[0]
    return {
        path: array
        for path, array in it.recording.items()
        if path.rpartition(".")[0] == holder and not path.endswith(INPUT)
    }


def before(it: Observation) -> Iterator[tuple[str, Array, Array, Array]]:
    """Yield what :meth:`Observation.entries` does, then the same of the siblings of what IT reaches."""
    yield from it.entries()
    found, wanted = it.pair
    for path, array in (siblings(it) if it.site.endswith(INPUT) else {}).items():
        rows = it.rows(array)
        if len(rows) == len(wanted):
            yield path, rows, found, wanted


def features_last(it: Observation) -> Observation:
    """Return IT with all axes between the first and the last merged, where there are several."""

    def merged(array: Array) -> Array:
        return array.reshape(len(array), -1, array.shape[-1]) if array.ndim > 3 else array

    inputs, recording = (
        {path: merged(array) for path, array in part.items()} for part in (it.inputs, it.recording)
    )
    found, wanted = merged(it.found), merged(it.wanted)
    return replace(it, found=found, wanted=wanted, inputs=inputs, recording=recording, mask=None)


Hypothesis = Callable[[Observation], str | None]


def shape(it: Observation) -> str | None:
    """Another shape."""
    if it.found.shape == it.wanted.shape:
        return None
    return f"shape {list(it.found.shape)}, expected {list(it.wanted.shape)}"


def non_finite(it: Observation) -> str | None:
    """Infinities or NaNs where the reference has none."""
    wrong = describe_non_finite(it.found, it.wanted, it.mask)
    if not wrong:
        return None
    largest = float(np.max(np.abs(it.wanted), initial=0.0, where=np.isfinite(it.wanted)))
    return f"{wrong}; the reference reaches {largest:.3g} (float16 ends at 65504)"


def narrowed(it: Observation) -> str | None:
    """Values of a narrower dtype than the one they are stored in."""
    for name in ("bfloat16", "float16"):
        kind = dtype_of(name)
        if it.found.dtype.itemsize <= kind.itemsize:
            continue
        with np.errstate(over="ignore"):
            if np.array_equal(it.found.astype(kind).astype(it.found.dtype), it.found):
                return f"all {it.found.size} values are {name} numbers stored as {it.found.dtype}"
    return None


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


def _tanh_gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(x / 2)))


ACTIVATIONS: Final[Mapping[str, Callable[[Array], Array]]] = {
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "gelu (tanh)": _tanh_gelu,
    "gelu (sigmoid)": lambda x: x * _sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu squared": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "leaky relu (0.01)": lambda x: np.where(x > 0, x, 0.01 * x),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "identity": lambda x: x,
}
SAMPLE: Final = 1 << 14  # elements on which activations are told apart


def activation(it: Observation) -> str | None:
    """Another activation function than the reference's."""
    for path, *arrays in before(it):
        if arrays[0].shape != arrays[2].shape:
            continue
        x, found, wanted = (rows.reshape(-1)[:SAMPLE] for rows in arrays)
        right = _activation(x, wanted, 1e-6 * norm(wanted))
        wrong = _activation(x, found, norm(found - wanted) / 4)
        if right and wrong and right != wrong:
            return f"its output is {wrong} of {path}, the reference's is {right}"
    return None


def _activation(x: Array, y: Array, allowed: float) -> str | None:
    gap, name = min((norm(function(x) - y), name) for name, function in ACTIVATIONS.items())
    return name if gap <= allowed else None


def transposed(it: Observation) -> str | None:
    """A square weight transposed: then x_s . W x_t and x_t . W x_s change places for all tokens."""
    for path, *arrays in it.entries():
        if arrays[0].shape != arrays[2].shape or len(arrays[0]) < 8:
            continue
        x, found, wanted = (rows[:512] - rows[:512].mean(axis=0) for rows in arrays)
        form, turned = x @ wanted.T, x @ found.T
        size = max(norm(form), 1e-300)  # zero where all rows are alike
        gap = norm(turned - form.T) / size
        if gap <= max(1e-3, NOISE * it.own) < norm(turned - form) / size:
            return f"the bilinear form of {path} and the output is the reference's transposed ({gap:.0e})"
    return None


def permuted(it: Observation) -> str | None:
    """Channels, such as attention heads, in another order."""
    found, wanted = it.pair
    if found.ndim != 2 or len(found) < 4 or found.shape[1] < 2:
        return None
    signs = np.random.Generator(np.random.PCG64(0)).normal(size=len(found))
    found, wanted = (signs @ (rows - rows.mean(axis=0)) for rows in (found, wanted))
    limit = 1e-5 * float(np.sqrt(np.mean(wanted**2))) + 1e-300
    order = match_rows(found, wanted, limit)
    if order is None or len(set(order.tolist())) < len(order):
        return None
    identity = np.array_equal(order, np.arange(len(order)))
    return None if identity else describe_order(order.tolist(), "channels")


def flattened(it: Observation) -> str | None:
    """Features of an image that were flattened with channels last, or first."""
    found, wanted = it.pair
    if found.ndim != 2 or found.shape != wanted.shape:
        return None
    count, width = wanted.shape
    for channels in (size for size in range(2, width // 2 + 1) if width % size == 0):
        turned = wanted.reshape(count, channels, -1).swapaxes(1, 2).reshape(count, width)
        if it.accounts(found, wanted, turned):
            each = width // channels
            return (
                f"the reference's {channels} rows of {each} lie as {each} rows of {channels}:"
                " flattened with channels in another place"
            )
    return None


def bias(it: Observation) -> str | None:
    """A constant vector too much or too little."""
    found, wanted = it.pair
    if len(found) < 4:
        return None
    constant = np.mean(found - wanted, axis=0)
    if not it.accounts(found, wanted, wanted + constant):
        return None
    size = norm(constant) * math.sqrt(len(found)) / max(norm(wanted), 1e-300)
    return f"off by the same vector at every token ({size:.2g} of the output): a bias is missing or changed"


def scale(it: Observation) -> str | None:
    """A multiple of what it should be."""
    factor = multiple(it)
    return None if factor is None else f"{factor:.6g} times the reference"


def multiple(it: Observation) -> float | None:
    """Return by which factor the output is what it should be; ``None`` where it is no multiple."""
    if it.found.shape != it.wanted.shape or not np.isfinite(it.found).all():
        return None
    found, wanted = it.pair
    factor = float(np.sum(found * wanted) / max(norm(wanted) ** 2, 1e-300))
    return factor if it.accounts(found, wanted, factor * wanted) else None


def mixture(it: Observation) -> str | None:
    """Another share of a recorded value, such as a residual branch scaled or left out."""
    found, wanted = it.pair
    for path, array in it.recording.items():
        if array.shape != it.wanted.shape or path == it.site:
            continue
        part = it.rows(array)
        share = float(np.sum((found - wanted) * part) / max(norm(part) ** 2, 1e-300))
        if it.accounts(found, wanted, wanted + share * part):
            return f"{share:+.4g} times {path} on top of the reference: that branch has factor {1 + share:.4g}"
    return None


def mask(it: Observation) -> str | None:
    """Errors only in the samples that have padding."""
    if it.mask is None or it.found.shape[: it.mask.ndim] != it.mask.shape:
        return None
    padded = np.any(it.mask == 0, axis=1)
    if padded.all() or not padded.any():
        return None
    errors = [_relative(it, sample) for sample in range(len(it.mask))]
    inside, outside = np.array(errors)[padded], np.array(errors)[~padded]
    if outside.max() > max(NOISE * it.own, inside.max() / 100):
        return None
    return (
        f"errs by up to {inside.max():.2g} in the {padded.sum()} samples with padding,"
        f" by {outside.max():.2g} in the {len(padded) - padded.sum()} without"
    )


def _relative(it: Observation, sample: int) -> float:
    kept = slice(None) if it.mask is None else it.mask[sample] != 0
    found = np.asarray(it.found[sample][kept], np.float64)
    return norm(found - it.wanted[sample][kept]) / max(norm(it.wanted[sample][kept]), 1e-300)


def position(it: Observation) -> str | None:
    """Errors that begin at a position, or grow with it."""
    if it.found.ndim != 3 or it.found.shape[1] < 8:
        return None
    errors = _by_position(it)
    if first := first_wrong(it):
        return f"exact up to position {first - 1}, wrong from {first} by {errors[first:].max():.2g}"
    third = len(errors) // 3
    early, late = float(errors[:third].mean()), float(errors[-third:].mean())
    if late > 3 * early and np.all(errors[:2] <= errors[-third:].min()):
        return f"the error grows with position, from {early:.2g} to {late:.2g}"
    return None


SHIFTS: Final = (1, -1, 2, -2, 3, -3)


def shifted(it: Observation) -> str | None:
    """At each position what belongs to another, as with positions that begin at 1."""
    found, wanted = it.found, it.wanted
    if found.shape != wanted.shape or found.ndim < 2 or found.shape[-2] < 8:
        return None
    for step in SHIFTS:
        here, there = (slice(max(0, by), min(0, by) or None) for by in (-step, step))
        own, others = found[..., here, :], wanted[..., there, :]
        if norm(own - others) <= NOISE * it.own * norm(others):
            return f"at each position it has what the reference has at {step:+d} from there"
    return None


def first_wrong(it: Observation) -> int:
    """Return the position from which on almost all are wrong, those before being right; 0 for none."""
    if it.found.ndim != 3 or it.found.shape[1] < 8:
        return 0
    quiet = quiet_positions(it)
    first = int(np.argmin(quiet))
    return first if quiet[:first].all() and np.mean(~quiet[first:]) > 0.9 else 0


def quiet_positions(it: Observation) -> Array:
    """Return at which positions the error is no more than noise."""
    return np.asarray(_by_position(it) <= NOISE * max(it.own, 1e-12))


def _by_position(it: Observation) -> Array:
    gap = np.asarray(it.found, np.float64) - it.wanted
    wanted = np.asarray(it.wanted)
    if it.mask is not None and it.mask.shape == gap.shape[:2]:
        gap = gap * (it.mask != 0)[..., None]
    scale_ = np.sqrt(np.mean(wanted**2) * gap.shape[0] * gap.shape[2])
    return np.asarray(np.sqrt(np.sum(gap**2, axis=(0, 2))) / max(scale_, 1e-300))
