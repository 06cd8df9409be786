"""What is in use now: by this process, by the system, and by the frameworks that are imported already."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

Reading = tuple[str, int]


class Sample(NamedTuple):
    """Memory in use at one moment.

    Attributes:
        seconds: since the profiler began.
        step: the update that had just been done; ``None`` between updates.
        bytes: what is in use, by name; see :func:`read_memory`.
    """

    seconds: float
    step: int | None
    bytes: dict[str, int]


def read_memory() -> dict[str, int]:
    """Return the bytes in use, by name; a framework that nobody has imported is not imported for it.

    ``process`` is the resident size of this process and ``system`` what all programs use. With MLX come
    ``mlx_active`` (arrays that live), ``mlx_peak`` (the most of those so far) and ``mlx_cache`` (freed
    and kept for the next arrays). With a GPU of PyTorch come ``torch_active``, ``torch_peak`` (CUDA
    alone) and ``torch_reserved``; on the CPU, PyTorch counts nothing and ``process`` has to do.
    """
    import psutil

    system = psutil.virtual_memory()
    values = {"process": psutil.Process().memory_info().rss}
    values["system"] = system.total - system.available
    return values | dict(_of_mlx()) | dict(_of_torch())


def _of_mlx() -> Iterator[Reading]:
    mx = _imported("mlx.core")
    for name in ("active", "peak", "cache") if mx else ():
        yield f"mlx_{name}", int(getattr(mx, f"get_{name}_memory")())


def _of_torch() -> Iterator[Reading]:
    torch = _imported("torch")
    if torch is None:
        return
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        yield "torch_active", int(torch.cuda.memory_allocated())
        yield "torch_peak", int(torch.cuda.max_memory_allocated())
        yield "torch_reserved", int(torch.cuda.memory_reserved())
    elif torch.backends.mps.is_available():
        yield "torch_active", int(torch.mps.current_allocated_memory())
        yield "torch_reserved", int(torch.mps.driver_allocated_memory())


def _imported(name: str) -> Any:
    """Return the module NAME, ``None`` while another thread is at its import: it lacks what is asked of it."""
    module = sys.modules.get(name)
    initializing = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if initializing else module
