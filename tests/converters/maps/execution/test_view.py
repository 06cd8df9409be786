"""A checkpoint seen through a map, against the same map written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.execution.copies import Range
from weighbridge.converters.maps.execution.view import Mapped, clipped
from weighbridge.converters.values import Dense, LowRank

MAP = """weighbridge map 1
a.weight <-> b.weight
e.{e}.weight [o i] <-> stack [e o i]
fused [(g + u) i] <-> g [g i], u [u i]
    where g = 3
turned [o i] <-> straight [i o]
plus <-> plus + 1
lone.{n}.w [i (x + y)] <-> lone.{n}.x [x i], lone.{n}.y [y i]
    where x = 2
gone -> original
"""
SHAPES = {
    "a.weight": (4, 3),
    "e.0.weight": (5, 6),
    "e.1.weight": (5, 6),
    "fused": (7, 2),
    "turned": (3, 8),
    "plus": (9,),
    "lone.0.w": (4, 5),
    "gone": (2,),
}


class Memory:
    """A checkpoint in memory that counts what is read of it."""

    def __init__(self, arrays):
        self.arrays, self.taken = arrays, []
        self.path, self.files, self.ignored = "memory", ("file",), ()
        self.metadata = {"format": "pt"}
        self.headers = {name: Header("F32", array.shape) for name, array in arrays.items()}

    def read(self, name):
        self.taken.append(name)
        return self.arrays[name].copy()

    def stream(self, name, start=0, stop=None):
        self.taken.append((name, start, stop))
        data = memoryview(self.arrays[name].tobytes())[start:stop]
        half = len(data) // 2
        yield from (part for part in (data[:half], data[half:]) if part)


@pytest.fixture
def own():
    generator = np.random.default_rng(1)
    return Memory(
        {name: generator.standard_normal(s).astype(np.float32) for name, s in SHAPES.items()}
    )


@pytest.fixture
def plan(own):
    return WeightMap.parse(MAP).bind(own.headers)


@pytest.fixture
def wanted(own, plan):
    found = apply(plan, {name: Dense(array) for name, array in own.arrays.items()})
    return {name: value.array for name, value in found.items()}


def test_every_tensor_is_what_the_map_makes(own, plan, wanted):
    seen = Mapped(plan, own)
    assert seen.headers == plan.layout
    assert (seen.path, seen.files, seen.metadata) == (own.path, own.files, own.metadata)
    for name, array in wanted.items():
        assert np.array_equal(seen.read(name), array), name
        assert b"".join(map(bytes, seen.stream(name))) == array.tobytes(), name
        assert seen.read(name).dtype == array.dtype


def test_a_map_back_undoes_the_view(own, plan):
    back = WeightMap.parse(MAP).inverse()
    home = back.bind(plan.layout, sizes=plan.sizes)
    twice = Mapped(home, Mapped(plan, own))
    for name in home.layout:
        if name != "plus":  # adding rounds
            assert np.array_equal(twice.read(name), own.arrays[name]), name


@given(data=st.data())
def test_any_part_of_a_tensor_is_a_part_of_its_bytes(data):
    generator = np.random.default_rng(2)
    own = Memory(
        {name: generator.standard_normal(s).astype(np.float32) for name, s in SHAPES.items()}
    )
    plan = WeightMap.parse(MAP).bind(own.headers)
    seen = Mapped(plan, own)
    name = data.draw(st.sampled_from(sorted(seen.headers)))
    size = seen.headers[name].nbytes
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    whole = b"".join(map(bytes, seen.stream(name)))
    assert b"".join(map(bytes, seen.stream(name, start, stop))) == whole[start:stop]


def test_only_what_a_tensor_is_made_of_is_read(own, plan):
    seen = Mapped(plan, own)
    assert own.taken == []
    seen.read("straight")
    assert own.taken == ["turned"]
    own.taken.clear()
    seen.read("u")
    assert own.taken == [("fused", 3 * 2 * 4, 7 * 2 * 4)]


def test_a_step_is_computed_once_for_all_that_it_makes(own, plan):
    seen = Mapped(plan, own)
    first, second = seen.read("lone.0.x"), seen.read("lone.0.y")
    assert own.taken == ["lone.0.w"]
    assert (first.shape, second.shape) == ((2, 4), (3, 4))
    assert seen.read("lone.0.x") is not first


def test_what_is_read_may_be_changed(own, plan):
    seen = Mapped(plan, own)
    for name in seen.headers:
        before = seen.read(name).copy()
        seen.read(name)[...] = 0
        assert np.array_equal(seen.read(name), before)


def test_updates_are_refused(own):
    update = LowRank(np.ones((1, 3)), np.ones((4, 1)), 1.0)
    plan = WeightMap.parse(MAP).bind(own.headers, updates={"a.weight": update})
    with pytest.raises(ValueError, match="updates"):
        Mapped(plan, own)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), start=st.integers(0, 40), size=...
)
def test_clipping_keeps_what_lies_within(lengths, start, size: int):
    data, ranges = b"", []
    for at, length in enumerate(lengths):
        ranges.append(Range(str(at), 7, 7 + length))
        data += bytes(range(16 * at, 16 * at + length))
    stop = start + abs(size)
    found = b"".join(
        bytes(range(16 * int(s) + low - 7, 16 * int(s) + high - 7))
        for s, low, high in clipped(ranges, start, stop)
    )
    assert found == data[start:stop]
