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


def read(folder: Path) -> nn.Module:
    """Return the language model of the directory FOLDER."""
    from transformers import AutoModelForCausalLM

    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder)
    return model
