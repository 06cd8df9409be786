"""Weights that an exporter to ONNX turned and left without their names: named by the nodes that read them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..checkpoints import Checkpoint
from ..checkpoints.formats.onnx_model import OnnxFile
from ..recovering.weights import Held
from ..runtimes.programs.onnx_graphs import path_of

MULTIPLYING: Final = ("MatMul", "Gemm")
TURNING: Final = "transB"  # an attribute of a product that turns its weight itself


def named_by_nodes(file: OnnxFile) -> Checkpoint:
    """Return the tensors of FILE; one without a name has that of the linear layer that multiplies by it.

    PyTorch's exporters fold the transpose of such a weight into a constant called ``onnx::MatMul_406`` or
    ``val_56``, and say of every node which module it comes from.
    """
    names: dict[str, str] = {}
    for node in file.proto.graph.node:
        name = _multiplied(node)
        weight = f"{path_of(node)[-1]}.weight" if path_of(node) else ""
        if weight and weight not in file.headers and len(_shape(file, name)) > 1:
            names[name] = weight
    if not names:
        return file
    arrays = {name: file.read(name) for name in file.headers}
    turned = {names[name]: np.swapaxes(it, -1, -2) for name, it in arrays.items() if name in names}
    return Held(file.path, {name: it for name, it in arrays.items() if name not in names} | turned)


def _multiplied(node: Any) -> str:
    """Return what NODE multiplies by, as it lies in the file; empty where it does something else."""
    if node.op_type not in MULTIPLYING or any(it.name == TURNING and it.i for it in node.attribute):
        return ""
    return str(node.input[1])


def _shape(file: OnnxFile, name: str) -> tuple[int, ...]:
    return file.headers[name].shape if name in file.headers else ()
