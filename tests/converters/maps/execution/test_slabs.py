"""Steps done in slabs write what they write when they are done whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.common.dtypes import CODE, NUMPY
from weighbridge.converters.maps import WeightMap, apply, execute
from weighbridge.converters.maps.execution import slabs
from weighbridge.converters.values import Dense


class Memory:
    """A checkpoint in memory that notes what it is asked for."""

    def __init__(self, arrays):
        self.path, self.arrays, self.asked = "memory", arrays, []
        self.headers = {name: Header(CODE[a.dtype], a.shape) for name, a in arrays.items()}

    def read(self, name):
        self.asked.append(self.arrays[name].nbytes)
        return self.arrays[name].copy()

    def stream(self, name, start=0, stop=None):
        raw = self.arrays[name].tobytes()[start:stop]
        self.asked.append(len(raw))
        yield from (memoryview(raw[at : at + 7]) for at in range(0, len(raw), 7))


class Collector:
    """A writer that keeps the bytes."""

    def __init__(self):
        self.finished, self.bytes = frozenset(), {}

    def write(self, name, data):
        self.bytes[name] = data.tobytes() if isinstance(data, np.ndarray) else b"".join(data)

    def close(self):
        return {}


ONE = {"x": (5, 3, 2)}
FAMILY = {f"x.{e}": (3, 2, 4) for e in range(5)}
PAIRS = {f"{name}.{e}": (3, 4) for name in "xs" for e in range(5)}
CASES = {
    "a stack of transposed tensors": ("x [e o i] <-> y [e i o]", ONE),
    "split and transposed": (
        "x [e i (g + u)] <-> g [e g i], u [e u i] where g = 3",
        {"x": (5, 3, 8)},
    ),
    "merged axes outside": ("x [(e o) i k] <-> y [(e o) k i] where e = 3", {"x": (6, 5, 3)}),
    "tensors that become one": ("x.{e} [o i k] <-> y [e o k i]", FAMILY),
    "one that becomes tensors": ("x [e o i] <-> y.{e} [i o]", ONE),
    "a change of value": ("x [e o i] <-> y [e i o] + 1", ONE),
    "a change of dtype": ("x [e o i] <-> y [e i o] as float16", ONE),
    "bits": ("x [e o (i k)] bits float32 <-> y [e i (o k)] bits uint32 where i = 2", ONE),
    "a program for each index": (
        "x.{e}, s.{e} => y, z by $0 = Multiply(#0, #1); $1 = Add(#0, #1)",
        PAIRS,
    ),
}


def arrays_of(shapes):
    normal = np.random.default_rng(0).normal
    return {name: normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("case", CASES)
@given(limit=st.integers(1, 400))
def test_slabs_of_any_size_give_the_same_bytes(case, limit):
    text, shapes = CASES[case]
    arrays = arrays_of(shapes)
    plan = WeightMap.parse(text).bind(Memory(arrays).headers)
    expected = apply(plan, {name: Dense(array) for name, array in arrays.items()})
    writer, seen = Collector(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slabs, "SLAB", limit)
        assert not plan.steps[0].copies
        cut = slabs.slabs(plan.steps[0], plan)
        assert (cut is not None) == (limit < slabs.nbytes(plan.steps[0], plan))
        source = Memory(arrays)
        execute(plan, source, writer, seen.append)
    assert writer.bytes == {name: value.array.tobytes() for name, value in expected.items()}
    assert sum(seen) == sum(header.nbytes for header in plan.layout.values())


UNCUT = [
    "x [o i k] <-> y [i o k]",
    "x [(o + e) i k] <-> y [o k i], z [e k i] where e = 1",
    "x [5 i k] <-> y [5 k i]",
]


@pytest.mark.parametrize("text", UNCUT)
def test_a_step_without_an_outermost_axis_is_done_whole(text, monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", 1)
    source = Memory({"x": np.arange(30, dtype=np.float32).reshape(5, 3, 2)})
    plan = WeightMap.parse(text).bind(source.headers)
    assert slabs.slabs(plan.steps[0], plan) is None
    writer = Collector()
    execute(plan, source, writer)
    expected = apply(plan, {"x": Dense(source.arrays["x"])})
    assert writer.bytes == {name: value.array.tobytes() for name, value in expected.items()}


def test_no_more_than_a_slab_is_read_at_a_time(monkeypatch):
    monkeypatch.setattr(slabs, "SLAB", 200)
    array = np.arange(600, dtype=np.float32).reshape(20, 5, 6).astype(NUMPY["BF16"])
    source = Memory({"x": array})
    plan = WeightMap.parse("x [e o i] <-> y [e i o]").bind(source.headers)
    execute(plan, source, Collector())
    assert max(source.asked) <= 100
    assert sum(source.asked) == array.nbytes
