"""How the two halves of an update lie in a file: which axes they have, and how they are read.

Read, an update is that of a linear layer: ``a (..., rank, in)``, ``b (..., out, rank)``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from ..values import Array, LowRank

Halves = tuple[Array, Array]


class Form(NamedTuple):
    """A layout of the halves.

    Attributes:
        name: what the adapter notes of it; empty for the ordinary one.
        axes: how many each half has.
        rank: the axis of the rank, in the first half and in the second.
        out: the axis of the second half that counts the rows of the weight.
        lead: the axis that counts matrices, the same in both halves; ``None`` if there is none.
        read: the halves of a file and the rank -> ``a`` and ``b``.
        write: the inverse.
        shared: whether the axes of the rank hold it once for every expert.
    """

    name: str
    axes: int
    rank: tuple[int, int]
    out: int
    lead: int | None
    read: Callable[[Array, Array, int], Halves]
    write: Callable[[LowRank], Halves]
    shared: bool = False


def _same(a: Array, b: Array, _: int) -> Halves:
    return a, b


def _transposed(a: Array, b: Array, _: int) -> Halves:
    return a.T, b.T


def _experts(a: Array, b: Array, rank: int) -> Halves:
    """Take experts apart: ``a`` is expert-major, ``b`` rank-major (peft, ``ParamWrapper``)."""
    count = a.shape[0] // rank
    if count == 1:
        return a, b
    return (
        a.reshape(count, rank, a.shape[1]),
        b.reshape(b.shape[0], rank, count).transpose(2, 0, 1),
    )


def _from_experts(update: LowRank) -> Halves:
    if not update.lead:
        return update.a, update.b
    rows, columns = update.shape[-2:]
    return update.a.reshape(-1, columns), update.b.transpose(1, 2, 0).reshape(rows, -1)


# peft/tuners/lora/layer.py: Linear (and Conv1D), Embedding, ParamWrapper.
PEFT_LINEAR: Final = Form("", 2, (0, 1), 0, None, _same, lambda u: (u.a, u.b))
PEFT_EMBEDDING: Final = PEFT_LINEAR._replace(name="embedding")
PEFT_EXPERTS: Final = Form("experts", 2, (0, 1), 0, None, _experts, _from_experts, shared=True)
# mlx_lm/tuner/lora.py: LoRALinear (and LoRAEmbedding), LoRASwitchLinear.
MLX_LINEAR: Final = Form("", 2, (1, 0), 1, None, _transposed, lambda u: (u.a.T, u.b.T))
MLX_SWITCH: Final = Form("experts", 3, (1, 2), 1, 0, _same, lambda u: (u.a, u.b))
