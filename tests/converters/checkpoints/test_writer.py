"""A checkpoint is written as safetensors reads it, and an interrupted one ends up the same."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.converters.checkpoints import Header, Writer, open_checkpoint, writer
from weighbridge.converters.checkpoints.base import CHUNK
from weighbridge.converters.common.dtypes import CODE, NUMPY
from weighbridge.errors import WeighbridgeError

GENERATOR = np.random.default_rng(0)
ARRAYS = {
    "b": GENERATOR.normal(size=(3, 5)).astype(np.float32),
    "a": GENERATOR.normal(size=(4, 5)).astype(NUMPY["BF16"]),
    "flags": np.array([True, False, True]),
    "scalar": np.array(5, np.int64),
    "empty": np.zeros((0, 2), np.float16),
    "c": GENERATOR.normal(size=(7, 2)),
}
LAYOUT = {name: Header(CODE[array.dtype], array.shape) for name, array in ARRAYS.items()}
LIMITS = {"single": 10**9, "sharded": 100, "one each": 1}


def write_all(folder: Path, limit: int = 10**9) -> dict[str, str]:
    book = Writer(folder, LAYOUT, metadata={"format": "mlx"}, max_shard_size=limit)
    for name, array in ARRAYS.items():
        if name not in book.finished:
            book.write(name, array)
    return book.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_safetensors_own_reader_gets_every_bit(limit, tmp_path):
    hashes = write_all(tmp_path, limit)
    found = {}
    for path in tmp_path.glob("*.safetensors"):
        with safetensors.safe_open(path, "np") as file:
            assert file.metadata() == {"format": "mlx"}
        found |= safetensors.numpy.load_file(path)
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()
        assert hashes[name] == f"xxh3:{xxhash.xxh3_64_hexdigest(array.tobytes())}"
    assert list(hashes) == list(ARRAYS)
    assert (tmp_path / "model.safetensors.index.json").exists() == (limit < 10**9)


def test_torch_reads_tensors_of_mixed_widths(tmp_path):
    from safetensors.torch import load_file

    write_all(tmp_path)
    found = load_file(tmp_path / "model.safetensors")  # refuses tensors that are not aligned
    assert (found["c"].numpy() == ARRAYS["c"]).all()


def test_mlx_reads_what_is_written(tmp_path):
    import mlx.core as mx

    book = Writer(tmp_path, {"w": Header("F32", (3, 5))}, metadata={"format": "mlx"})
    book.write("w", ARRAYS["b"])
    book.close()
    assert (np.array(mx.load(str(tmp_path / "model.safetensors"))["w"]) == ARRAYS["b"]).all()


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_two_runs_write_the_same_files(limit, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_all(tmp_path / name, limit)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_pieces_and_arrays_give_the_same_file(tmp_path):
    write_all(tmp_path)
    (other := tmp_path / "other").mkdir()
    book = Writer(other, LAYOUT, metadata={"format": "mlx"})
    source = open_checkpoint(tmp_path)
    for name in ARRAYS:
        book.write(name, source.stream(name))
    book.close()
    file = "model.safetensors"
    assert (other / file).read_bytes() == (tmp_path / file).read_bytes()


def test_arrays_in_any_memory_order_are_written_in_c_order(tmp_path):
    array = np.asfortranarray(np.arange(2 * CHUNK // 4, dtype=np.float32).reshape(2, -1))
    book = Writer(tmp_path, {"w": Header("F32", array.shape)})
    book.write("w", array)
    book.close()
    found = safetensors.numpy.load_file(tmp_path / "model.safetensors")["w"]
    assert found.tobytes() == array.tobytes()


WRONG = {
    "dtype": (
        "b",
        ARRAYS["b"].astype(np.float64),
        r"b: expected F32\[3, 5\], found float64\[3, 5\]",
    ),
    "shape": ("b", ARRAYS["b"].T, r"b: expected F32\[3, 5\], found float32\[5, 3\]"),
    "too few bytes": ("b", [memoryview(bytes(59))], "takes 60 bytes"),
    "too many bytes": ("b", [memoryview(bytes(60)), memoryview(b"1")], "takes 60 bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_data_that_is_not_what_the_layout_says_is_refused(case, tmp_path):
    name, data, message = WRONG[case]
    book = Writer(tmp_path, LAYOUT)
    book.write("a", ARRAYS["a"])
    with pytest.raises(ValueError, match=message):
        book.write(name, data)
    with pytest.raises(ValueError, match="not written: b, c"):
        book.close()


def test_a_tensor_is_written_once(tmp_path):
    book = Writer(tmp_path, LAYOUT)
    book.write("a", ARRAYS["a"])
    with pytest.raises(ValueError, match="a is written already"):
        book.write("a", ARRAYS["a"])


# Writes the tensors of this module and is killed, without any chance to clean up, when half of
# the bytes of the tensor given on the command line are on disk.
KILLED = """
import os, signal, sys
from pathlib import Path
from weighbridge.converters.checkpoints import Writer
sys.path.insert(0, sys.argv[1])
from test_writer import ARRAYS, LAYOUT
writer = Writer(Path(sys.argv[2]), LAYOUT, metadata={"format": "mlx"}, max_shard_size=int(sys.argv[3]))
def halves(array):
    data = memoryview(array.tobytes())
    yield data[: len(data) // 2]
    os.kill(os.getpid(), signal.SIGKILL)
for name, array in ARRAYS.items():
    writer.write(name, halves(array) if name == sys.argv[4] else array)
"""


@pytest.mark.parametrize("limit", [LIMITS["single"], LIMITS["sharded"]])
@pytest.mark.parametrize("victim", ["b", "scalar", "c"])
def test_a_killed_run_is_resumed_to_the_same_files(victim, limit, tmp_path):
    (whole := tmp_path / "whole").mkdir()
    (killed := tmp_path / "killed").mkdir()
    expected = write_all(whole, limit)
    command = [sys.executable, "-c", KILLED, str(Path(__file__).parent)]
    process = subprocess.run([*command, str(killed), str(limit), victim], check=False)
    assert process.returncode == -9
    assert not (killed / "model.safetensors.index.json").exists()
    before = list(ARRAYS)[: list(ARRAYS).index(victim)]
    resumed = Writer(killed, LAYOUT, metadata={"format": "mlx"}, max_shard_size=limit)
    assert resumed.finished == set(before)
    for name, array in ARRAYS.items():
        if name not in resumed.finished:
            resumed.write(name, array)
    assert resumed.close() == expected
    assert contents(killed) == contents(whole)


@settings(max_examples=40)
@given(st.data())
def test_resuming_from_any_damage_gives_the_same_files(tmp_path_factory, data):
    base = tmp_path_factory.mktemp("w")
    (whole := base / "whole").mkdir()
    (part := base / "part").mkdir()
    write_all(whole, 100)
    book = Writer(part, LAYOUT, metadata={"format": "mlx"}, max_shard_size=100)
    names = data.draw(st.lists(st.sampled_from(sorted(ARRAYS)), unique=True))
    for name in names:
        book.write(name, ARRAYS[name])
    for path in sorted(part.iterdir()):  # flip a byte, cut the end off, remove or leave alone
        what = data.draw(st.sampled_from(["keep", "flip", "cut", "remove"]))
        content = bytearray(path.read_bytes())
        if what == "flip":
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1
        path.write_bytes(content[: len(content) // 2] if what == "cut" else content)
        if what == "remove":
            path.unlink()
    resumed = Writer(part, LAYOUT, metadata={"format": "mlx"}, max_shard_size=100)
    assert resumed.finished <= set(names)
    for name, array in ARRAYS.items():
        if name not in resumed.finished:
            resumed.write(name, array)
    resumed.close()
    assert contents(part) == contents(whole)


def test_finished_tensors_are_those_whose_bytes_still_hash_the_same(tmp_path):
    book = Writer(tmp_path, LAYOUT)
    for name in ("a", "b", "c"):
        book.write(name, ARRAYS[name])
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(ARRAYS["b"].tobytes(), bytes(60)))
    assert Writer(tmp_path, LAYOUT).finished == {"a", "c"}


def test_another_layout_resumes_nothing(tmp_path):
    book = Writer(tmp_path, LAYOUT)
    book.write("a", ARRAYS["a"])
    assert Writer(tmp_path, LAYOUT, max_shard_size=100).finished == frozenset()


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(tmp_path, monkeypatch):
    usage = os.statvfs(tmp_path)
    too_much = usage.f_bavail * usage.f_frsize + 10**9
    with pytest.raises(WeighbridgeError, match=r"bytes needed, .* free; free some space"):
        Writer(tmp_path, {"w": Header("U8", (too_much,))})
    assert all(path.suffix == ".journal" for path in tmp_path.iterdir())


FAILURES = {
    errno.ENOSPC: "No space left on device; free some space",
    errno.EDQUOT: "uota exceeded; free some space",
    errno.EIO: "Input/output error; choose another disk",
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_disk_that_fails_in_mid_write_is_one_line(code, tmp_path, monkeypatch):
    book = Writer(tmp_path, LAYOUT)
    book.write("b", ARRAYS["b"])

    def fail(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(writer, "write_all", fail)
    with pytest.raises(WeighbridgeError, match=FAILURES[code]) as caught:
        book.write("a", ARRAYS["a"])
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    assert Writer(tmp_path, LAYOUT).finished == {"b"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_device_that_is_full_is_one_line(tmp_path):
    book = Writer(tmp_path, LAYOUT)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("/dev/full")
    with pytest.raises(WeighbridgeError, match="No space left on device; free some space"):
        book.write("b", ARRAYS["b"])


def test_a_source_that_fails_is_not_blamed_on_the_target(tmp_path):
    def broken():
        yield memoryview(bytes(8))
        raise OSError(errno.EIO, "the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        Writer(tmp_path, LAYOUT).write("b", broken())
