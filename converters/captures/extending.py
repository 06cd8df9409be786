"""What users may add to captures: programs that they exported, handlers of their operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from .torch_to_mlx import Captured


def from_exported(program: ExportedProgram) -> Captured:
    """Return the computation of a ``torch.export.ExportedProgram`` in MLX, as :func:`capture` does.

    Positional inputs have the names that PROGRAM gives them. The backward of a ``torch.autograd.Function``
    was left out by ``torch.export``: capture the module itself to have it.

    Raises:
        UnsupportedError: operations that MLX has none for: all listed.

    Example::

        program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(1, 3),))
        assert weighbridge.from_exported(program)(numpy.ones((1, 3), "f4")).shape == (1, 2)
    """
    from .torch_to_mlx.capturing import from_exported as convert_program

    return convert_program(program)


def register_op(
    name: str,
    handler: Callable[..., Any],
    *,
    promote: Literal["result", "operands", "none"] = "none",
) -> None:
    """Register HANDLER, a function of MLX arrays, for a PyTorch operation in captures made from now on.

    Args:
        name: such as ``mylib::scale``, ``mylib::scale.default`` or, of ATen, ``special_bessel_j0``.
        handler: takes the arguments by the names of the operation's schema; returns arrays of the
            shapes that torch has. Its gradient is that of the MLX operations in it.
        promote: what tensors are cast to before: ``result``, the dtype of the result; ``operands``,
            torch's common type of the operands; ``none``, nothing.

    Raises:
        BadInputError: torch knows no such operation, or HANDLER takes what its schema has not.

    Example::

        weighbridge.register_op("aten::sin", lambda self: mlx.core.sin(self), promote="result")
    """
    from .torch_to_mlx.operations.registry import register_op as register

    register(name, handler, promote)
