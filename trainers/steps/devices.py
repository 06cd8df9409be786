"""Devices of PyTorch: which one a step computes on, its memory, and its random numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...errors import BadInputError


def device_for(wanted: str) -> torch.device:
    """Return the device that WANTED is here: ``auto``, ``cpu`` or ``gpu`` (CUDA, or Metal as ``mps``).

    Of several GPUs each process of ``torchrun`` has its own.

    Raises:
        BadInputError: a GPU is wanted, and PyTorch sees none.
    """
    if wanted == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", _local_rank() % torch.cuda.device_count())
    if torch.backends.mps.is_available():
        return torch.device("mps")
    if wanted == "gpu":
        raise BadInputError(
            "device gpu: PyTorch sees none here (weighbridge doctor says what it has); set device: auto"
        )
    return torch.device("cpu")


def _local_rank() -> int:
    import os

    rank = os.environ.get("LOCAL_RANK", "0")
    return int(rank) if rank.isdecimal() else 0


def most_memory(device: torch.device) -> Callable[[], int]:
    """Return what tells the most bytes in use of a DEVICE with memory of its own."""
    if device.type == "cuda":
        return lambda: int(torch.cuda.max_memory_allocated(device))
    return lambda: 0  # that of Metal is the process's own


def random_state(device: torch.device) -> Tensor:
    """Return the random state of the CPU, and after it that of DEVICE, as bytes."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return torch.cat(states)


def set_random_state(state: Tensor, device: torch.device) -> None:
    """Go back to a STATE of ``random_state``; one of another device sets that of the CPU alone."""
    first = len(torch.get_rng_state())
    torch.set_rng_state(state[:first])
    if device.type != "cpu" and len(state) > first:
        torch.get_device_module(device).set_rng_state(state[first:], device)


def kind_of_mlx() -> str:
    """Return the kind of device that MLX computes on: ``cpu``, ``metal`` or ``cuda``."""
    import mlx.core as mx

    if mx.default_device() == mx.Device(mx.cpu):
        return "cpu"
    return "metal" if mx.metal.is_available() else "cuda"
