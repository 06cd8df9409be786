"""Prove that a base is what a quantized model, on which an adapter was trained, was made from."""

from __future__ import annotations

from ...converters.adapters import Adapter
from ...converters.models import Model
from ...converters.quantization import Dequantized
from ...converters.quantization.kinship import kinship
from ...errors import BadInputError
from ..bases import STRANGER, Kin, dense_view, kin_of
from ..options import Options, open_with
from ..seen import seen_from


def proven(base: Model, adapter: Adapter, trained_on: str, options: Options) -> Kin:
    """Hold BASE against the quantized model TRAINED_ON, and both against what ADAPTER recorded.

    Raises:
        BadInputError: TRAINED_ON is not quantized.
        MismatchError: the two have not the same tensors.
    """
    other = dense_view(open_with(trained_on, options))
    if not isinstance(other.tensors, Dequantized):
        raise BadInputError(
            f"--trained-on {trained_on} is not quantized; an adapter trained on it fits as it is:"
            f" name it as the base"
        )
    original = seen_from(dense_view(base), "mlx", options)
    found = kinship(other.tensors, original.checkpoint)
    record = kin_of(dense_view(base), adapter, other)
    if record.status == STRANGER:  # it was trained on neither
        return record
    return Kin(found.status, found.said, tuple(found.lines()), trained_on, found.certain)
