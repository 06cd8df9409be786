"""Files made to harm are refused in one line, before they take memory; no code runs."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import hostile
from tests.hostile import refused
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.errors import WeighbridgeError


@pytest.fixture
def source(tiny_bert_dir, tmp_path) -> Path:
    """Return a copy of a good torch directory without its tensors."""
    folder = Path(shutil.copytree(tiny_bert_dir, tmp_path / "source"))
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(autouse=True)
def _away(tmp_path, monkeypatch):
    """Let code that runs leave its file in the test's own folder."""
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "it-ran").exists()


WRITERS = {"zip": hostile.torch_zip, "legacy": hostile.torch_legacy}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("case", hostile.PICKLES)
def test_a_hostile_pickle_is_refused_by_name(source, case, writer):
    code, said = hostile.PICKLES[case]
    WRITERS[writer](source / "pytorch_model.bin", code)
    line = refused("inspect", source)
    assert "pytorch_model.bin" in line
    if writer == "zip":
        assert said in line


@pytest.mark.parametrize("writer", WRITERS)
def test_what_torch_writes_by_hand_is_read(source, writer):
    numbers = np.arange(4, dtype=np.float32)
    code = hostile.state(hostile.GOOD)
    WRITERS[writer](source / "pytorch_model.bin", code, numbers.tobytes())
    path = source / "pytorch_model.bin"
    assert np.array_equal(open_checkpoint(path).read("a"), numbers.reshape(2, 2))
    assert torch.equal(torch.load(path, weights_only=True)["a"], torch.arange(4.0).view(2, 2))


@pytest.mark.parametrize("case", hostile.ARRAYS)
def test_a_hostile_array_is_refused_by_name(source, case):
    hostile.npz(source / "weights.npz", {"w.npy": hostile.ARRAYS[case]})
    line = refused("inspect", source)
    assert "weights.npz" in line
    assert "tensor w" in line


def overlapping(path: Path) -> None:
    """Let two members share the bytes of one, as archives do that unpack to far more than they are."""
    hostile.npz(path, {"a.npy": hostile.saved(np.ones(4)), "b.npy": hostile.saved(np.ones(4))})
    data = bytearray(path.read_bytes())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = bytes(4)
    path.write_bytes(data)


def lost(path: Path) -> None:
    hostile.npz(path, {name: hostile.saved(np.ones(4)) for name in ("a.npy", "b.npy", "c.npy")})
    hostile.swallow(path)


def twice(path: Path) -> None:
    hostile.npz(path, {name: hostile.saved(np.ones(4)) for name in ("a.npy", "b.npy")})
    path.write_bytes(path.read_bytes().replace(b"b.npy", b"a.npy"))


def boastful(path: Path) -> None:
    """Claim 4 GB, compressed to a few bytes."""
    header = hostile.npy(hostile.described("(4000000000,)", "'|u1'"), b"")
    hostile.npz(path, {"a.npy": header + bytes(9)}, 8)
    hostile.with_size(path, "a.npy", len(header) + 4_000_000_000)


@pytest.mark.parametrize("spoil", [overlapping, lost, twice, boastful])
def test_an_archive_that_lies_is_refused_by_name(source, tmp_path, spoil):
    spoil(source / "weights.npz")
    line = refused("convert", "mlx-to-torch", source, tmp_path / "out", "--check", "none")
    assert "weights.npz" in line
    assert not (tmp_path / "out").exists()


def as_torch(folder: Path, tensors) -> Path:
    torch.save({n: torch.from_numpy(a) for n, a in tensors.items()}, folder / "pytorch_model.bin")
    return folder / "pytorch_model.bin"


def as_npz(folder: Path, tensors) -> Path:
    np.savez(folder / "weights.npz", **tensors)
    return folder / "weights.npz"


def as_packed_npz(folder: Path, tensors) -> Path:
    np.savez_compressed(folder / "weights.npz", **tensors)
    return folder / "weights.npz"


def toy() -> dict[str, np.ndarray]:
    return {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "turned": np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(3, np.int64),
    }


@pytest.mark.parametrize("write", [as_torch, as_npz, as_packed_npz])
def test_a_flipped_bit_anywhere_is_refused_or_changes_nothing(tmp_path, write):
    path = write(tmp_path, toy())
    whole = path.read_bytes()
    accepted = 0
    for place in range(0, len(whole), 3):
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        with contextlib.suppress(WeighbridgeError):
            found = open_checkpoint(path)
            arrays = {name: found.read(name) for name in found.headers}
            assert {n: (a.dtype, a.shape, a.tobytes()) for n, a in arrays.items()} == {
                n: (a.dtype, a.shape, a.tobytes()) for n, a in toy().items()
            }, place
            accepted += 1
    assert accepted < len(whole) * 0.3  # dates, and names written twice


@pytest.mark.parametrize("write", [as_torch, as_npz, as_packed_npz])
def test_a_flipped_bit_of_a_tensor_is_refused_and_leaves_nothing(tiny_bert_dir, tmp_path, write):
    folder = Path(shutil.copytree(tiny_bert_dir, tmp_path / "source"))
    good = open_checkpoint(folder / "model.safetensors")
    path = write(folder, {name: good.read(name) for name in good.headers})
    (folder / "model.safetensors").unlink()
    hostile.flip_within_largest(path)
    way = "torch-to-mlx" if write is as_torch else "mlx-to-torch"
    line = refused("convert", way, folder, tmp_path / "out", "--check", "none")
    assert "is damaged" in line
    assert [entry.name for entry in tmp_path.iterdir()] == ["source"]


HOSTILE_INPUTS = ("an open bracket", "brackets without end", "10**18 numbers", "objects")


@pytest.mark.parametrize("case", HOSTILE_INPUTS)
def test_hostile_inputs_of_a_check_are_refused_by_name(tiny_bert_dir, tmp_path, case):
    own = hostile.npz(tmp_path / "own.npz", {"input_ids.npy": hostile.ARRAYS[case]})
    line = refused("parity", "check", tiny_bert_dir, tiny_bert_dir, "--inputs", own)
    assert "own.npz: tensor input_ids" in line
