"""Packages as somebody else makes them: torch.jit.trace and coremltools.convert, and no record of the export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from weighbridge.converters.captures.mlprogram.toolkit import coremltools, quiet
from weighbridge.converters.models import Port, Signature
from weighbridge.converters.runtimes.torch import named_outputs

SIZES = {"batch": 1, "sequence": 7, "time": 9}  # of dimensions that have names
INTEGERS = "int64"


class Positional(nn.Module):
    """A module that takes its inputs by position and returns tensors, as a trace needs it."""

    def __init__(self, module: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.module = module
        self.inputs = tuple(port.name for port in signature.inputs)
        self.outputs = tuple(port.name for port in signature.outputs)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the module by keyword."""
        result = self.module(**dict(zip(self.inputs, given, strict=True)))
        return tuple(named_outputs(self.module, result, self.outputs).values())


def shape_of(port: Port) -> tuple[int, ...]:
    """Return the fixed shape of PORT."""
    return tuple(SIZES[size] if isinstance(size, str) else size for size in port.shape)


def example(port: Port) -> torch.Tensor:
    """Return an input for the trace."""
    if port.dtype == INTEGERS:
        return torch.ones(shape_of(port), dtype=torch.int64)
    return torch.linspace(-1, 1, int(np.prod(shape_of(port)))).reshape(shape_of(port))


def converted(
    module: nn.Module, signature: Signature, target: Path, precision: str = "float16"
) -> Path:
    """Write MODULE at TARGET, of fixed sizes, as coremltools converts it by itself; return TARGET."""
    ports = signature.inputs
    kinds = {INTEGERS: np.int32}
    with torch.no_grad(), quiet():
        traced = torch.jit.trace(
            Positional(module.eval(), signature), tuple(map(example, ports)), check_trace=False
        )
        made = coremltools.convert(
            traced,
            inputs=[
                coremltools.TensorType(it.name, shape_of(it), dtype=kinds.get(it.dtype, np.float32))
                for it in ports
            ],
            outputs=[coremltools.TensorType(it.name) for it in signature.outputs],
            minimum_deployment_target=coremltools.target.iOS17,
            compute_precision=getattr(coremltools.precision, precision.upper()),
            skip_model_load=True,
        )
    made.save(str(target))
    return target
