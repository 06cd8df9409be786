"""Where MLX computes, and with what: its device, and fast matrix products on the CPU of Linux.

The wheel for Linux is linked to a reference BLAS.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final

from ...errors import BadInputError

SAME_BITS: Final = "MKL_CBWR", "AUTO"  # else MKL's threads sum in another order now and then


def _torch_library() -> Path | None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return library if library.exists() else None


@cache
def preload_blas() -> str:
    """Put PyTorch's BLAS into the global symbol scope, so that MLX resolves ``cblas_*`` to it.

    It works only before the first ``import mlx.core`` of the process, so the command line calls it
    in the verbs that run MLX; ``import weighbridge`` never does. MKL is asked for the same bits in every run.

    Returns:
        What MLX will use, for reports: ``torch (MKL or OpenBLAS)``, ``wheel (reference)`` or
        ``system (Accelerate)``.
    """
    if sys.platform != "linux":
        return "system (Accelerate)"
    os.environ.setdefault(*SAME_BITS)
    library = _torch_library()
    if library is None or "mlx.core" in sys.modules:
        return "wheel (reference)"
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return "torch (MKL or OpenBLAS)"


def blas_in_use() -> str:
    """Return what :func:`preload_blas` did in this process, without doing it.

    >>> blas_in_use() in {"torch (MKL or OpenBLAS)", "wheel (reference)", "system (Accelerate)"}
    True
    """
    if sys.platform != "linux":
        return "system (Accelerate)"
    return preload_blas() if preload_blas.cache_info().currsize else "wheel (reference)"


@contextmanager
def mlx_on(wanted: str) -> Iterator[None]:
    """Let MLX compute on the device that is WANTED in the block: ``cpu``, ``gpu`` or any other for its own choice.

    What is computed to be compared is computed on the CPU: GPUs multiply float32 matrices in TF32, with 10
    bits of each factor (CUDA, and Metal from the M5 on, unless ``MLX_ENABLE_TF32`` is 0 before MLX starts).

    Raises:
        BadInputError: a GPU is wanted, and MLX sees none.
    """
    try:
        import mlx.core as mx
    except ImportError:  # then it computes nothing
        yield
        return
    before = mx.default_device()
    if wanted == "gpu" and before == mx.Device(mx.cpu):
        raise BadInputError(
            "device gpu: MLX sees none here (weighbridge doctor says what it has); set device: auto"
        )
    if wanted == "cpu":
        mx.set_default_device(mx.Device(mx.cpu))
    try:
        yield
    finally:
        mx.set_default_device(before)
