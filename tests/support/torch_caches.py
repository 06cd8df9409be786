"""Modules in PyTorch that take a cache: one returns none, one calls it by a name of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class Forgetful(nn.Module):
    """Takes what was kept, and keeps nothing."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> dict[str, torch.Tensor]:
        """Return logits, shape ``(batch, tokens, vocabulary)``."""
        return {"logits": self.model(input_ids).logits}


class Stateful(nn.Module):
    """Takes what was kept by a name that transformers does not use."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, past_states: Any = None) -> dict[str, torch.Tensor]:
        """Return logits, shape ``(batch, tokens, vocabulary)``."""
        found = self.model(input_ids, past_key_values=past_states)
        return {"logits": found.logits}


class Answers(nn.Module):
    """A T5 that reads its answer piece by piece."""

    def __init__(self, folder: Path) -> None:
        from transformers import T5ForConditionalGeneration

        super().__init__()
        self.model = T5ForConditionalGeneration.from_pretrained(folder)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> dict[str, Any]:
        """Return logits, shape ``(batch, tokens, vocabulary)``, and what was kept."""
        states = self.states(input_ids, attention_mask, use_cache)
        found = self.model(
            encoder_outputs=states,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )
        kept = found.past_key_values if use_cache else None
        encoded = found.encoder_last_hidden_state
        return {
            "logits": found.logits,
            "encoder_last_hidden_state": encoded,
            "last_hidden_state": encoded,
            "past_key_values": kept,
        }

    def states(self, ids: torch.Tensor, mask: torch.Tensor, cached: bool) -> Any:
        """Return what the encoder makes of a text."""
        return self.model.encoder(ids, mask)


class StaleText(Answers):
    """Answers every text, once it answers piece by piece, as if it were the first of its size."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kept: dict[torch.Size, torch.Tensor] = {}

    def states(self, ids: torch.Tensor, mask: torch.Tensor, cached: bool) -> Any:
        if not cached:
            return super().states(ids, mask, cached)
        if ids.shape not in self.kept:
            self.kept[ids.shape] = super().states(ids, mask, cached).last_hidden_state
        return (self.kept[ids.shape],)


class ShortSight(Answers):
    """Takes the text for as long as the answer: what is behind that is not seen."""

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        decoder_input_ids: torch.Tensor,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> dict[str, Any]:
        found = super().forward(input_ids, attention_mask, decoder_input_ids)
        mask = attention_mask.clone()
        mask[:, decoder_input_ids.shape[1] :] = 0
        mask[mask.sum(1) == 0] = 1
        seen = self.model(
            encoder_outputs=self.model.encoder(input_ids, attention_mask),
            attention_mask=mask,
            decoder_input_ids=decoder_input_ids,
        )
        return {**found, "logits": seen.logits}


def read(folder: Path) -> nn.Module:
    """Return the language model of the directory FOLDER."""
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder)
    return model
