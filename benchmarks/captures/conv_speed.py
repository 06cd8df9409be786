"""Measure captured convolutional networks against the same in MLX with channels last, in one process.

    python benchmarks/captures/conv_speed.py [--repeat 9]

The networks: residual blocks of 3 x 3 convolutions with group norms, with batch norms in training, and
a U-net with pooling and upsampling, for images of 32 and of 96 pixels. At 32 a forward of the U-net takes a few
milliseconds, of which making the graph in Python is a part. Both sides have the same weights; the one by hand is written
with ``mlx.nn`` and takes images with channels last. Sides take turns; times are of the processor, BLAS
with one thread, memory that is freed stays with the process. Writes ``results/conv_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")  # threads that wait take time, too

from weighbridge.converters.runtimes.blas import preload_blas

preload_blas()

import mlx.core as mx  # noqa: E402
import torch  # noqa: E402
from mlx import nn  # noqa: E402

from weighbridge.converters.captures import capture  # noqa: E402
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx  # noqa: E402
from weighbridge.tests.support.side_by_side import machine  # noqa: E402
from weighbridge.trainers.memory.freed import kept  # noqa: E402

RESULT: Final = Path(__file__).parents[1] / "results" / "conv_speed.json"
BATCH, WIDTH, GROUPS, BLOCKS = 4, 32, 8, 3
NETWORKS: Final = (("group", 32), ("batch", 32), ("group U-net", 32), ("group U-net", 96))
BAR: Final = 1.02


def norms(library: Any, kind: str) -> Any:
    """Return a normalization layer of WIDTH channels from ``torch.nn`` or ``mlx.nn``."""
    if kind == "batch":
        return (library.BatchNorm2d if library is torch.nn else library.BatchNorm)(WIDTH)
    options = {} if library is torch.nn else {"pytorch_compatible": True}
    return library.GroupNorm(GROUPS, WIDTH, **options)


def network(library: Any, kind: str) -> Any:
    """Return a network of LIBRARY; both have the same attributes, so the same names of weights."""
    on_torch = library is torch.nn

    class Network(library.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.stem = library.Conv2d(3, WIDTH, 3, padding=1)
            made = [library.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2 * BLOCKS)]
            kept = [norms(library, kind.removesuffix(" U-net")) for _ in range(2 * BLOCKS)]
            self.convs = library.ModuleList(made) if on_torch else made
            self.norms = library.ModuleList(kept) if on_torch else kept
            self.pool, self.up = library.MaxPool2d(2), library.Upsample(scale_factor=2.0)

        def forward(self, x: Any) -> Any:
            relu = torch.relu if on_torch else nn.relu
            skip = x = relu(self.stem(x))
            if "U-net" in kind:
                x = self.pool(x)
            for i in range(BLOCKS):
                y = relu(self.norms[2 * i](self.convs[2 * i](x)))
                x = relu(x + self.norms[2 * i + 1](self.convs[2 * i + 1](y)))
            return skip + self.up(x) if "U-net" in kind else x

        __call__ = library.Module.__call__ if on_torch else forward

    return Network()


def sides(kind: str, images: torch.Tensor) -> dict[str, tuple[nn.Module, Callable[[], mx.array]]]:
    """Return the modules by name, with the same weights, and what each computes of IMAGES."""
    module = network(torch.nn, kind).train()
    captured = capture(module, inputs={"x": images})
    by_hand = network(nn, kind).train()
    weights = {name: to_mlx(p) for name, p in module.state_dict().items() if "tracked" not in name}
    moved = {n: w.transpose(0, 2, 3, 1) if w.ndim == 4 else w for n, w in weights.items()}
    by_hand.load_weights(list(moved.items()), strict=False)
    first, last = to_mlx(images), to_mlx(images.permute(0, 2, 3, 1))
    mx.eval(by_hand.parameters(), captured.parameters(), first, last)
    return {
        "captured": (captured, lambda: captured(x=first)),
        "by hand": (by_hand, lambda: by_hand(last)),
    }


def steps(module: nn.Module, forward: Callable[[], mx.array]) -> dict[str, Callable[[], Any]]:
    """Return what is timed of MODULE, by name."""
    step: Any = nn.value_and_grad(module, lambda: forward().square().mean())
    return {
        "forward": lambda: mx.eval(forward(), module.state),
        "forward and backward": lambda: mx.eval(step(), module.state),
    }


def in_turns(calls: dict[str, Callable[[], Any]], repeat: int) -> dict[str, float]:
    """Return the median processor time of each of CALLS, in milliseconds, after two warm-ups."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(-2, repeat):
        for name, call in calls.items():
            before = time.process_time()
            call()
            if number >= 0:
                times[name].append(time.process_time() - before)
    return {name: 1e3 * statistics.median(own) for name, own in times.items()}


def measured(kind: str, size: int, repeat: int) -> list[dict[str, Any]]:
    """Return a row for each thing that is timed of the network KIND for images of SIZE; the sides must agree."""
    both = sides(kind, torch.randn(BATCH, 3, size, size))
    captured, by_hand = (forward() for _, forward in both.values())
    error = float(abs(captured.transpose(0, 2, 3, 1) - by_hand).max() / abs(by_hand).max())
    if error > 1e-4:
        raise SystemExit(f"{kind}: the sides differ by {error}")
    own = {name: steps(*side) for name, side in both.items()}
    rows = []
    for what in own["captured"]:
        took = in_turns({name: calls[what] for name, calls in own.items()}, repeat)
        ratio = took["captured"] / took["by hand"]
        rows.append(
            {"network": kind, "pixels": size, "what": what, "ms": took, "ratio": ratio}
            | {"error": error}
        )
        print(f"{kind:12} {size:3} {what:24} {ratio:.3f}  {took}", flush=True)
    return rows


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=9)
    repeat = parser.parse_args().repeat
    with kept():
        rows = [row for network in NETWORKS for row in measured(*network, repeat)]
    document = {"rows": rows, "bar": BAR, "repeat": repeat, "machine": machine()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
