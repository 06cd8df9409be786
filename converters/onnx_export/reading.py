"""Codes that an ONNX file of ours keeps, read back as MLX's parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...errors import BadInputError
from ..checkpoints.formats.onnx_model import OnnxFile
from ..common.dtypes import dtype_of
from ..models.program_files import CODES
from ..quantization import Blocks, Scheme
from ..values import Array

KINDS: Final = ("codes", "scales", "biases", "blocks", "shape")  # of what a weight is made of


def blocks_in(file: OnnxFile, manifest: Mapping[str, Any]) -> dict[str, Blocks]:
    """Return the weights of FILE on codes, by PyTorch's names, as its record MANIFEST describes them.

    A weight that the graph makes of anything else by now is left out.

    Raises:
        BadInputError: the record is not true of the file.
    """
    found: dict[str, Blocks] = {}
    for name, entry in dict(manifest[CODES]).items():
        if not file.packed(name) and file.parts(name) != {f"{name}/{kind}" for kind in KINDS}:
            continue
        try:
            blocks = _blocks(file, name, entry)
            keys = (manifest["weights"][name]["key"], *manifest["weights"][name].get("also", ()))
        except (KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{file.path}: its record of {name} is damaged ({error})") from None
        found |= dict.fromkeys(keys, blocks)
    return found


def under_other_names(
    coded: Mapping[str, Blocks],
    dense: Mapping[str, Array],
    renamed: Mapping[str, Array],
    rename: Callable[[Mapping[str, Array]], Mapping[str, Array]],
) -> dict[str, Blocks]:
    """Return the CODED weights under the names, and in the parts, that RENAME gives DENSE ones.

    The numbers of their rows are renamed as the rows were: where whole rows of codes by one scheme come
    out that have the values RENAMED, they are taken, and other weights stay dense.

    Args:
        coded: some of the weights.
        dense: all weights, at their values.
        renamed: what RENAME makes of DENSE.
        rename: may stack, join and cut tensors.
    """
    starts = np.cumsum([0, *(math.prod(it.shape[:-1]) for it in coded.values())])
    rows = {name: np.full(it.shape, -1, np.int32) for name, it in dense.items()}
    for name, start in zip(coded, starts.tolist(), strict=False):
        lead = rows[name].shape[:-1]
        rows[name][:] = start + np.arange(math.prod(lead), dtype=np.int32).reshape(*lead, 1)
    found: dict[str, Blocks] = {}
    for name, numbers in rename(rows).items():
        first = numbers[..., :1]
        if numbers.ndim > 1 and numbers.size and first.min() >= 0 and (numbers == first).all():
            blocks = _of_rows([*coded.values()], starts, first[..., 0])
            if blocks and _worth(blocks, renamed[name]):
                found[name] = blocks
    return found


def _of_rows(coded: Sequence[Blocks], starts: Array, rows: Array) -> Blocks | None:
    """Return the ROWS of CODED weights, which begin with the rows STARTS; ``None`` for several schemes."""
    which = np.searchsorted(starts, rows, side="right") - 1
    sources = [coded[at] for at in np.unique(which).tolist()]
    kinds = {(it.scheme, it.shape[-1], it.parts["scales"].dtype) for it in sources}
    if len(kinds) > 1:
        return None
    parts = {}
    for part, array in sources[0].parts.items():
        parts[part] = np.empty((*rows.shape, array.shape[-1]), array.dtype)
        for at, source in zip(np.unique(which).tolist(), sources, strict=True):
            own = source.parts[part].reshape(-1, array.shape[-1])
            parts[part][which == at] = own[rows[which == at] - starts[at]]
    return Blocks(parts, sources[0].scheme)


def _worth(blocks: Blocks, dense: Array) -> bool:
    """Say whether BLOCKS have the values DENSE, rounded as these are."""
    values = blocks.dense()
    return values.shape == dense.shape and np.array_equal(values.astype(dense.dtype), dense)


def _blocks(file: OnnxFile, name: str, entry: Mapping[str, Any]) -> Blocks:
    scheme, dtype, packed = Scheme.of(entry), dtype_of(entry["scales"]), file.packed(name)
    if packed:
        held = packed.parts(file.part)
        codes, scales, biases = held.codes, held.scales, held.biases()
    else:
        codes, scales, biases = (file.part(f"{name}/{it}") for it in ("codes", "scales", "biases"))
    lead = file.headers[name].shape[:-1]
    floats = {"scales": scales, "biases": biases.reshape(scales.shape)}
    parts = {part: it.astype(dtype) for part, it in floats.items()}
    blocks = Blocks.of_codes(codes.astype(np.uint8), parts, scheme)
    return Blocks({part: it.reshape(*lead, -1) for part, it in blocks.parts.items()}, scheme)
