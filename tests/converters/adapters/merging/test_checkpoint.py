"""A weight merged as it is read is the one merged in memory, in whatever pieces it is read."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.adapters import merge
from weighbridge.converters.adapters.merging.checkpoint import Merging
from weighbridge.converters.checkpoints import CHUNK, Header, Writer, open_checkpoint
from weighbridge.converters.checkpoints.formats.safetensors import encode_header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError

SHAPES = {"bf16": (7, 5), "f16": (3, 4, 6), "f32": (5, 5), "f64": (2, 3), "plain": (4, 3)}
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
MODULE = sys.modules[merge.__module__]


def update_of(shape, rank=2, seed=0):
    *lead, out, into = shape
    draw = np.random.default_rng(seed).normal
    return LowRank(draw(size=(*lead, rank, into)), draw(size=(*lead, out, rank)), 0.7)


@pytest.fixture(scope="module")
def arrays():
    draw = np.random.default_rng(0).normal
    return {n: draw(size=shape).astype(DTYPES.get(n, np.float32)) for n, shape in SHAPES.items()}


@pytest.fixture(scope="module")
def updates():
    return {name: update_of(SHAPES[name]) for name in DTYPES}


@pytest.fixture(scope="module")
def checkpoint(arrays, tmp_path_factory):
    folder = tmp_path_factory.mktemp("merging")
    writer = Writer(folder, {n: Header(CODE[a.dtype], a.shape) for n, a in arrays.items()})
    for name, array in arrays.items():
        writer.write(name, array)
    writer.close()
    return open_checkpoint(folder)


def streamed(source, name, start=0, stop=None):
    return b"".join(bytes(view) for view in source.stream(name, start, stop))


@pytest.mark.parametrize("block", [1, 12, 1 << 19])
def test_what_is_read_is_what_a_merge_in_memory_gives(
    block, arrays, updates, checkpoint, monkeypatch
):
    monkeypatch.setattr(MODULE, "BLOCK", block)
    source = Merging(checkpoint, updates)
    expected = {name: merge(arrays[name], update) for name, update in updates.items()}
    assert source.headers == checkpoint.headers
    for name, (merged, _) in expected.items():
        assert source.read(name).dtype == merged.dtype
        assert source.read(name).tobytes() == streamed(source, name) == merged.tobytes()
    assert source.read("plain").tobytes() == streamed(source, "plain") == arrays["plain"].tobytes()
    assert source.survival() == {name: expected[name][1] for name in sorted(updates)}


@given(data=st.data())
def test_pieces_in_any_order_have_the_bytes_of_the_whole(data, arrays, updates, checkpoint):
    name = data.draw(st.sampled_from(sorted(updates)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "BLOCK", data.draw(st.integers(1, 40)))
        source, whole = Merging(checkpoint, updates), merge(arrays[name], updates[name])
        size = whole[0].nbytes
        for _ in range(data.draw(st.integers(1, 5))):
            start = data.draw(st.integers(0, size))
            stop = data.draw(st.integers(start, size))
            assert streamed(source, name, start, stop) == whole[0].tobytes()[start:stop]
        assert source.survival()[name] == whole[1]


def test_several_threads_may_read_at_the_same_time(arrays, updates, checkpoint, monkeypatch):
    monkeypatch.setattr(MODULE, "BLOCK", 10)
    source = Merging(checkpoint, updates)
    names = [name for name in updates for _ in range(20)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda name: streamed(source, name), names))
    assert found == [merge(arrays[name], updates[name])[0].tobytes() for name in names]


def test_a_row_longer_than_a_chunk_comes_in_several(tmp_path):
    wide = np.random.default_rng(0).normal(size=(2, CHUNK // 4 + 5)).astype(np.float32)
    Writer(tmp_path, {"w": Header("F32", wide.shape)}).write("w", wide)
    source = Merging(open_checkpoint(tmp_path / "model.safetensors"), {"w": update_of(wide.shape)})
    assert max(view.nbytes for view in source.stream("w")) <= CHUNK
    assert streamed(source, "w") == merge(wide, update_of(wide.shape))[0].tobytes()


def test_an_update_that_does_not_fit_is_refused_before_anything_is_read(checkpoint):
    with pytest.raises(MismatchError, match=r"base has shape \[7, 5\], the update \[5, 7\]"):
        Merging(checkpoint, {"bf16": update_of((5, 7))})


def test_a_sum_that_overflows_is_refused(checkpoint):
    update = update_of(SHAPES["f16"])
    source = Merging(checkpoint, {"f16": LowRank(update.a, update.b, 1e9)})
    with pytest.raises(UnsupportedError, match="do not fit float16"):
        source.read("f16")


LARGE = 134  # MB, of one tensor
MERGE = """
import sys
from pathlib import Path
import numpy as np
from weighbridge.converters.checkpoints import Writer, open_checkpoint
from weighbridge.converters.maps import WeightMap, execute
from weighbridge.converters.values import LowRank
source, target = map(Path, sys.argv[1:3])
checkpoint = open_checkpoint(source)
updates = {
    name: LowRank(np.ones((8, header.shape[-1]), "f4"), np.ones((header.shape[0], 8), "f4"), 1e-3)
    for name, header in checkpoint.headers.items()
}
plan = WeightMap.parse(sys.argv[3]).bind(checkpoint.headers, updates=updates)
execute(plan, checkpoint, Writer(target, plan.layout))
# Not ru_maxrss, which begins with what the parent held at the fork.
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""
MOVES = {
    "names only": ("w.{n} <-> v.{n}", 150),
    "split": ("w.{n} [(q + k) i] <-> q.{n} [q i], k.{n} [k i] where q = 1000", 150),
    "transposed": ("w.{n} [o i] <-> v.{n} [i o]", 150 + 3 * LARGE),
}


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux only")
@pytest.mark.parametrize("move", MOVES)
def test_a_large_weight_is_merged_without_being_held(move, tmp_path):
    layout = {f"w.{n}": Header("BF16", (8192, 8192)) for n in range(3)}
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    header = encode_header(layout, {})
    with (tmp_path / "source" / "model.safetensors").open("wb") as file:
        file.write(header)
        file.truncate(len(header) + sum(it.nbytes for it in layout.values()))
    text, most = MOVES[move]
    command = [sys.executable, "-c", MERGE, tmp_path / "source", tmp_path / "target", text]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    assert int(answer.stdout) * 1024 / 1e6 < most
