"""Advice on memory, each line with the figures that it rests on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from .leaks import Trend

FULL: Final = 0.8  # part of the limit from which on a run is near its end
AIM: Final = 0.7  # part of the limit that a larger batch may fill
MOST: Final = 16  # times the batch size that are advised
KEPT: Final = 0.5  # freed memory that MLX keeps, as a part of the peak of its arrays


class Budget(NamedTuple):
    """How much there is.

    Attributes:
        name: the reading that counts against it: ``process``, ``mlx_active`` or ``torch_active``.
        limit: bytes.
    """

    name: str
    limit: int


class Facts(NamedTuple):
    """What advice rests on.

    Attributes:
        peaks: the largest reading of everything, in bytes.
        passing: bytes that an update needs only while it runs.
        unit: what trends are over.
        batch_size: examples that are in memory at once.
    """

    peaks: Mapping[str, int]
    passing: int
    unit: str
    batch_size: int | None


def budget(sizes: Mapping[str, int]) -> Budget:
    """Return the memory that a run with readings of SIZES has: that of its GPU, or the machine's."""
    mx: Any = sys.modules.get("mlx.core")
    if mx and mx.default_device() == mx.Device(mx.gpu):
        facts = mx.device_info()
        found = (facts.get(key) for key in ("max_recommended_working_set_size", "total_memory"))
        if limit := next((size for size in found if size), None):
            return Budget("mlx_active", int(limit))
    if "torch_peak" in sizes:
        torch: Any = sys.modules["torch"]
        return Budget("torch_active", int(torch.cuda.get_device_properties().total_memory))
    from ...converters.common.memory import room

    return Budget("process", room().limit)


def advise(facts: Facts, trends: Mapping[str, Trend], there: Budget) -> Iterator[str]:
    """Yield advice, the most urgent first.

    Args:
        facts: what was measured.
        trends: judged series by name.
        there: how much memory there is.
    """
    peak = max(facts.peaks[there.name], facts.peaks.get(there.name.replace("active", "peak"), 0))
    for name, trend in trends.items():
        if trend.verdict == "leak":
            yield _on_leak(name, trend, facts.unit, there.limit - peak)
    yield from _on_batch(facts, peak, there.limit)
    kept, most = facts.peaks.get("mlx_cache", 0), facts.peaks.get("mlx_peak", 0)
    if kept > KEPT * most and kept > (1 - FULL) * there.limit:
        yield (
            f"MLX keeps up to {_mb(kept)} of freed memory beside a peak of {_mb(most)} in arrays:"
            f" mlx.core.set_cache_limit({int(KEPT * most)}) gives the rest back"
        )


def _on_leak(name: str, trend: Trend, unit: str, left: int) -> str:
    low, high = _mb(trend.low), _mb(trend.high)
    return (
        f"{name} grows by {_mb(trend.slope)} per {unit} (99 % interval {low} to {high}); the"
        f" {_mb(max(0, left))} left are full after {max(0, left) / trend.slope:.0f} more: look for what"
        f" is kept from {unit} to {unit}, such as a loss that is added up and never read"
    )


def _on_batch(facts: Facts, peak: int, limit: int) -> Iterator[str]:
    """Advise on the batch size: what an update needs in passing grows with it."""
    size, passing = facts.batch_size, facts.passing
    used = f"the peak of {_mb(peak)} is {peak / limit:.0%} of {_mb(limit)}"
    if peak >= FULL * limit:
        half = f"batch_size={max(1, (size or 2) // 2)}"
        yield f"{used}: --set {half} --set accumulation=2 needs about {_mb(peak - passing / 2)}"
    elif size and passing > 0:
        times = 1
        while times < MOST and peak + (2 * times - 1) * passing <= AIM * limit:
            times *= 2
        if times > 1:
            yield (
                f"{used}, of which {_mb(passing)} come and go with a batch of {size}:"
                f" batch_size={times * size} would need about {_mb(peak + (times - 1) * passing)}"
            )


def _mb(size: float) -> str:
    return f"{size / 1e6:.3g} MB" if size < 1e7 else f"{size / 1e6:.0f} MB"
