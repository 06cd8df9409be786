"""A live ``mlx.nn`` module quantized in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...converters.common.arrays import from_mlx, to_mlx
from ...converters.common.dtypes import CODE
from ...converters.libraries.quantizing import Predicate, obeying, schemes_of
from ...converters.quantization.mlx import check_shape
from ...converters.quantization.scheme import Scheme
from ...errors import UnsupportedError
from .methods import METHODS
from .request import Request

if TYPE_CHECKING:
    from mlx import nn


def quantize_module(module: nn.Module, request: Request) -> nn.Module:
    """Quantize MODULE in its place as REQUEST says, and return it.

    What its class says of its own modules (``quant_predicate``) holds where no rule does.

    Raises:
        BadInputError: rules contradict each other, or have groups that do not fit.
        UnsupportedError: nothing in MODULE can be quantized.
    """
    from mlx import nn

    if request.calibrate or request.bits_per_weight or request.measure:
        raise UnsupportedError(
            "calibrate, measure and bits_per_weight are for directories; save the module first"
        )
    weights = {path: it.weight for path, it in module.named_modules() if "weight" in it}
    chosen = obeying(request.wish, getattr(module, "quant_predicate", None))
    nn.quantize(
        module,
        **{key: value for key, value in request.scheme.record.items() if key != "mode"},
        mode=request.scheme.mode,
        class_predicate=fitting(chosen, request.scheme),
    )
    schemes = {path: it for path, it in schemes_of(module) if path in weights}
    if not schemes:
        raise UnsupportedError("the module has no layers that can be quantized in such groups")
    parts = [
        (f"{path}.{part}", to_mlx(array))
        for path, scheme in schemes.items()
        for part, array in encoded(weights[path], scheme, request).items()
    ]
    module.load_weights(parts, strict=False)
    return module


def fitting(chosen: Predicate, scheme: Scheme) -> Predicate:
    """Return CHOSEN for layers whose columns the groups of SCHEME divide, as mlx-lm does."""

    def predicate(path: str, module: Any) -> Any:
        there = hasattr(module, "to_quantized") and module.weight.ndim > 1
        return there and module.weight.shape[-1] % scheme.group_size == 0 and chosen(path, module)

    return predicate


def encoded(weight: Any, scheme: Scheme, request: Request) -> dict[str, Any]:
    """Return the parts of WEIGHT, an ``mx.array``, in its own leading axes."""
    values = from_mlx(weight)
    check_shape(values.shape, scheme)
    rows = values.reshape(-1, values.shape[-1])
    made = METHODS[request.method](rows, scheme, request.dtype or CODE[values.dtype])
    return {part: it.reshape(*values.shape[:-1], -1) for part, it in made.items()}
