"""What is trained, and how it is updated."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from .section import Fraction, Section


class AdapterSection(Section):
    """Low-rank adapters on the linear modules whose path ends in one of TARGETS."""

    rank: PositiveInt = 8
    scale: PositiveFloat = 2.0
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("query", "value")
    dropout: Literal[0] = 0


class OptimizerSection(Section):
    """AdamW (Loshchilov and Hutter 2019), bias correction always on."""

    name: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 1e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class ScheduleSection(Section):
    """Learning rate over the run: WARMUP is a fraction of it, FINAL a fraction of the peak."""

    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: Fraction = 0.1
    final: Fraction = 0.0
