"""Mean squared error of a forecast."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from ..evaluation import measure_regression
from .outputs import Supervised


class Regression(Supervised):
    """The loss of a batch of series or texts: the mean of the squared differences from the target."""

    wanted: ClassVar = ("labels", "target")
    measure = staticmethod(measure_regression)

    def loss(self, found: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean squared difference; a model's one output of width 1 is a number."""
        return functional.mse_loss(found.reshape(wanted.shape), wanted)
