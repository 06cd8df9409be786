"""Embeddings of texts: one for a text, or one for each of its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import BadInputError
from .outputs import hidden_states, run


class Embedding(nn.Module):
    """A sentence embedding: the mean of the hidden states where the mask is 1, of unit length.

    Reimers and Gurevych 2019, section 3 (MEAN pooling).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of the texts IDS, shape ``(batch, width)``."""
        return self.of(self.model, ids, mask)

    @staticmethod
    def of(model: nn.Module, ids: Tensor, mask: Tensor) -> Tensor:
        """Return what MODEL makes of the texts IDS."""
        hidden = hidden_states(run(model, {"ids": ids, "mask": mask}))
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1)
        return functional.normalize(mean, dim=-1)


class TokenEmbedding(Embedding):
    """An embedding of unit length for each token, zero where the mask is 0: ``(batch, sequence, width)``.

    Khattab and Zaharia 2020, section 3.2. With WIDTH the hidden states are projected to it, see
    :func:`projection_of`; without, they are taken as they are.
    """

    projection: Tensor | None

    def __init__(self, model: nn.Module, width: int | None = None) -> None:
        super().__init__(model)
        self.register_buffer("projection", projection_of(model, width), persistent=False)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the embeddings of the tokens of IDS."""
        return tokens_of(self.model, ids, mask, self.projection)


def tokens_of(model: nn.Module, ids: Tensor, mask: Tensor, projection: Tensor | None) -> Tensor:
    """Return what MODEL and PROJECTION make of each token of the texts IDS."""
    hidden = hidden_states(run(model, {"ids": ids, "mask": mask}))
    if projection is not None:
        hidden = hidden @ projection
    return functional.normalize(hidden, dim=-1) * mask.unsqueeze(-1).to(hidden.dtype)


def projection_of(model: Any, width: int | None) -> Tensor | None:
    """Return orthonormal columns, ``(hidden size of MODEL, WIDTH)``, the same for every model and run.

    It is not trained: a random projection keeps angles (Johnson and Lindenstrauss 1984). A model
    with a projection of its own needs none.

    Raises:
        BadInputError: MODEL does not say how wide its hidden states are, or they are narrower.
    """
    if width is None:
        return None
    hidden = getattr(getattr(model, "config", None), "hidden_size", None)
    if not isinstance(hidden, int) or hidden < width:
        raise BadInputError(
            f"objective.width {width}: the model's hidden states are"
            f" {'of unknown width' if hidden is None else f'{hidden} wide'}; leave width out"
        )
    drawn = np.random.default_rng(0).standard_normal((hidden, width))
    return torch.from_numpy(np.linalg.qr(drawn)[0].astype(np.float32))
