"""Prove that a base is what a quantized model, on which an adapter was trained, was made from."""

from __future__ import annotations

from ..converters.models import Model
from ..converters.quantization import Dequantized
from ..converters.quantization.kinship import kinship
from ..errors import BadInputError
from .bases import Kin, dense_view
from .options import Options, open_with
from .seen import seen_from


def proven(base: Model, trained_on: str, options: Options) -> Kin:
    """Hold BASE against the quantized model TRAINED_ON.

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
    return Kin(found.status, found.said, tuple(found.lines()), trained_on)
