"""npz archives of numpy and MLX are read bit for bit, others refused."""

from __future__ import annotations

import io
import zipfile
from itertools import pairwise

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest

from tests import hostile
from weighbridge.converters.checkpoints.base import CHUNK
from weighbridge.converters.checkpoints.formats.npz import NpzFile
from weighbridge.errors import BadInputError, UnsupportedError, UntrustedError

ARRAYS = {
    "c_order": np.arange(12, dtype=np.float32).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(12, dtype=np.float64).reshape(3, 4)),
    "big_endian": np.arange(5, dtype=">i4"),
    "both": np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3)),
    "bfloat16": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3),
    "bfloat16_fortran": np.asfortranarray(np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)),
    "bool": np.array([True, False]),
    "scalar": np.array(3, np.int64),
    "empty": np.zeros((0, 3), np.float16),
}


def member(array: np.ndarray) -> bytes:
    np.save(stream := io.BytesIO(), array)
    return stream.getvalue()


def archive(path, members: dict[str, bytes]):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read_bit_for_bit(save, tmp_path):
    save(path := tmp_path / "a.npz", **ARRAYS)
    found = NpzFile(path)
    for name, array in ARRAYS.items():
        plain = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
        assert (found.read(name).dtype, found.read(name).shape) == (plain.dtype, plain.shape)
        assert found.read(name).tobytes() == plain.tobytes()
        assert b"".join(map(bytes, found.stream(name))) == plain.tobytes()


def test_what_mlx_writes_is_read_bit_for_bit(tmp_path):
    arrays = {
        "bf16": mx.arange(6).reshape(2, 3).astype(mx.bfloat16),
        "f32": mx.arange(4).astype(mx.float32),
    }
    mx.savez(str(path := tmp_path / "weights.npz"), **arrays)
    found = NpzFile(path)
    assert found.headers["bf16"].dtype == "BF16"
    for name, array in arrays.items():
        assert (found.read(name).astype(np.float32) == np.array(array.astype(mx.float32))).all()


def test_a_large_array_streams_in_pieces(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, CHUNK + 9, np.uint8)
    np.savez(path := tmp_path / "a.npz", w=array)
    pieces = [bytes(piece) for piece in NpzFile(path).stream("w")]
    assert max(map(len, pieces)) <= CHUNK
    assert b"".join(pieces) == array.tobytes()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_ranges_are_the_bytes_of_the_array_in_any_order(save, tmp_path):
    array = np.random.default_rng(0).integers(0, 9, (700, 3000)).astype(np.uint8)
    save(path := tmp_path / "a.npz", w=array, f=np.asfortranarray(array))
    found, raw = NpzFile(path), array.tobytes()
    cuts = (0, 5, CHUNK - 1, CHUNK + 1, 2 * CHUNK + 1, len(raw))
    ranges = [*pairwise(cuts), (7, 9), (0, 3), (3, 3), (3, len(raw))]
    for name in ("w", "f"):
        for start, stop in ranges:
            assert b"".join(map(bytes, found.stream(name, start, stop))) == raw[start:stop]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_within_a_tensor_is_told_before_any_of_it_is_given_out(save, tmp_path):
    array = np.random.default_rng(0).integers(0, 255, 2 * CHUNK, np.uint8)
    save(path := tmp_path / "a.npz", w=array)
    content = bytearray(path.read_bytes())
    content[-CHUNK // 2] ^= 1
    path.write_bytes(content)
    found = NpzFile(path)
    with pytest.raises(BadInputError, match=r"w\.npy is damaged"):
        next(found.stream("w", 0, CHUNK))


@pytest.mark.parametrize(("hidden", "claimed"), [(1, 0), (0, 1)])
def test_a_member_of_another_size_than_the_archive_says_is_refused(hidden, claimed, tmp_path):
    whole = member(np.zeros(100, np.uint8))
    path = hostile.npz(tmp_path / "a.npz", {"w.npy": whole + bytes(hidden)}, zipfile.ZIP_DEFLATED)
    hostile.with_size(path, "w.npy", len(whole) + claimed)
    with pytest.raises(BadInputError, match=r"w\.npy is damaged|takes 100 bytes, found 101"):
        NpzFile(path).read("w")


REFUSED = {
    "objects": ({"w.npy": member(np.array([{}], object))}, UntrustedError, "Python objects"),
    "text": ({"w.npy": member(np.array(["a"]))}, UnsupportedError, "tensor w: dtype <U1"),
    "records": ({"w.npy": member(np.zeros(2, "i4,f4"))}, UnsupportedError, "tensor w: dtype"),
    "not an array": ({"w.txt": b"hello"}, BadInputError, "w.txt in it is not an array"),
    "no npy": ({"w.npy": b"hello, this is no array"}, BadInputError, "not a readable npy"),
    "no header": ({"w.npy": b""}, BadInputError, "not a readable npy"),
    "too short": ({"w.npy": member(np.zeros(9))[:-8]}, BadInputError, "takes 72 bytes, found 64"),
    "too long": ({"w.npy": member(np.zeros(9)) + b"1"}, BadInputError, "takes 72 bytes, found 73"),
    "new version": ({"w.npy": b"\x93NUMPY\x09\x00"}, BadInputError, "npy version"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_tensor_is_refused(case, tmp_path):
    members, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        NpzFile(archive(tmp_path / "a.npz", members))


def test_a_damaged_archive_is_told(tmp_path):
    np.savez(path := tmp_path / "a.npz", w=np.arange(100_000.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:200])
    with pytest.raises(BadInputError, match="not a readable npz archive"):
        NpzFile(path)
    flipped = bytearray(whole)
    flipped[700_000] ^= 1  # in the data: only the checksum knows
    path.write_bytes(flipped)
    with pytest.raises(BadInputError, match=r"w\.npy is damaged: .* checksum"):
        NpzFile(path).read("w")
