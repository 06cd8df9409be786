"""Mean squared error of a forecast."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional


class Regression(nn.Module):
    """The loss of a batch of series: the mean of the squared differences from the target."""

    dynamic: ClassVar = {name: {0: "batch"} for name in ("series", "target")}

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, series: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        forecast = self.model(series)
        return functional.mse_loss(forecast[0] if isinstance(forecast, tuple) else forecast, target)
