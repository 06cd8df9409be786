"""A model of one convolution: ``record`` runs it dozens of times, in each of many commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weighbridge.converters.models import Signature
from weighbridge.examples.timeseries import CHANNELS, HISTORY, HORIZON, SIGNATURE


def build() -> tuple[Any, Signature]:
    """Return a torch module that takes and gives what the forecaster does, and its signature."""
    import torch
    from torch import nn

    class Little(nn.Module):
        """A convolution and a linear head."""

        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv1d(CHANNELS, 4, 5, padding=2)
            self.head = nn.Linear(4 * HISTORY, HORIZON)

        def forward(self, series: torch.Tensor) -> torch.Tensor:
            """Forecast the next HORIZON steps."""
            return self.head(self.stem(series).flatten(1))

    torch.manual_seed(0)
    return Little(), SIGNATURE


def write(folder: Path) -> None:
    """Write the module's weights to FOLDER."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file(build()[0].state_dict(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "little"}) + "\n")
