"""Mean squared error of a forecast."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Regression(nn.Module):
    """The loss of a batch of series: the mean of the squared differences from the target."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, series: Tensor, target: Tensor) -> Tensor:
        """Return the loss, a scalar."""
        forecast = self.model(series)
        return functional.mse_loss(forecast[0] if isinstance(forecast, tuple) else forecast, target)
