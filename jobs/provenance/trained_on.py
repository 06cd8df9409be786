"""Prove that a base is what a quantized model, on which an adapter was trained, was made from."""

from __future__ import annotations

from ...converters.adapters import Adapter
from ...converters.models import Model
from ...converters.planning.view import converted_view, dense_view
from ...converters.quantization import Dequantized
from ...converters.quantization.provenance.made_from import provenance_from
from ...errors import BadInputError
from ..options import ReadOptions
from .base import MISMATCH, Provenance, provenance_of


def proven(base: Model, adapter: Adapter, trained_on: str, options: ReadOptions) -> Provenance:
    """Hold BASE against the quantized model TRAINED_ON, and both against what ADAPTER recorded.

    Raises:
        BadInputError: TRAINED_ON is not quantized.
        MismatchError: the two have not the same tensors.
    """
    other = dense_view(options.open(trained_on))
    if not isinstance(other.tensors, Dequantized):
        raise BadInputError(
            f"--trained-on {trained_on} is not quantized; an adapter trained on it fits as it is:"
            f" name it as the base"
        )
    original = converted_view(dense_view(base), "mlx", options.original)
    found = provenance_from(other.tensors, original.checkpoint)
    record = provenance_of(dense_view(base), adapter, other)
    if record.status == MISMATCH:  # it was trained on neither
        return record
    return Provenance(found.status, found.message, tuple(found.lines()), trained_on, found.certain)
