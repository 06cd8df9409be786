"""A model whose computation only MLX has, as a model in torch: traced, and compared with MLX."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ...errors import UnsupportedError
from ..common.policy import Policy
from ..common.steps import step
from ..models import Model
from ..models.factories import framework_or_none
from .base import Arrays
from .blas import mlx_on
from .live import relative

if TYPE_CHECKING:
    from ..captures.mlx_to_torch import CapturedMlx

LARGER: Final = (11, 13, 17, 19)  # sizes for modules that compute small inputs otherwise
BAR: Final = 1e-5  # ||torch - MLX|| / ||MLX||, both in float32


def computed_by_mlx(model: Model) -> bool:
    """Say whether MLX alone computes MODEL: its factory built an ``mlx.nn.Module``, or a library's class is all there is."""
    if model.factory is not None:
        return framework_or_none(model.factory) == "mlx"
    return model.only_in_mlx


@mlx_on("cpu")
def in_torch(model: Model, inputs: Iterable[Arrays]) -> Model:
    """Return MODEL, which MLX computes, as a torch module; quantized weights are dense in it.

    Args:
        model: its module is traced at the sizes of its signature, in float32.
        inputs: what both sides are run on, to be compared.

    Raises:
        UnsupportedError: it cannot be traced (see ``capture_mlx``), or torch's results are not MLX's.
    """
    from ..captures.mlx_to_torch import capture_mlx
    from .mlx import MlxRunner, example_inputs
    from .native.runner import class_runner
    from .torch import TorchRunner

    signature = model.signature
    runner = (
        class_runner(model, Policy(), whole=True)
        if model.only_in_mlx
        else MlxRunner(model, Policy())
    )
    examples = [example_inputs(signature), example_inputs(signature, sizes=LARGER)]
    captured = first_that_traces(
        lambda inputs: capture_mlx(
            runner.module,
            inputs=inputs,
            dynamic=signature.dynamic,
            call=runner.named_arrays,
            quantized="dense",
        ),
        examples,
    )
    whole: dict[str, Any] = {"path": None, "tensors": None, "adapter": None, "declared": signature}
    made = replace(model, framework="torch", factory=captured.eval(), **whole)
    own = TorchRunner(made, Policy())
    step("comparing with MLX")
    for given in inputs:
        require_same(model.spec, runner.run(given), own.run(given))
    return made


def first_that_traces(
    capture: Callable[[Arrays], CapturedMlx], examples: Sequence[Arrays]
) -> CapturedMlx:
    """Return what CAPTURE makes of the first of EXAMPLES that it takes: modules may branch on sizes.

    Raises:
        UnsupportedError: it takes none; says why not the first.
    """
    try:
        return capture(examples[0])
    except UnsupportedError:
        with contextlib.suppress(UnsupportedError):
            return capture(examples[1])
        raise


def require_same(who: str, wanted: Arrays, found: Arrays) -> None:
    """Refuse a translation of WHO whose results are further from MLX's than the rounding of float32.

    Raises:
        UnsupportedError: they are.
    """
    for name, array in wanted.items():
        difference = relative(array, found[name])
        if not difference <= BAR:
            raise UnsupportedError(
                f"{who}: {name} differs from MLX's by {difference:.1e} of its size once it is in torch"
                f" (bar {BAR:g}); this is a fault of the translation: please report the model"
            )


def traced_from_mlx(module: Any) -> bool:
    """Say whether MODULE is one of MLX in torch."""
    return any(base.__name__ == "CapturedMlx" for base in type(module).__mro__)
