"""Encoders in PyTorch that are right in some batches only."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import nn


class Right(nn.Module):
    """The encoder of a directory, called by the names of its inputs."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel

        super().__init__()
        self.model = AutoModel.from_pretrained(folder)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return hidden states, shape ``(batch, tokens, features)``."""
        return self.encode(input_ids, attention_mask)

    def encode(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the encoder's own outputs."""
        found = self.model(input_ids=ids, attention_mask=mask)
        kept = ("last_hidden_state", "pooler_output")
        return {name: found[name] for name in kept if found.get(name) is not None}


class TakesTypes(Right):
    """The encoder, given token types too."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return hidden states, shape ``(batch, tokens, features)``."""
        found = self.model(input_ids, attention_mask, token_type_ids=token_type_ids)
        return {name: found[name] for name in ("last_hidden_state", "pooler_output")}


class IgnoresTypes(TakesTypes):
    """Takes token types and leaves them."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        return super().forward(input_ids, attention_mask)


class TurnsTypes(TakesTypes):
    """Takes the first text for the second."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        turned = None if token_type_ids is None else 1 - token_type_ids
        return super().forward(input_ids, attention_mask, turned)


class IgnoresMask(Right):
    """Every token sees padding."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        return self.encode(input_ids, torch.ones_like(attention_mask))


class SharesMask(Right):
    """What is padding in one row alone is seen: the mask of the longest row serves all."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        shared = attention_mask.amax(0, keepdim=True).expand_as(attention_mask)
        return self.encode(input_ids, shared)


class CountsLengths(Right):
    """Takes rows for padded on the right, whatever the mask says."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        places = torch.arange(attention_mask.shape[1])
        return self.encode(input_ids, (places < attention_mask.sum(1, keepdim=True)).long())


class Coupled(Right):
    """Rows are moved by the mean over the batch."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        found = self.encode(input_ids, attention_mask)
        return {name: it + 0.01 * (it - it.mean(0)) for name, it in found.items()}


class CountsAllTokens(Right):
    """Positions count padding too, where the encoder's own count tokens alone."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        first = self.model.embeddings.padding_idx + 1
        places = torch.arange(input_ids.shape[1]).expand_as(input_ids) + first
        found = self.model(input_ids, attention_mask, position_ids=places)
        return {"last_hidden_state": found.last_hidden_state, "pooler_output": found.pooler_output}


class OneRowForgets(Right):
    """A batch of one row loses its last token."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        mask = attention_mask.clone()
        if len(mask) == 1:
            mask[:, -1] = 0
        return self.encode(input_ids, mask)


class OneRowFlat(Right):
    """A batch of one row loses its first axis."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        found = self.encode(input_ids, attention_mask)
        return {name: it.squeeze(0) for name, it in found.items()}


PADDED: Final = (IgnoresMask, SharesMask)
ALONE: Final = (OneRowForgets, OneRowFlat)
