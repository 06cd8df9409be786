"""Codes that an ONNX file of ours keeps, read back as MLX's parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...errors import BadInputError
from ..checkpoints.formats.onnx_model import OnnxFile
from ..common.dtypes import dtype_of
from ..models.program_files import CODES
from ..quantization import Blocks, Scheme

KINDS: Final = ("codes", "scales", "biases", "blocks", "shape")  # of what a weight is made of


def blocks_in(file: OnnxFile, manifest: Mapping[str, Any]) -> dict[str, Blocks]:
    """Return the weights of FILE on codes, by PyTorch's names, as its record MANIFEST describes them.

    A weight that the graph makes of anything else by now is left out.

    Raises:
        BadInputError: the record is not true of the file.
    """
    found: dict[str, Blocks] = {}
    for name, entry in dict(manifest[CODES]).items():
        if file.parts(name) != {f"{name}/{kind}" for kind in KINDS}:
            continue
        try:
            blocks = _blocks(file, name, entry)
            keys = (manifest["weights"][name]["key"], *manifest["weights"][name].get("also", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{file.path}: its record of {name} is damaged ({error})") from None
        found |= dict.fromkeys(keys, blocks)
    return found


def _blocks(file: OnnxFile, name: str, entry: Mapping[str, Any]) -> Blocks:
    scheme, dtype = Scheme.of(entry), dtype_of(entry["scales"])
    codes, scales, biases = (file.part(f"{name}/{it}") for it in ("codes", "scales", "biases"))
    parts = {"scales": scales.astype(dtype), "biases": biases[..., 0].astype(dtype)}
    return Blocks.of_codes(codes.astype(np.uint8), parts, scheme)
