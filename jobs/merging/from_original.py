"""Merge into the weights that a quantized base was made from, and quantize the result as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from ...converters.adapters.merging.affected import AffectedWeight
from ...converters.adapters.merging.statistics import Measured, QuantizationErrors
from ...converters.adapters.open import ADDED_TO
from ...converters.common.dtypes import FLOATS
from ...converters.models import Model
from ...converters.planning.view import converted_view
from ...converters.quantization import Dequantized
from ...converters.quantization.fingerprints import compare
from ...converters.quantization.provenance.made_from import OTHER, Provenance, provenance_from
from ...errors import BadInputError, MismatchError
from ..options import Options
from ..provenance.base import MISMATCH
from .rounded import trained_rounded
from .trial import affected_weights, changes_of, labelled

SAME: Final = "same"


class FromOriginal(NamedTuple):
    """A merge into the original weights.

    Attributes:
        original: the model they are of, in the base's names, its adapter live.
        provenance: what it is to the base.
        layers: the weights that are made.
    """

    original: Model
    provenance: Provenance
    layers: tuple[AffectedWeight, ...]

    @property
    def notes(self) -> list[str]:
        """What a person should know of the base."""
        status, message = self.provenance.status, self.provenance.message
        if status == SAME or any(layer.trained_rounded for layer in self.layers):
            return [message]
        return [message, f"the base is {status}, so all {len(self.layers)} weights are made again"]


def from_original(
    model: Model, original: Model, tensors: Dequantized, options: Options
) -> FromOriginal:
    """Return how the adapter that is live on MODEL, quantized, is merged into ORIGINAL.

    Where the base is ORIGINAL as MLX rounds it, only what the adapter changes is made; other
    weights stay as they are. Another recipe may have moved something from one weight to another
    (AWQ folds scales into norms), so that all of them are made then.

    Raises:
        BadInputError: ORIGINAL is quantized itself.
        MismatchError: the base was made from something else.
    """
    if isinstance(original.tensors, Dequantized):
        raise BadInputError(
            f"--original {original.spec} is quantized itself; name the weights it was made from"
        )
    seen = converted_view(original, "mlx", options.original)
    rounded = trained_rounded(model, tensors, original)
    provenance = as_trained(model, seen, rounded, provenance_from(tensors, seen.checkpoint))
    if provenance.status == MISMATCH:
        raise MismatchError(
            f"{model.spec} was not made from {original.spec}; {provenance.message}",
            provenance.lines(),
        )
    changes = changes_of(model)
    if provenance.status != SAME and not rounded:
        floats = [name for name, it in tensors.headers.items() if it.dtype in FLOATS]
        changes = dict.fromkeys(floats) | changes
    layers = affected_weights(changes, tensors, seen.checkpoint, rounded)
    assert model.adapter is not None  # noqa: S101  (there are changes)
    return FromOriginal(seen.with_adapter(model.adapter), provenance, tuple(layers))


def as_trained(
    model: Model, original: Model, rounded: Collection[str], provenance: Provenance
) -> Provenance:
    """Return PROVENANCE of MODEL, which needs no proof where training recorded all that the result is made of.

    That are the scales that all sums of its adapter were rounded to, ROUNDED, and the weights of ORIGINAL that its
    updates were added to; all others stay as they are in MODEL, whatever it was made by.
    """
    assert model.adapter is not None  # noqa: S101  (it is merged)
    recorded = model.adapter.base.get(ADDED_TO) or {}
    updated = model.adapter.updates.keys()
    known = updated and updated <= {*rounded} & recorded.keys()
    if not known or compare(recorded, original.checkpoint):
        return provenance
    same = f"the {len(updated)} weights that updates were added to, and the scales of their sums, are those recorded"
    status = OTHER if provenance.status == MISMATCH else provenance.status
    message = f"{same}; of the whole base: {provenance.message}"
    return replace(provenance, status=status, message=message, certain=True)


def error_lines(
    errors: Mapping[str, QuantizationErrors], chosen: Mapping[str, Measured]
) -> list[str]:
    """Return a table of what the roundings cost, the dearest first; sizes in parts of the weights.

    >>> from weighbridge.converters.adapters.merging.survival import Survival
    >>> from weighbridge.converters.quantization.forms import Form
    >>> kept = Survival(1.01, 0.4, 2.0, 0.1, 9, 9)
    >>> it = Measured(Form(None, "F16"), kept, "refuse", fits=True, changed=True, part=(3,))
    >>> for line in error_lines({"q.weight": QuantizationErrors(0.067, 0.068, 0.027)}, {"q.weight": it}):
    ...     print(line)
      gain   update  rounding  live on base  weight
     1.010    2.70%     6.70%         6.80%  q.weight[3]
    """
    head = f"{'gain':>6}  {'update':>7}  {'rounding':>8}  {'live on base':>12}  weight"
    dearest = sorted(errors, key=lambda name: (-errors[name].error, name))
    rows = ((errors[name], chosen[name].survival.gain, name) for name in dearest)
    return [head] + [
        f"{gain:6.3f}  {it.update:7.2%}  {it.error:8.2%}  {it.live:12.2%}"
        f"  {labelled(name, chosen[name].part)}"
        for it, gain, name in rows
    ]


def error_note(errors: Mapping[str, QuantizationErrors]) -> str:
    """Return in words what the roundings cost where they cost most."""
    name = max(errors, key=lambda it: errors[it].error)
    error, live, update = errors[name]
    return (
        f"rounding the merged weights again moves them by {error:.2%} at most ({name}, where the update"
        f" is {update:.2%} of them); the base with the adapter live is {live:.2%} off there"
    )
