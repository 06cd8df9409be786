"""How long a run goes on, and how large its batches are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from .section import Section


class EarlyStopping(Section):
    """Stop after PATIENCE validations without an improvement of the metric by more than MIN_DELTA."""

    patience: PositiveInt = 3
    min_delta: Annotated[float, Field(ge=0)] = 0.0


class DynamicBatch(Section):
    """Sizes of a micro-batch between MIN and MAX, by the memory in use.

    A run begins with MIN. Every EVERY updates the size doubles where less than half of the budget was
    in use, and halves where more than 0.8 was. BUDGET is in MB; without one it is the memory of the
    GPU, or of the machine. MAX is MIN doubled some times.
    """

    min: PositiveInt = 32
    max: PositiveInt = 64
    every: PositiveInt = 10
    budget: PositiveFloat | None = None

    @model_validator(mode="after")
    def _doubles(self) -> DynamicBatch:
        """Refuse a MAX that doubling MIN does not reach."""
        times = self.max // self.min
        if times < 1 or self.min * times != self.max or times & (times - 1):
            raise ValueError(f"max {self.max} is not min {self.min} doubled some times")
        return self
