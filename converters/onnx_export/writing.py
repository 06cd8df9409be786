"""ONNX models on disk: in one file, or in a folder with their weights beside them."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import onnx
import torch

from ...errors import BadInputError, UnsupportedError
from ..checkpoints.formats.onnx_model import GRAPH, SUFFIX
from ..common.system import writing

LARGEST: Final = 2**31 - 1  # bytes of a file: what protobuf can hold
LEAST: Final = 1024  # bytes of a weight that lies outside, as in PyTorch's own exports


def require_place(
    target: Path, modules: Collection[torch.nn.Module], *, narrow: bool, apart: bool
) -> None:
    """Refuse a TARGET that is named otherwise, or one file for weights that it cannot hold.

    Args:
        target: a file, or a folder where the weights are to lie APART.
        modules: whose weights are written dense, in float16 if NARROW.
        narrow: whether they are.
        apart: whether they lie in a file of their own.

    Raises:
        BadInputError: a file is named otherwise.
        UnsupportedError: the weights are too large for one file.
    """
    if not apart and target.suffix != SUFFIX:
        raise BadInputError(f"{target}: an ONNX file is named *{SUFFIX}")
    tensors = [it for one in modules for it in (*one.parameters(), *one.buffers())]
    size = sum(
        it.numel() * (2 if narrow and it.is_floating_point() else it.itemsize) for it in tensors
    )
    if size > LARGEST and not apart:
        raise too_large(target)


def too_large(target: Path) -> UnsupportedError:
    """Return what is raised where one file cannot hold TARGET."""
    return UnsupportedError(
        f"{target.name} would be larger than 2 GB, the most that one file can hold; with --external-data"
        " and a folder's name the weights lie beside the graph"
    )


def write(proto: Any, target: Path, *, apart: bool) -> Path:
    """Write PROTO at TARGET, the same bytes every time; return the file with the graph."""
    if not apart:
        if weight_bytes(proto) > LARGEST:
            raise too_large(target)
        with writing(target):
            target.write_bytes(proto.SerializeToString(deterministic=True))
        return target
    target.mkdir(exist_ok=True)
    file, data = target / GRAPH, target / f"{GRAPH}.data"
    apart_at: dict[str, Any] = {"location": data.name, "size_threshold": LEAST}
    with writing(target):
        onnx.save_model(proto, file, save_as_external_data=True, **apart_at)
    if data.exists():
        data.chmod(file.stat().st_mode)  # it is made for its owner alone
    return file


def weight_bytes(proto: Any) -> int:
    """Return the size of the weights in PROTO."""
    return sum(len(it.raw_data) for it in proto.graph.initializer)
