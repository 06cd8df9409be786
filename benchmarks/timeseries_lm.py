"""What a forecaster around a 4-bit decoder costs beside the decoder itself, and with a head of 128,256 rows.

    python benchmarks/timeseries_lm.py [--rounds 15] [--out benchmarks/results/timeseries_lm.json]

Updates of AdamW in MLX, 32 examples of 8 positions, on the bundled decoder (2 layers of 64, its matrices codes), in
turns; medians, and ratios to the first row:

- ``decoder``: states in, one trained vector added to them, the last state out: gradients through all codes.
- ``forecaster``: encoder, projector, the same decoder, a head of 16 numbers.
- ``large head``: the same with a head of 128,256 numbers, as many as Llama 3 has tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROWS, POSITIONS, HIDDEN, LARGE = 32, 8, 64, 128_256
HERE = "timeseries_lm:build_alone"


class Alone(torch.nn.Module):
    """The decoder of a forecaster, with one trained vector added to its inputs."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.shift = torch.nn.Parameter(torch.zeros(HIDDEN))
        self.decoder, self.quantized = whole.decoder, whole.quantized

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return 16 numbers of the last state."""
        found = self.decoder(inputs_embeds=series + self.shift, use_cache=False)
        return found.last_hidden_state[:, -1, :16]


def build_alone(**options: Any) -> torch.nn.Module:
    """Return the decoder of the recipe's forecaster alone."""
    from weighbridge.trainers.models.timeseries_lm import build

    return Alone(build(**options))


def step(
    folder: Path, name: str, shape: tuple[int, ...], outputs: int, overrides: list[str]
) -> Any:
    """Return an update of one row of the table, and how many of its weights are codes."""
    import mlx.core as mx

    from weighbridge.trainers import bundled
    from weighbridge.trainers.config import load_config
    from weighbridge.trainers.runs.loop import make_step
    from weighbridge.trainers.tasks import build_task

    random, path = np.random.default_rng(0), folder / f"{name}.npz"
    arrays = {"series": (ROWS, *shape), "target": (ROWS, outputs)}
    np.savez(path, **{key: random.normal(size=it).astype(np.float32) for key, it in arrays.items()})
    data = [f"data.train={path}", f"data.validation={path}", "data.test=null"]
    config = load_config("timeseries-lm", [*data, *overrides])
    bundled.provide(config.sources())
    task = build_task(config)
    made = make_step("mlx", task, config)
    batch = task.splits["train"].batch(range(ROWS))

    def update() -> None:
        made.advance([batch], 1e-3)()
        mx.synchronize()  # parameters are updated behind the loss

    return update, len(made.model.blocks())


def main() -> None:
    """Measure the rows in turns and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    results = Path(__file__).parent / "results" / "timeseries_lm.json"
    parser.add_argument("--out", type=Path, default=results)
    options = parser.parse_args()
    from weighbridge.converters.runtimes.blas import preload_blas

    preload_blas()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        alone = [f"model={HERE}", "model_options={decoder: 'bundled:timeseries/decoder'}"]
        rows = {
            "decoder": step(place, "decoder", (POSITIONS, HIDDEN), 16, alone),
            "forecaster": step(place, "forecaster", (1, 64), 16, []),
            "large head": step(place, "large", (1, 64), LARGE, [f"model_options.outputs={LARGE}"]),
        }
        seconds: dict[str, list[float]] = {name: [] for name in rows}
        for turn in range(options.rounds + 2):
            for name, (update, _) in rows.items():
                begin = time.perf_counter()
                update()
                if turn >= 2:  # the first ones make state and fill caches
                    seconds[name].append(time.perf_counter() - begin)
    first = statistics.median(seconds["decoder"])
    table = {
        name: {"ratio": round(statistics.median(it) / first, 2), "codes": rows[name][1]}
        for name, it in seconds.items()
    }
    options.out.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
