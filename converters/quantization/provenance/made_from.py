"""Whether a quantized model was made from an original, shown by quantizing that one again.

It is quantized as MLX does, and with searched scales as ``weighbridge quantize`` does.
Three things make a quantized weight another than either, and each is
looked for by its values: another grid (DWQ trains the scales, others search them), scales moved
from one tensor into another (AWQ), and codes chosen by calibration (GPTQ). A recipe leaves tensors
that it does not quantize as they are, except for scales that it moves; and scales that it moves it
takes out of another tensor. What differs in any other way is another model.

Only identical codes are proof, or values that are those of the codes: such an original was made from
the quantized model. A sibling whose weights moved by less than about a twentieth of a
4-bit step looks like the same weights on another grid, one that moved by up to 0.8 of a step
everywhere, norms untouched, like calibration, and one whose rows were scaled by less than half of
what rounding does, like trained scales; so ``certain`` is false, with a warning, for every other
recipe. GPTQ with fewer tokens than columns goes further and counts as a mismatch, as do scales
moved by 10 % at random: 0.75 of a 4-bit step in the biases alone, several times what DWQ does.
Tensors that only the original has are not seen, nor whether a partner of moved scales stands where
the model has the two follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ....errors import MismatchError
from ...checkpoints import Checkpoint
from ...common.dtypes import FLOATS
from ..view import Dequantized
from .cancelled import Scaled, scaled
from .likeness import SCALED, WORTH, Likeness, Pair, pair_of
from .moved import alone, compared

SAME: Final = "same"
OTHER: Final = "other recipe"
MISMATCH: Final = "mismatch"

# What explains that a weight is not MLX's own rounding of the original.
GRID: Final = "rounded on another grid"
MOVED: Final = "with scales moved into it or out of it"
SHIFTED: Final = "shifted, as by calibration or by a little training"
ALONE: Final = "scaled, and no other tensor cancels it"
FAR: Final = "further away than any recipe explains"
UNEXPLAINED: Final = (FAR, ALONE)

ALIKE: Final = "another recipe and a sibling fine-tuned by less than a step look alike here"


class Layer(NamedTuple):
    """A weight that is not what the original gives when it is quantized again.

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
class Provenance:
    """What a quantized model is to an original.

    Attributes:
        status: ``same``, ``other recipe`` or ``mismatch``.
        identical: quantized weights that are, byte for byte, what MLX or ``weighbridge quantize`` makes
            of the original, or whose values, rounded to its dtype, the original's are.
        total: quantized weights.
        layers: the others, the furthest first.
        tensors: dense tensors that differ and that no moved scale explains.
        message: one line.
        certain: whether the status is proof that the one was made from the other: all layers are
            identical.
    """

    status: str
    identical: int
    total: int
    layers: tuple[Layer, ...]
    tensors: tuple[str, ...]
    message: str
    certain: bool

    def lines(self) -> list[str]:
        """Return what differs, the worst first, after a warning where that is no proof."""
        warning = [ALIKE] if self.status == OTHER else []
        return [*warning, *map(str, self.layers), *self.tensors]


class _Found(NamedTuple):
    """A weight that differs, and the scales in it; ``None`` where they are no question."""

    layer: Layer
    scales: Scaled | None = None


def provenance_from(quantized: Dequantized, original: Checkpoint) -> Provenance:
    """Hold QUANTIZED against ORIGINAL, which has the same names and the same layout.

    Tensors that only ORIGINAL has are no concern. One layer is in memory at a time.

    Raises:
        MismatchError: ORIGINAL lacks tensors, or has them in another shape or quantized.
        UnsupportedError: MLX, which quantizes the original again, is not installed.
    """
    _require_same_layout(quantized, original)
    dtype = _dtype(quantized)
    pairs = ((name, pair_of(quantized, original, name, dtype)) for name in quantized.schemes)
    found = [it for name, pair in pairs if (it := _found(pair, name))]
    layers, tensors = _explained(quantized, original, found)
    layers.sort(key=lambda it: (it.why not in UNEXPLAINED, -it.distance / max(it.expected, 1e-30)))
    return _judged(len(quantized.schemes), tuple(layers), tuple(tensors))


def _explained(
    quantized: Dequantized, original: Checkpoint, found: Sequence[_Found]
) -> tuple[list[Layer], list[str]]:
    """Return the layers, those that were scaled alone marked, and the dense tensors that differ."""
    dense = compared(quantized, original, [it.layer.name for it in found])
    scales = {it.layer.name: it.scales for it in found if it.scales}
    moved = [it.layer.name for it in found if it.layer.why == MOVED]
    bare = alone(dense, scales, moved)
    layers = [it.layer._replace(why=ALONE) if it.layer.name in bare else it.layer for it in found]
    differing = dense.unexplained | {name: ALONE for name in dense.matrices if name in bare}
    return layers, [f"{name}: not quantized, and {why}" for name, why in differing.items()]


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


def _found(pair: Pair, name: str) -> _Found | None:
    """Return how the weight NAME differs, ``None`` if it does not."""
    ours = pair.ours()
    if pair.requantized(ours) or pair.dequantized():
        return None
    found = pair.likeness(ours)
    if found.rounded:
        return None if pair.searched() else _Found(_layer(name, found, GRID))
    fits = pair.scalings()
    undone = pair.scaled(fits)
    rest = undone.likeness(undone.ours())
    scales = scaled(fits, rest.distance)
    if _is_moved(found, rest):
        return _Found(_layer(name, rest, MOVED), scales)
    why = FAR if found.far else GRID if found.explained else SHIFTED
    return _Found(_layer(name, found, why), scales)


def _layer(name: str, found: Likeness, why: str) -> Layer:
    return Layer(name, found.codes_equal, found.distance, found.expected, why)


def _is_moved(plain: Likeness, rest: Likeness) -> bool:
    """Whether scales explain a weight that lies PLAIN, and is as REST after they are undone."""
    worth = rest.distance <= WORTH * plain.distance
    return worth and max(rest.nearest, rest.codes_equal) >= SCALED and not rest.far


def _judged(total: int, layers: tuple[Layer, ...], tensors: tuple[str, ...]) -> Provenance:
    identical = total - len(layers)
    count = f"{identical} of {total} layers identical"
    status, more = _verdict(identical, layers, tensors)
    return Provenance(status, identical, total, layers, tensors, count + more, status == SAME)


def _verdict(
    identical: int, layers: tuple[Layer, ...], tensors: tuple[str, ...]
) -> tuple[str, str]:
    """Return the status and the message after the count of identical layers."""
    reasons: Mapping[str, int] = {
        why: sum(layer.why == why for layer in layers)
        for why in (*UNEXPLAINED, MOVED, GRID, SHIFTED)
    }
    text = "".join(f"; {count} {why}" for why, count in reasons.items() if count)
    if tensors:
        text += f"; {len(tensors)} tensors that are not quantized differ, which no recipe does"
    if not layers and not tensors:
        return SAME, ""
    if tensors or any(reasons[why] for why in UNEXPLAINED):
        return MISMATCH, f"{text}: made from another model"
    if reasons[SHIFTED] and not reasons[MOVED] and identical > len(layers):
        return MISMATCH, f"{text}, and calibration leaves none as it was: a sibling trained further"
    return OTHER, f"{text}; {ALIKE}"
