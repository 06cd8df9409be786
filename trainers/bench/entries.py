"""What a benchmark measures: entries, one row of its table each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from ..config import TrainConfig

BASELINE: Final = "eager, evaluated each step"
LARGER: Final = 4  # times as many examples, in a rung
DEVICES: Final = {"mlx": ("metal", "cuda", "cpu"), "torch": ("mps", "cuda", "cpu")}


class Entry(NamedTuple):
    """One row.

    Attributes:
        name: of the row.
        backend: ``mlx`` or ``torch``.
        settings: of the recipe, that this row changes.
        lazy: read the loss of an update while the next one runs, as training does.
        why_not: why it is not run; empty where it is.
        quantized: replace the model by one with weights of 4 bits.
    """

    name: str
    backend: str
    settings: dict[str, Any]
    lazy: bool = True
    why_not: str = ""
    quantized: bool = False


def matrix(
    config: TrainConfig,
    backends: Sequence[str],
    batch_sizes: Sequence[int],
    dtypes: Sequence[str],
    compiled: Sequence[bool],
) -> list[Entry]:
    """Return the baseline of every backend and the product of all that is asked for.

    What is asked for nothing is as CONFIG says. A backend's other devices are rows that are not run.
    """
    sizes, kinds = batch_sizes or [config.batch_size], dtypes or [config.dtype]
    entries = []
    for backend in backends:
        toggles = [*compiled] if backend == "mlx" and compiled else [False]
        eager = _settings(sizes[0], kinds[0], compiled=False)
        entries.append(Entry(f"{backend} {BASELINE}", backend, eager, lazy=False))
        for size, dtype, compile_ in itertools.product(sizes, kinds, toggles):
            name = f"{backend} {dtype} batch {size}{' compiled' if compile_ else ''}"
            entries.append(Entry(name, backend, _settings(size, dtype, compiled=compile_)))
    return entries


def ladder(config: TrainConfig) -> list[Entry]:
    """Return the rungs of optimisation in MLX, each with what the rungs before it have."""
    size = config.batch_size
    eager = _settings(size, config.dtype, compiled=False) | {"prefetch": {"workers": 0}}
    compiled = eager | {"compile": True}
    dynamic = compiled | {"dynamic_batch": {"min": size, "max": LARGER * size, "every": 2}}
    ahead = dynamic | {"prefetch": {"workers": 1}}
    parts = ahead | {"dynamic_batch": None, "accumulation": LARGER * config.accumulation}
    frozen = "" if config.adapter else "every weight is trained; a base of 4 bits is for adapters"
    return [
        Entry(f"mlx {BASELINE}", "mlx", eager, lazy=False),
        Entry("+ lazy", "mlx", eager),
        Entry("+ compiled", "mlx", compiled),
        Entry("+ dynamic batch", "mlx", dynamic),
        Entry("+ prefetch", "mlx", ahead),
        Entry("accumulated in place of larger batches", "mlx", parts),
        Entry("+ 4-bit base", "mlx", ahead, why_not=frozen, quantized=True),
    ]


def absent(backends: Sequence[str], used: dict[str, str]) -> list[Entry]:
    """Return a row for every device of BACKENDS that was not USED here."""
    return [
        Entry(f"{backend} on {device}", backend, {}, why_not="no such device here")
        for backend in backends
        for device in DEVICES[backend]
        if device != used.get(backend, device)
    ]


def _settings(size: int, dtype: str, *, compiled: bool) -> dict[str, Any]:
    return {"batch_size": size, "dtype": dtype, "compile": compiled}
