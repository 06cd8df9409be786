"""Numbers that calls change in Python are refused, wherever they are kept; preparations at the first call are not."""

from __future__ import annotations

import functools
import itertools
import random

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import UnsupportedError


class Cooled(nn.Module):
    """Divides by a temperature that falls with every call."""

    def __init__(self, tensor: bool = False):
        super().__init__()
        self.layer, self.calls, self.tensor = nn.Linear(3, 2), 0, tensor

    def forward(self, x):
        self.calls += 1
        heat = max(0.1, 1 - self.calls / 10)
        return self.layer(x) / (torch.tensor(heat) if self.tensor else heat)


class Listed(nn.Module):
    def __init__(self, read: bool):
        super().__init__()
        self.means, self.read = [], read

    def forward(self, x):
        self.means.append(x.mean())
        return x * len(self.means) if self.read else x * 2


EXAMPLE = {"x": torch.randn(4, 3)}


@pytest.mark.parametrize("module", [Cooled(), Cooled(tensor=True)])
def test_a_number_that_a_call_reads_and_changes_is_refused_by_name(module):
    with pytest.raises(UnsupportedError, match=r"\(0\.calls\)"):
        capture(nn.Sequential(module), inputs={"input": EXAMPLE["x"]})
    assert module.calls == 0


def test_a_list_whose_length_is_read_is_refused():
    with pytest.raises(UnsupportedError, match=r"\(means\)"):
        capture(Listed(read=True), inputs=EXAMPLE)


class Inside(nn.Module):
    """Counts its calls in a list or a dictionary."""

    def __init__(self, counts):
        super().__init__()
        self.counts = counts

    def forward(self, x):
        self.counts[0] += 1
        return x * self.counts[0]


@pytest.mark.parametrize("counts", [[0], {0: 0.5}])
def test_a_number_inside_a_list_or_a_dictionary_is_refused_too(counts):
    with pytest.raises(UnsupportedError, match=r"\(counts\)"):
        capture(Inside(counts), inputs=EXAMPLE)


def test_a_list_that_is_only_written_is_left_as_it_was(assert_same):
    module = Listed(read=False)
    captured = capture(module, inputs=EXAMPLE)
    assert module.means == []
    assert_same(captured(x=to_mlx(EXAMPLE["x"])), module(**EXAMPLE), rtol=1e-6)


class Settling(nn.Module):
    """Takes the way of short inputs at the first of them, as BigBird does."""

    def __init__(self):
        super().__init__()
        self.act, self.way = nn.Tanh(), "long"

    def forward(self, x):
        if self.way == "long":
            self.act, self.way = nn.Sigmoid(), "short"
        return self.act(x)


def test_a_way_that_the_first_call_chooses_is_recorded(assert_same):
    captured = capture(Settling(), inputs=EXAMPLE)
    assert_same(captured(x=to_mlx(EXAMPLE["x"])), Settling()(**EXAMPLE), rtol=1e-6)


COUNT, COUNTS, MEMORY = 0, {"calls": 0}, {}


class Counter:
    """Counts beside any module."""

    every = 0

    def __init__(self):
        self.calls = 0

    def step(self):
        self.calls += 1
        return self.calls

    def step_all(self):
        Counter.every += 1
        return Counter.every


COUNTER = Counter()


def of_a_global():
    global COUNT  # noqa: PLW0603 - what is tested
    COUNT += 1
    return COUNT


def of_a_dictionary():
    COUNTS["calls"] += 1
    return COUNTS["calls"]


def of_a_default(calls=[]):  # noqa: B006 - what is tested
    calls.append(1)
    return len(calls)


def of_a_closure():
    calls = 0

    def step():
        nonlocal calls
        calls += 1
        return calls

    return step


class Scaled(nn.Module):
    """Scales by what some code gives, other code in every call."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return x * self.scale()


class ScaledByObject(nn.Module):
    def __init__(self):
        super().__init__()
        self.counters = [Counter()]

    def forward(self, x):
        return x * self.counters[0].step()


class ScaledByNew(nn.Module):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return x * self.calls


class ScaledByNext(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count(1)

    def forward(self, x):
        return x * next(self.numbers)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (Scaled(of_a_global), "COUNT"),
        (Scaled(of_a_dictionary), "COUNTS"),
        (Scaled(of_a_default), "of_a_default.calls"),
        (Scaled(of_a_closure()), "step.calls"),
        (Scaled(COUNTER.step), "scale.calls"),
        (Scaled(Counter().step_all), "Counter.every"),
        (ScaledByObject(), "counters.calls"),
        (ScaledByNew(), "calls"),
        (ScaledByNext(), "numbers"),
    ],
)
def test_a_number_kept_outside_of_the_module_is_refused_and_stays(module, name):
    with pytest.raises(UnsupportedError, match=rf"{name}\), but a recording"):
        capture(module, inputs=EXAMPLE)
    assert (COUNT, COUNTS["calls"], of_a_default.__defaults__) == (0, 0, ([],))
    assert (COUNTER.calls, Counter.every, hasattr(module, "calls")) == (0, 0, False)


@pytest.mark.parametrize("draw", [random.random, lambda: np.random.beta(1, 1)])  # noqa: NPY002
def test_random_numbers_that_torch_does_not_draw_are_refused(draw):
    with pytest.raises(UnsupportedError, match="`random` or numpy"):
        capture(Scaled(draw), inputs=EXAMPLE)


class Prepared(nn.Module):
    """Makes a tensor at its first call: of numbers, or of that call's input."""

    def __init__(self, of_input):
        super().__init__()
        self.ready, self.table, self.of_input = False, None, of_input

    def forward(self, x):
        if not self.ready:
            self.table, self.ready = x.mean(0) if self.of_input else torch.arange(3.0), True
        return x + self.table


def test_what_the_first_call_prepares_is_recorded_where_later_ones_compute_the_same(assert_same):
    module = Prepared(of_input=False)
    captured = capture(module, inputs=EXAMPLE)
    assert (module.ready, module.table) == (False, None)
    assert_same(captured(x=to_mlx(EXAMPLE["x"])), module(**EXAMPLE), rtol=1e-6)
    with pytest.raises(UnsupportedError, match=r"prepares it \(ready\).* call it once before"):
        capture(Prepared(of_input=True), inputs=EXAMPLE)


@functools.lru_cache
def table(size):
    return torch.arange(float(size))


def remembered(size):
    if size not in MEMORY:
        MEMORY[size] = torch.arange(float(size))
    return MEMORY[size]


class Looking(nn.Module):
    def __init__(self, look):
        super().__init__()
        self.look = look

    def forward(self, x):
        return x + self.look(x.shape[-1])


@pytest.mark.parametrize("look", [table, remembered])
def test_tensors_without_values_stay_in_no_memory_of_the_code(assert_same, look):
    captured = capture(Looking(look), inputs=EXAMPLE)
    assert_same(captured(x=to_mlx(EXAMPLE["x"])), Looking(look)(**EXAMPLE), rtol=1e-6)


class Dropping(torch.nn.Module):
    """Draws which layers to drop in evaluation mode too, as MusicGen does."""

    def forward(self, x):
        drawn = random.uniform(0, 1)
        return x if self.training and drawn < 0.5 else x * 2


def test_draws_that_nothing_depends_on_are_recorded_and_others_are_not():
    x, module = torch.ones(2), Dropping().eval()
    found = capture(module, inputs={"x": x}, modes="one")(to_mlx(x))
    assert torch.equal(to_torch(found), module(x))
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        capture(module.train(), inputs={"x": x}, modes="one")


class Loading(dict):
    """Loads what it is asked for, as transformers' tables of classes do, which may fail."""

    def items(self):
        raise ValueError("could not find the class")


TABLE = Loading()


class Named(torch.nn.Module):
    def forward(self, x):
        return x * 2 if TABLE is not None else x


def test_a_dictionary_that_loads_what_it_has_is_left_alone():
    found = capture(Named(), inputs={"x": torch.ones(2)})(to_mlx(torch.ones(2)))
    assert torch.equal(to_torch(found), torch.full((2,), 2.0))


FACTORS = [1.0, 2.0]


class NamedAlike(nn.Module):
    """Keeps under a name what a global list is called too."""

    def __init__(self):
        super().__init__()
        self.FACTORS = {2: 3.0}

    def forward(self, x):
        return x * self.FACTORS[2] * FACTORS[1]


def test_equal_names_at_two_places_are_two():
    module = NamedAlike()
    captured = capture(module, inputs=EXAMPLE)
    torch.testing.assert_close(to_torch(captured(to_mlx(EXAMPLE["x"]))), EXAMPLE["x"] * 6)
    assert (module.FACTORS, FACTORS) == ({2: 3.0}, [1.0, 2.0])
