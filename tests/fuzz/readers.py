"""Independent readers: what a spoiled file holds, by the libraries that others read it with."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CODES = {
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float64": "F64",
    "torch.int8": "I8",
    "torch.uint8": "U8",
    "torch.int16": "I16",
    "torch.int32": "I32",
    "torch.int64": "I64",
    "torch.bool": "BOOL",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.uint16": "U16",
    "torch.uint32": "U32",
    "torch.uint64": "U64",
    "torch.complex64": "C64",
}


NAMES = {"<f4": "F32", "<f8": "F64", "<f2": "F16", "|V2": "BF16", "<i4": "I32", "<i8": "I64"}
NAMES |= {"|i1": "I8", "|u1": "U8", "|b1": "BOOL", "<c8": "C64", "<i2": "I16", "<u4": "U32"}


class Tensor(NamedTuple):
    """A tensor as it is stored."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def header(self) -> str:
        """Its dtype and shape as ``inspect`` prints them."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


Tensors = dict[str, Tensor]


def of_torch(tensor: Any) -> Tensor:
    """Return a torch tensor as it is stored."""
    import torch

    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return Tensor(CODES[str(tensor.dtype)], tuple(tensor.shape), flat.numpy().tobytes())


def safetensors(path: Path) -> Tensors:
    """Read PATH with the safetensors library."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: of_torch(file.get_tensor(name)) for name in list(file.keys())}


def shards(folder: Path) -> Tensors:
    """Read the shards that an index names, as transformers does."""
    index = strict_json((folder / "model.safetensors.index.json").read_bytes())
    files = {name: safetensors(folder / name) for name in set(index["weight_map"].values())}
    if any("/" in name or "\\" in name for name in files):
        raise ValueError("a shard lies outside the folder")
    return {name: files[file][name] for name, file in index["weight_map"].items()}


def npz(path: Path) -> Tensors:
    """Read PATH with numpy."""
    import torch

    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    native = {name: array.astype(array.dtype.newbyteorder("=")) for name, array in arrays.items()}
    return {
        name: of_torch(torch.from_numpy(np.array(array, order="C")))
        for name, array in native.items()
    }


def npz_headers(path: Path) -> Tensors:
    """Read the headers of PATH with numpy, but not the numbers, which may not be whole."""
    from numpy.lib import format as npy

    found: Tensors = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as file:
                file._expected_crc = None  # a small array would be read to its end
                read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
                shape, _, dtype = read[npy.read_magic(file)](file)
            kind = NAMES[dtype.newbyteorder("<").str]
            found[info.filename.removesuffix(".npy")] = Tensor(kind, shape, b"")
    return found


def torch_file(path: Path) -> Tensors:
    """Read PATH with torch, weights only, the checksums of the archive as well."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
        if bad:
            raise ValueError(f"{bad}: bad checksum")
    return torch_unchecked(path)


def torch_unchecked(path: Path) -> Tensors:
    """Read PATH with torch, weights only."""
    import torch

    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model_state_dict"):
        loaded = loaded.get(key, loaded)
    return {name: of_torch(tensor) for name, tensor in loaded.items()}


def gguf_file(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read PATH with llama.cpp's library: tensors in float32, and the metadata as bytes."""
    import gguf

    reader = gguf.GGUFReader(path)
    arrays = {
        it.name: np.asarray(gguf.dequantize(it.data, it.tensor_type), np.float32).reshape(
            [int(size) for size in it.shape][::-1]
        )
        for it in reader.tensors
    }
    return arrays, {
        name: [part.tobytes() for part in field.parts] for name, field in reader.fields.items()
    }


def pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return PAIRS as a dictionary; a key may not come twice."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key comes twice")
    return dict(pairs)


def constant(name: str) -> float:
    """Return Infinity, which transformers 4 writes; refuse NaN, which nobody means."""
    if name == "NaN":
        raise ValueError(f"{name} is not JSON")
    return float(name)


def strict_json(data: bytes) -> Any:
    """Read JSON, of which no key may come twice."""
    return json.loads(data.decode("utf-8"), object_pairs_hook=pairs_once, parse_constant=constant)


def record(data: bytes) -> Any:
    """Read JSON that Weighbridge has written, NaN among its numbers."""
    return json.loads(data.decode("utf-8"), object_pairs_hook=pairs_once)


def floats(path: Path) -> np.ndarray:
    """Return the blobs of a Core ML package's weights as float32, 64 bytes of head left out."""
    data = path.read_bytes()[64:]
    return np.frombuffer(data[: len(data) // 4 * 4], "<f4")


def safetensors_header(path: Path) -> dict[str, Any]:
    """Return the header of PATH, by the format's own description."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = strict_json(data[8 : 8 + size])
    return header
