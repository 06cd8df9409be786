"""Pass 2: bytes on disk are those of the arrays in memory, and nothing is written in vain."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from weighbridge.converters.adapters import merge
from weighbridge.converters.checkpoints import Writer, open_checkpoint
from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.maps import WeightMap, apply, execute
from weighbridge.converters.values import Dense, LowRank
from weighbridge.errors import BadInputError, MismatchError


class Memory:
    """A checkpoint in memory that yields a few bytes at a time and counts what it is asked for."""

    def __init__(self, arrays, chunk=7):
        self.path, self.metadata, self.files, self.ignored = "memory", {}, (), ()
        self.arrays, self.chunk = arrays, chunk
        self.headers = {name: Header(CODE[a.dtype], a.shape) for name, a in arrays.items()}
        self.reads, self.streamed = [], 0

    def read(self, name):
        self.reads.append(name)
        return self.arrays[name].copy()

    def stream(self, name, start=0, stop=None):
        raw = self.arrays[name].tobytes()[start:stop]
        for at in range(0, len(raw), self.chunk):
            view = bytearray(raw[at : at + self.chunk])
            self.streamed += len(view)
            yield memoryview(view)
            view[:] = bytes(len(view))  # a view is valid until the next one is asked for


class Collector:
    """A writer that keeps the bytes, of each tensor once."""

    def __init__(self, layout, finished=()):
        self.layout, self.finished = layout, frozenset(finished)
        self.bytes, self.closed = {}, False

    def write(self, name, data):
        raw = data.tobytes() if isinstance(data, np.ndarray) else b"".join(map(bytes, data))
        assert len(raw) == self.layout[name].nbytes
        assert name not in self.bytes
        self.bytes[name] = raw
        return name

    def close(self):
        missing = self.layout.keys() - self.bytes.keys() - self.finished
        assert not missing
        assert not self.finished.intersection(self.bytes)
        self.closed = True
        return dict.fromkeys(self.layout, "xxh3:")


def dense(arrays):
    return {name: Dense(array) for name, array in arrays.items()}


@given(data=st.data())
def test_disk_and_memory_agree_and_the_inverse_brings_every_bit_back(any_case, data):
    case = data.draw(any_case)
    table = case.map
    there = table.bind(case.headers)
    values = apply(there, dense(case.arrays))
    assert {name: (CODE[v.array.dtype], v.shape) for name, v in values.items()} == there.layout
    writer = Collector(there.layout)
    execute(there, Memory(case.arrays), writer)
    assert writer.bytes == {name: value.array.tobytes() for name, value in values.items()}
    back = apply(table.inverse().bind(there.layout), values)
    assert {name: (v.shape, v.array.tobytes()) for name, v in back.items()} == {
        name: (array.shape, array.tobytes()) for name, array in case.arrays.items()
    }


MOE = """
h.{n}.experts.{e}.w [o i] <-> h.{n}.switch [e o i]
conv [o i w] <-> [o w i]
norm <-> norm.weight
"""


def moe(seed=0):
    normal = np.random.default_rng(seed).normal
    arrays = {f"h.{n}.experts.{e}.w": normal(size=(3, 5)) for n in (0, 1) for e in range(12)}
    arrays |= {"conv": normal(size=(4, 3, 2)), "norm": normal(size=(6,))}
    return {name: array.astype(np.float32) for name, array in arrays.items()}


def test_files_on_disk_hold_what_memory_says(tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    save_file(moe(), tmp_path / "source" / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "source")
    plan = WeightMap.parse(MOE).bind(checkpoint.headers)
    seen = []
    result = execute(plan, checkpoint, Writer(tmp_path / "target", plan.layout), seen.append)
    written = load_file(tmp_path / "target" / "model.safetensors")
    expected = apply(plan, dense(moe()))
    assert written.keys() == expected.keys() == result.hashes.keys()
    for name, array in written.items():
        np.testing.assert_array_equal(array, expected[name].array)
    assert sum(seen) == sum(header.nbytes for header in plan.layout.values())


def test_only_what_is_rearranged_is_read_whole_and_streams_are_read_once():
    table = WeightMap.parse(MOE)
    plan = table.bind(Memory(moe()).headers)
    source = Memory(moe())
    execute(plan, source, Collector(plan.layout))
    assert source.reads == ["conv"]
    switched = {name: value.array for name, value in apply(plan, dense(moe())).items()}
    back, source = table.inverse().bind(plan.layout), Memory(switched)
    execute(back, source, Collector(back.layout))
    copied = sum(array.nbytes for name, array in switched.items() if name != "conv")
    assert source.streamed == copied


def test_a_source_that_fails_ends_the_work_of_all_threads():
    arrays = {f"x.{n}": np.arange(6, dtype=np.float32) for n in range(200)}
    source = Memory(arrays)
    stream = source.stream

    def broken(name, start=0, stop=None):
        if name == "x.5":
            raise BadInputError("x.5: the disk is broken")
        return stream(name, start, stop)

    source.stream = broken
    plan = WeightMap.parse("x.{n} <-> y.{n}").bind(source.headers)
    writer = Collector(plan.layout)
    with pytest.raises(BadInputError, match=r"x\.5: the disk is broken"):
        execute(plan, source, writer)
    assert not writer.closed
    assert "y.5" not in writer.bytes
    assert len(writer.bytes) < len(arrays)


def test_an_interrupted_run_goes_on_where_it_stopped():
    table = WeightMap.parse(MOE).inverse()
    arrays = {
        n: v.array
        for n, v in apply(table.inverse().bind(Memory(moe()).headers), dense(moe())).items()
    }
    plan = table.bind(Memory(arrays).headers)
    whole = Collector(plan.layout)
    execute(plan, Memory(arrays), whole)
    names = list(plan.layout)
    for stop in (1, 5, 13, len(names)):
        seen, rest = [], Collector(plan.layout, names[:stop])
        execute(plan, Memory(arrays), rest, seen.append)
        assert rest.bytes == {name: whole.bytes[name] for name in names[stop:]}
        assert sum(seen) == sum(header.nbytes for header in plan.layout.values())


def lora(rows, columns, rank=2):
    normal = np.random.default_rng(rows).normal
    return LowRank(normal(size=(rank, columns)), normal(size=(rows, rank)), 0.5)


def test_updates_are_merged_before_the_layout_changes():
    updates = {"h.0.experts.3.w": lora(3, 5)}
    plan = WeightMap.parse(MOE).bind(Memory(moe()).headers, updates=updates)
    merged, survival = merge(moe()["h.0.experts.3.w"], updates["h.0.experts.3.w"])
    expected = apply(
        WeightMap.parse(MOE).bind(Memory(moe()).headers), dense(moe() | {"h.0.experts.3.w": merged})
    )
    writer = Collector(plan.layout)
    result = execute(plan, Memory(moe()), writer)
    assert writer.bytes == {name: value.array.tobytes() for name, value in expected.items()}
    assert result.survival == {"h.0.experts.3.w": survival}
    in_memory = apply(plan, dense(moe()))
    assert {n: v.array.tobytes() for n, v in in_memory.items()} == writer.bytes
    resumed = Collector(plan.layout, plan.layout)
    assert execute(plan, Memory(moe()), resumed).survival == result.survival
    assert not resumed.bytes


MERGED = {
    "copied": ("x <-> y", {"x": (6, 5)}),
    "transposed": ("x [o i] <-> y [i o]", {"x": (6, 5)}),
    "heads taken apart": ("x [(h (q + k)) i] <-> q [(h q) i], k [(h k) i] where h = 3", {"x": (9, 5)}),
    "columns taken apart": ("x [o (q + k)] <-> q [o q], k [o k] where q = 2", {"x": (6, 5)}),
    "rows joined": ("x [m i], z [k i] <-> y [(m + k) i]", {"x": (6, 5), "z": (2, 5)}),
    "experts": ("x [e (g + u) i] <-> g [e g i], u.{e} [u i] where g = 2", {"x": (3, 6, 5)}),
    "experts turned": ("x [e o i] <-> y [e i o]", {"x": (3, 6, 5)}),
    "changed afterwards": ("x <-> y + 1", {"x": (6, 5)}),
}  # fmt: skip


@pytest.mark.parametrize("case", MERGED)
@pytest.mark.parametrize("block", [1, 11, 1 << 19])
@pytest.mark.parametrize("slab", [1, 1 << 24])
def test_an_update_is_merged_in_pieces_as_it_is_whole(case, block, slab, monkeypatch):
    monkeypatch.setattr("weighbridge.converters.maps.execution.slabs.SLAB", slab)
    monkeypatch.setattr(sys.modules[merge.__module__], "BLOCK", block)
    text, shapes = MERGED[case]
    normal = np.random.default_rng(0).normal
    arrays = {name: normal(size=shape).astype("bfloat16") for name, shape in shapes.items()}
    *lead, out, into = shapes["x"]
    updates = {"x": LowRank(normal(size=(*lead, 2, into)), normal(size=(*lead, out, 2)), 0.5)}
    plan = WeightMap.parse(text).bind(
        Memory(arrays).headers, updates=updates, sizes={"h": 3, "q": 2}
    )
    writer = Collector(plan.layout)
    result = execute(plan, Memory(arrays), writer)
    in_memory = apply(plan, dense(arrays))
    assert {n: v.array.tobytes() for n, v in in_memory.items()} == writer.bytes
    assert result.survival == {"x": merge(arrays["x"], updates["x"])[1]}


TIED = WeightMap.parse("embed <-> wte\nhead == embed")


def test_a_tie_that_does_not_hold_stops_before_anything_is_written():
    arrays = {"embed": np.arange(40, dtype=np.float32), "head": np.arange(40, dtype=np.float32)}
    plan = TIED.bind(Memory(arrays).headers)
    writer = Collector(plan.layout)
    execute(plan, Memory(arrays), writer)
    assert list(writer.bytes) == ["wte"]
    arrays["head"][39] = -39
    writer = Collector(plan.layout)
    with pytest.raises(MismatchError, match="head should equal embed, but differs"):
        execute(plan, Memory(arrays), writer)
    assert not writer.bytes
    with pytest.raises(MismatchError, match="head should equal embed"):
        apply(plan, dense(arrays))


def test_a_checkpoint_that_changed_since_the_plan_is_refused():
    plan = TIED.bind({"embed": Header("F32", (4,))})
    with pytest.raises(MismatchError, match="embed is not as it was when the plan was made"):
        execute(plan, Memory({"embed": np.zeros(5, np.float32)}), Collector(plan.layout))


APPLY_PROBLEMS = [
    ({"conv": np.zeros((4, 3, 3))}, "conv has another shape than in the plan: expected [4, 3, 2]"),
    ({"cnv": np.zeros(3)}, "cnv is not in the plan; nearest: conv"),
    ({"h.0.experts.0.w": np.zeros((3, 5))}, "h.0.experts.7.w is missing beside h.0.experts.0.w"),
]


@pytest.mark.parametrize(("arrays", "problem"), APPLY_PROBLEMS)
def test_values_that_do_not_fit_the_plan_are_refused(arrays, problem):
    plan = WeightMap.parse(MOE).bind(Memory(moe()).headers)
    with pytest.raises(MismatchError) as caught:
        apply(plan, dense(arrays))
    assert any(line.startswith(problem) for line in caught.value.problems)


MANY_ROWS = [
    ("x [rows (q + k)] <-> y [rows (q + k)] where q = 1", True),
    ("x [rows (q + k)] <-> y [rows (k + q)] where q = 1", False),
]


@pytest.mark.parametrize(("text", "copied"), MANY_ROWS)
def test_a_tensor_of_many_short_ranges_is_written_whole(text, copied):
    source = Memory({"x": np.arange(12288, dtype=np.float32).reshape(4096, 3)}, chunk=1000)
    plan = WeightMap.parse(text).bind(source.headers)
    assert [step.copies for step in plan.steps] == [copied]
    writer = Collector(plan.layout)
    execute(plan, source, writer)
    expected = source.arrays["x"] if copied else source.arrays["x"][:, [1, 2, 0]]
    assert writer.bytes == {"y": expected.tobytes()}


def test_a_tensor_without_axes_stays_an_array():
    headers = {"x": Header("F32", (2,)), "y": Header("F32", ())}
    plan = WeightMap.parse("x [e] <-> x.{e} []\ny <-> y + 1").bind(headers)
    arrays = {"x": np.arange(2, dtype=np.float32), "y": np.float32(2) * np.ones((), np.float32)}
    values = apply(plan, dense({name: np.asarray(array) for name, array in arrays.items()}))
    found = {name: value.array for name, value in values.items()}
    assert all(isinstance(array, np.ndarray) and array.shape == () for array in found.values())
    assert {name: array.item() for name, array in found.items()} == {"x.0": 0, "x.1": 1, "y": 3}


CHANGES = [
    ("x <-> y + 1", lambda x: x + x.dtype.type(1)),
    ("x <-> y * 3", lambda x: x * x.dtype.type(3)),
    ("x <-> y as bfloat16", lambda x: x.astype("bfloat16")),
    ("x [a b] <-> y [b a] + 0.5 * c as float16 where c = k", lambda x: (
        (x.T + x.dtype.type(0.5)) * x.dtype.type(7)).astype(np.float16)),
    ("x + -1 <-> y", lambda x: x - x.dtype.type(-1)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), CHANGES)
def test_changes_of_value_are_computed_in_the_stored_dtype(text, expected):
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    plan = WeightMap.parse(text).bind({"x": Header("F32", (3, 4))}, config={"k": 7})
    [value] = apply(plan, {"x": Dense(x)}).values()
    assert value.array.dtype == expected(x).dtype
    np.testing.assert_array_equal(value.array, expected(x))


def test_a_sum_comes_home_for_weights_that_were_trained():
    table = WeightMap.parse("x <-> y + 1")
    y = np.random.default_rng(1).normal(1, 0.1, size=1000).astype("bfloat16")
    home = table.inverse().bind({"y": Header("BF16", (1000,))})
    there = table.bind(home.layout)
    np.testing.assert_array_equal(apply(there, apply(home, {"y": Dense(y)}))["y"].array, y)
