"""Whether a quantized model was made from an original, shown by quantizing that one again.

Three things make a quantized weight another than MLX's own rounding of the original, and each is
looked for by its values: another grid (DWQ trains the scales, others search them), scales moved
from one tensor into another (AWQ), and codes chosen by calibration (GPTQ). A recipe leaves tensors
that it does not quantize as they are, except for scales that it moves.

What this cannot tell: a sibling whose weights moved by less than about a twentieth of a 4-bit step
looks like the same weights on another grid, and one that moved by up to 0.8 of a step everywhere,
norms untouched, like calibration; that is said. GPTQ with fewer tokens than columns goes further
than that and counts as a stranger. Tensors that only the original has are not seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import MismatchError
from ..checkpoints import Checkpoint
from ..dtypes import FLOATS
from ..values import Array
from .likeness import SCALED, WORTH, Likeness, Pair, pair_of
from .moved import unexplained
from .view import Dequantized

SAME: Final = "same"
OTHER: Final = "other recipe"
STRANGER: Final = "stranger"

# What explains that a weight is not MLX's own rounding of the original.
GRID: Final = "rounded on another grid"
MOVED: Final = "with scales moved into it or out of it"
SHIFTED: Final = "shifted, as by calibration or by a little training"
FAR: Final = "further away than any recipe explains"


class Layer(NamedTuple):
    """A weight that is not what MLX's own rounding of the original is.

    Attributes:
        name: of the weight.
        codes_equal: share of the codes that are the same.
        distance: ``||quantized - original|| / ||quantized||``, after moved scales are undone.
        expected: the same for MLX's own rounding.
        why: what explains the difference, or that nothing does.
    """

    name: str
    codes_equal: float
    distance: float
    expected: float
    why: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.codes_equal:.1%} of the codes equal, distance {self.distance:.3g}"
            f" where rounding makes {self.expected:.3g}; {self.why}"
        )


@dataclass(frozen=True)
class Kinship:
    """What a quantized model is to an original.

    Attributes:
        status: ``same``, ``other recipe`` or ``stranger``.
        identical: quantized weights that are, byte for byte, MLX's own rounding of the original.
        total: quantized weights.
        layers: the others, the furthest first.
        tensors: dense tensors that differ and that no moved scale explains.
        said: one line.
    """

    status: str
    identical: int
    total: int
    layers: tuple[Layer, ...]
    tensors: tuple[str, ...]
    said: str

    def lines(self) -> list[str]:
        """Return what differs, the worst first."""
        return [*map(str, self.layers), *self.tensors]


def kinship(quantized: Dequantized, original: Checkpoint) -> Kinship:
    """Hold QUANTIZED against ORIGINAL, which has the same names and the same layout.

    Tensors that only ORIGINAL has are no concern. One layer is in memory at a time.

    Raises:
        MismatchError: ORIGINAL lacks tensors, or has them in another shape or quantized.
        UnsupportedError: MLX, which quantizes the original again, is not installed.
    """
    _require_same_layout(quantized, original)
    dtype = _dtype(quantized)
    found = (_layer(pair_of(quantized, original, name, dtype), name) for name in quantized.schemes)
    layers = [layer for layer in found if layer]
    layers.sort(key=lambda it: (it.why != FAR, -it.distance / max(it.expected, 1e-30)))
    tensors = unexplained(quantized, original, [layer.name for layer in layers])
    return _judged(len(quantized.schemes), tuple(layers), tuple(tensors))


def _require_same_layout(quantized: Dequantized, original: Checkpoint) -> None:
    theirs = original.headers
    problems = [
        f"{name}: the original has {theirs.get(name) or 'nothing by that name'},"
        f" the quantized model {header.shape}"
        for name, header in quantized.headers.items()
        if name not in theirs or theirs[name].shape != header.shape
    ]
    problems += [
        f"{name}: the original has {theirs[name]}, which is no float to be quantized"
        for name in quantized.schemes
        if name in theirs and theirs[name].dtype not in FLOATS
    ]
    if problems:
        raise MismatchError(f"{quantized.path} was not made from {original.path}", problems)


def _dtype(quantized: Dequantized) -> str:
    """Return the dtype that the model had when it was quantized: that of its dense tensors."""
    floats = [header.dtype for header in quantized.raw.headers.values() if header.dtype in FLOATS]
    return max(floats, key=floats.count, default="U8")


def _layer(pair: Pair, name: str) -> Layer | None:
    """Return how the weight NAME differs, ``None`` if it does not."""
    ours = pair.ours()
    if all(_same_bytes(ours[part], pair.parts[part]) for part in pair.parts):
        return None
    found = pair.likeness(ours)
    if found.explained:
        return _said(name, found, GRID)
    moved = _unscaled(pair, found)
    if moved is not None:
        return _said(name, moved, MOVED)
    return _said(name, found, FAR if found.far else SHIFTED)


def _said(name: str, found: Likeness, why: str) -> Layer:
    return Layer(name, found.codes_equal, found.distance, found.expected, why)


def _unscaled(pair: Pair, plain: Likeness) -> Likeness | None:
    """Return how the weights lie after moved scales are undone; ``None`` if there were none."""
    scaled = pair.scaled(pair.scalings())
    found = scaled.likeness(scaled.ours())
    worth = found.distance <= WORTH * plain.distance
    rounded = max(found.nearest, found.codes_equal) >= SCALED
    return found if worth and rounded and not found.far else None


def _same_bytes(one: Array, other: Array) -> bool:
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


def _judged(total: int, layers: tuple[Layer, ...], tensors: tuple[str, ...]) -> Kinship:
    identical = total - len(layers)
    count = f"{identical} of {total} layers identical"
    status, more = _verdict(identical, layers, tensors)
    return Kinship(status, identical, total, layers, tensors, count + more)


def _verdict(
    identical: int, layers: tuple[Layer, ...], tensors: tuple[str, ...]
) -> tuple[str, str]:
    """Return the status and what is said after the count of identical layers."""
    reasons: Mapping[str, int] = {
        why: sum(layer.why == why for layer in layers) for why in (FAR, MOVED, GRID, SHIFTED)
    }
    said = "".join(f"; {count} {why}" for why, count in reasons.items() if count)
    if tensors:
        said += f"; {len(tensors)} tensors that are not quantized differ"
    if not layers and not tensors:
        return SAME, ""
    if reasons[FAR]:
        return STRANGER, f"{said}: made from another model"
    if layers and tensors:
        return STRANGER, f"{said}, which no recipe does: made from another model"
    if reasons[SHIFTED] and not reasons[MOVED] and identical > len(layers):
        return STRANGER, f"{said}, and calibration leaves none as it was: a sibling trained further"
    if reasons[SHIFTED]:
        said += "; a calibrated recipe and a sibling trained a little look alike here"
    return OTHER, f"{said}: another recipe, or another rounding"
