"""PyTorch's pickled checkpoints, weights only: whatever asks for code is refused."""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...errors import BadInputError, UnsupportedError, UntrustedError
from ..dtypes import CODE, NUMPY, dtype_of
from ..values import Array
from .base import CHUNK, Header

if TYPE_CHECKING:
    from torch import Tensor

_NESTED: Final = ("state_dict", "model_state_dict")  # where training frameworks put the weights
_GLOBAL: Final = re.compile(r"GLOBAL ([\w.]+)")


class TorchFile:
    """One file written by ``torch.save``; zip files stay on disk until a tensor is read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: tuple[Path, ...] = (path,)
        self.ignored: tuple[Path, ...] = ()
        self.metadata: Mapping[str, str] = {}
        self._tensors = _state_dict(path)
        self.headers: Mapping[str, Header] = {
            name: _header(path, name, tensor) for name, tensor in self._tensors.items()
        }

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own."""
        header = self.headers[name]
        return self._bytes(name).copy().view(NUMPY[header.dtype]).reshape(header.shape)

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        data = self._bytes(name).data[start:stop]
        yield from (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))

    def _bytes(self, name: str) -> Array:
        import torch

        tensor = self._tensors[name].detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return np.asarray(tensor.view(torch.uint8).numpy())


def _state_dict(path: Path) -> dict[str, Tensor]:
    """Return the tensors at PATH by name.

    Raises:
        UntrustedError: unpickling would need more than tensors and plain containers.
        BadInputError: the file is damaged or holds no state dict.
    """
    import torch

    try:
        # Only zip files can be mapped; the older format has to be read whole.
        mapped = zipfile.is_zipfile(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unusual pickle protocol ends in a refusal anyway
            loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        raise UntrustedError(_refusal(path, error)) from error
    except Exception as error:  # on junk, whatever the reader trips over: struct.error, IndexError
        what = str(error).split("\n", maxsplit=1)[0] or type(error).__name__
        raise BadInputError(f"{path}: not a readable PyTorch file ({what})") from error
    for key in _NESTED:
        loaded = loaded.get(key, loaded) if isinstance(loaded, Mapping) else loaded
    if not isinstance(loaded, Mapping) or not loaded:
        raise BadInputError(f"{path}: holds no state dict but a {type(loaded).__name__}")
    strange = sorted(str(key) for key, value in loaded.items() if not torch.is_tensor(value))
    if strange:
        raise BadInputError(f"{path}: not tensors: {', '.join(strange)}; save the state dict alone")
    return {str(name): tensor for name, tensor in loaded.items()}


def _refusal(path: Path, error: Exception) -> str:
    import torch

    try:
        wanted = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # the older format, or damage: the message has the first one
        wanted = _GLOBAL.findall(str(error))
    if not wanted:
        what = next((line for line in str(error).split("\n") if "pickle" in line.lower()), "")
        return f"{path}: not a pickle of plain tensors ({what[:200] or 'damaged'})"
    names = ", ".join(sorted(set(wanted)))
    return f"{path}: unpickling it would run {names}; save tensors only, best as safetensors"


def _header(path: Path, name: str, tensor: Tensor) -> Header:
    import torch

    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"{path}: tensor {name} is sparse or quantized; save it dense")
    kind = str(tensor.dtype).removeprefix("torch.")
    try:
        return Header(CODE[dtype_of(kind)], tuple(tensor.shape))
    except (KeyError, TypeError):
        raise UnsupportedError(f"{path}: tensor {name}: dtype {kind} is not supported") from None
