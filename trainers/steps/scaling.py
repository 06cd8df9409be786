"""Loss scaling for float16, whose small gradients vanish: the numbers of it, and its state in MLX and torch.

The loss is multiplied by a scale before it is differentiated, and the gradient divided by it. Where the
gradient is not finite the update is skipped and the scale halved; after INTERVAL updates in a row that
were finite it is doubled, as ``torch.amp.GradScaler`` does. Beside it stands the average of the
parameters (Polyak and Juditsky 1992): the first update sets it, each later one moves it by 1 - decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import mlx.core as mx
import numpy as np
import torch

from ...converters.values import Array

LARGEST: Final = (
    2.0**15
)  # the largest power of two in float16, in which the gradient of the loss begins
INTERVAL: Final = 2000


class MlxExtras:
    """The state besides the optimizer's in MLX, in containers that stay the same."""

    def __init__(self, dtype: str, decay: float | None, parameters: Mapping[str, mx.array]) -> None:
        self.state: dict[str, Any] = {}
        self._decay = decay
        if dtype == "float16":
            self.state |= {"scale": mx.array(LARGEST), "finite": mx.array(0)}
        if decay is not None:
            self.state |= {"updates": mx.array(0), "average": dict(parameters)}

    @property
    def scale(self) -> mx.array:
        """What the loss is multiplied by."""
        return self.state["scale"] if "scale" in self.state else mx.array(1.0)

    @property
    def average(self) -> dict[str, mx.array]:
        """The averaged parameters, none without averaging."""
        average: dict[str, mx.array] = self.state.get("average", {})
        return average

    def after(self, finite: mx.array, parameters: Mapping[str, mx.array]) -> None:
        """Take note of an update, FINITE or skipped, after which the PARAMETERS are these."""
        state = self.state
        if "scale" in state:
            count = mx.where(finite, state["finite"] + 1, 0)
            due = count >= INTERVAL
            grown = mx.where(due, mx.minimum(state["scale"] * 2, LARGEST), state["scale"])
            state["scale"] = mx.where(finite, grown, state["scale"] / 2)
            state["finite"] = mx.where(due, 0, count)
        if self._decay is not None:
            share = mx.where(state["updates"] == 0, 1.0, 1 - self._decay)
            for name, kept in state["average"].items():
                moved = kept + share * (parameters[name] - kept)
                state["average"][name] = mx.where(finite, moved, kept)
            state["updates"] = state["updates"] + finite


class TorchExtras:
    """The same in torch."""

    def __init__(
        self, dtype: str, decay: float | None, parameters: Mapping[str, torch.Tensor]
    ) -> None:
        self._decay = decay
        self.scale = LARGEST if dtype == "float16" else 1.0
        self._scales, self._finite, self._updates = dtype == "float16", 0, 0
        self.average: dict[str, torch.Tensor] = {}
        if decay is not None:
            self.average = {name: value.detach().clone() for name, value in parameters.items()}

    @torch.no_grad()
    def after(self, *, finite: bool, parameters: Mapping[str, torch.Tensor]) -> None:
        """Take note of an update, FINITE or skipped, after which the PARAMETERS are these."""
        if self._scales:
            self._finite = self._finite + 1 if finite else 0
            if not finite:
                self.scale /= 2
            elif self._finite >= INTERVAL:
                self.scale, self._finite = min(self.scale * 2, LARGEST), 0
        if finite and self._decay is not None:
            share = 1 - self._decay if self._updates else 1.0
            for name, kept in self.average.items():
                kept.lerp_(parameters[name], share)
            self._updates += 1

    def state(self) -> dict[str, torch.Tensor]:
        """Return everything by the names that it has in MLX; updates write over the averages."""
        found = {f"average.{name}": value for name, value in self.average.items()}
        if self._scales:
            found |= {"scale": torch.tensor(self.scale), "finite": torch.tensor(self._finite)}
        if self._decay is not None:
            found["updates"] = torch.tensor(self._updates)
        return found

    @torch.no_grad()
    def restore(self, state: Mapping[str, Array]) -> None:
        """Go back to what ``state`` returned."""
        self.scale = float(state.get("scale", self.scale))
        self._finite = int(state.get("finite", 0))
        self._updates = int(state.get("updates", 0))
        for name, kept in self.average.items():
            kept.copy_(torch.from_numpy(np.array(state[f"average.{name}"])))
