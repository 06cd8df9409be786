"""How a module is written as a program that other runtimes run: an ONNX file, a Core AI asset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ...errors import BadInputError
from ..common.arguments import require_kinds

PRECISIONS: Final = ("float32", "float16")
OPSET: Final = 20
QUANT_FORMATS: Final = ("QDQ", "QOperator")


@dataclass(frozen=True)
class ProgramOptions:
    """What is asked of an export.

    Attributes:
        precision: of weights and computation, ``float32`` or ``float16``.
        upper: largest size of each named dimension, where the signature has none.
        opset: version of ONNX's operators; ``None`` for ``OPSET``.
        external_data: whether ONNX's weights lie in a file of their own, beside the graph in a folder.
        stateful: the keys and values of a causal language model are states of a Core AI asset.
        quant_format: how ONNX holds codes, as onnxruntime's quantizer calls it: ``QDQ`` in
            ``DequantizeLinear``, ``QOperator`` in ``MatMulNBits``; ``None`` for ``QDQ``.
    """

    precision: str = "float32"
    upper: Mapping[str, int] = field(default_factory=dict)
    opset: int | None = None
    external_data: bool = False
    quant_format: str | None = None
    stateful: bool = False

    def __post_init__(self) -> None:
        """Refuse what no format has.

        Raises:
            BadInputError: the precision or the format of codes is not known, or both do not go together.
        """
        require_kinds(self)
        if self.precision not in PRECISIONS:
            raise BadInputError(f"a precision is {' or '.join(PRECISIONS)}, not {self.precision}")
        if self.quant_format not in (None, *QUANT_FORMATS):
            known = " or ".join(QUANT_FORMATS)
            raise BadInputError(f"a format of codes is {known}, not {self.quant_format}")
        if self.products and self.precision != "float32":
            raise BadInputError(
                "QOperator is written with --precision fp32 alone; take QDQ for float16"
            )

    @property
    def products(self) -> bool:
        """Whether weights on codes are multiplied by in ``MatMulNBits``, where they can be."""
        return self.quant_format == "QOperator"

    def __str__(self) -> str:
        """Print what an ONNX file is to be."""
        return f"{self.precision}, opset {self.opset or OPSET}"
