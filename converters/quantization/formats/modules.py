"""Which modules a format leaves dense: embeddings, and whatever it has no codes for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from ...checkpoints import Header
from ...checkpoints.assembled import Source, same
from ..mlx import SUFFIX, stem
from ..view import Dequantized

HEAD: Final = "lm_head"  # has no tensor of its own where it is tied to the embedding
EMBEDDING: Final = re.compile(r"(^|\.)([^.]*embed[^.]*|wte|wpe|shared)$", re.IGNORECASE)


def is_linear(name: str, header: Header) -> bool:
    """Tell whether the weight NAME with HEADER, dense, can be that of a linear layer.

    A name tells an embedding; a linear layer that is taken for one is written dense, which is right
    too.

    >>> is_linear("up.weight", Header("F32", (3, 64))), is_linear("wte.weight", Header("F32", (3, 64)))
    (True, False)
    """
    return len(header.shape) == 2 and name.endswith(SUFFIX) and not EMBEDDING.search(stem(name))


def others(parts: Dequantized, quantized: Collection[str]) -> dict[str, Source]:
    """Return what PARTS has besides the weights that are written QUANTIZED, dense."""
    return {name: same(parts, name) for name in parts.headers if name not in quantized}


def left_dense(
    headers: Mapping[str, Header], quantized: Collection[str], *, plain: bool = False
) -> list[str]:
    """Return the modules that a config must name as not quantized, as transformers reads them.

    A path also stands for the modules inside it and for those whose path ends with it
    (`transformers/quantizers/quantizers_utils.py`, ``should_convert_module``). Where that would take
    in a quantized one, it becomes an expression that only it matches.

    Args:
        headers: of the dense weights, by name.
        quantized: the names of those that are not dense after all.
        plain: for a reader that takes a path as it is.
    """
    matrices = [
        stem(name)
        for name, header in headers.items()
        if name not in quantized and name.endswith(SUFFIX) and len(header.shape) >= 2
    ]
    packed = [stem(name) for name in quantized]
    heads = [] if HEAD in packed else [HEAD]
    return [
        f"{re.escape(path)}$"
        if not plain and any(it.startswith(f"{path}.") or it.endswith(path) for it in packed)
        else path
        for path in dict.fromkeys((*matrices, *heads))
    ]
