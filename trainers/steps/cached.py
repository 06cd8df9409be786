"""Batches of texts that are larger than memory: the loss of a whole batch, its gradient chunk by chunk.

Gao et al. 2021 (GradCache): all texts are embedded without a gradient, the loss is differentiated with
respect to the embeddings, and each chunk is embedded again to carry its part of that gradient on to the
parameters. The sum is the gradient of the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from ...converters.values import Array
from ..ranks import ALONE, Ranks
from .base import Arrays

TEXTS: Final = ("query", "document", "negative")
Embed = Callable[[Arrays], Array]


def differentiate(
    inputs: Arrays,
    chunk: int,
    embed: Embed,
    judge: Callable[[Arrays, Arrays], tuple[float, Arrays]],
    backward: Callable[[Arrays, Array], None],
    ranks: Ranks = ALONE,
) -> float:
    """Return the loss of a batch and hand its gradient to BACKWARD, at most CHUNK texts at a time.

    Of several ranks, which all have the whole batch, each sees to some of the chunks: the gradient is the mean of
    what they hand over.

    Args:
        inputs: of the batch, ``*_ids`` and ``*_mask``.
        chunk: texts embedded at once.
        embed: ``ids`` and ``mask`` to embeddings.
        judge: ``*_embeddings`` and the inputs to the loss and its gradients by the names of the former.
        backward: takes ``ids``, ``mask`` and the gradient with respect to their embeddings.
        ranks: that share the work.
    """
    loss, gradients = judge(embedded(inputs, chunk, embed, ranks), inputs)
    for text, axes in _texts(inputs).items():
        gradient = gradients[f"{text}_embeddings"] * ranks.size
        flat = gradient.reshape(-1, *gradient.shape[axes:])
        for rows, part in [*_parts(inputs, text, chunk)][ranks.rank :: ranks.size]:
            backward(part, flat[rows])
    return loss


def embedded(inputs: Arrays, chunk: int, embed: Embed, ranks: Ranks = ALONE) -> dict[str, Array]:
    """Return the ``*_embeddings`` of all texts of a batch, shaped as these are in it."""
    made: dict[str, Array] = {}
    for text, axes in _texts(inputs).items():
        parts = [part for _, part in _parts(inputs, text, chunk)]
        every = ranks.exchange([embed(part) for part in parts[ranks.rank :: ranks.size]])
        flat = np.concatenate(
            [every[at % ranks.size][at // ranks.size] for at in range(len(parts))]
        )
        leading = inputs[f"{text}_ids"].shape[:axes]
        made[f"{text}_embeddings"] = flat.reshape(*leading, *flat.shape[1:])
    return made


def varying(
    dynamic: Mapping[str, Mapping[int, str]], embeddings: Arrays
) -> dict[str, Mapping[int, str]]:
    """Return the sizes that vary of a batch's arrays, as in DYNAMIC, and of its EMBEDDINGS."""
    own = {
        name: {
            axis: size
            for axis, size in dynamic[name.replace("embeddings", "ids")].items()
            if axis < array.ndim - 1
        }
        for name, array in embeddings.items()
    }
    return {**dynamic, **own}


def _texts(inputs: Arrays) -> dict[str, int]:
    """Return the kinds of text in a batch, and how many axes stand before that of the tokens."""
    return {text: inputs[f"{text}_ids"].ndim - 1 for text in TEXTS if f"{text}_ids" in inputs}


def _parts(inputs: Arrays, text: str, chunk: int) -> Iterator[tuple[slice, Arrays]]:
    """Yield the chunks of one kind of TEXT, and where they lie among all of that kind."""
    ids, mask = (inputs[f"{text}_{part}"] for part in ("ids", "mask"))
    ids, mask = (it.reshape(-1, it.shape[-1]) for it in (ids, mask))
    for start in range(0, len(ids), chunk):
        rows = slice(start, start + chunk)
        yield rows, {"ids": ids[rows], "mask": mask[rows]}
