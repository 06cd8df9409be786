"""Factories that return a model of transformers and say nothing of what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoModelForCausalLM

FIXTURES = Path(__file__).parents[2] / "fixtures"


def encoder() -> Any:
    """Return an encoder of texts."""
    return AutoModel.from_pretrained(FIXTURES / "bert" / "model").eval()


def causal() -> Any:
    """Return a language model whose class the tables have no row for."""
    return AutoModelForCausalLM.from_pretrained(FIXTURES / "qwen3" / "model").eval()


def headless() -> Any:
    """Return the same without its head."""
    return AutoModel.from_pretrained(FIXTURES / "qwen3" / "model").eval()
