"""Whole numbers that fit 32 bits are computed with 32, and no others."""

import mlx.core as mx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.passes.draft import Draft
from weighbridge.converters.captures.torch_to_mlx.passes.integers import narrow_integers
from weighbridge.converters.captures.torch_to_mlx.passes.table import PASSES

DYNAMIC = {"x": {0: "rows"}}


def dtypes(captured):
    """Return operation -> the dtypes of its results, of those of whole numbers."""
    found = {}
    for step in captured.recording.graph.steps:
        dtype = getattr(step.run, "dtypes", None)
        if isinstance(dtype, mx.Dtype) and mx.issubdtype(dtype, mx.integer):
            found.setdefault(step.operation.removeprefix("aten."), []).append(str(dtype))
    return found


class Positions(nn.Module):
    """Computes with positions by a function of them and of the input's whole numbers."""

    def __init__(self, compute):
        super().__init__()
        self.compute = compute
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return {"x": self.compute(torch.arange(x.shape[0]), x * self.scale)}


CASES = {  # what is computed -> the dtype that all its operations on whole numbers have
    "distances": (lambda at, x: x * (at[:, None] - at).abs().clamp(max=3)[0], "int32"),
    "a mask": (lambda at, x: torch.where(at[:, None] >= at, x, 0.0), "int32"),
    "flags counted": (lambda at, x: x * torch.cumsum(x > 0, 0), "int32"),
    "rows looked up": (lambda at, x: x[torch.flip(at, [0])], "int32"),
    "every other": (lambda at, x: x[torch.arange(x.shape[0] - 1, -1, -2)], "int32"),
    "wide products": (lambda at, x: x * ((at + 2**30) * 2**30 % 1001), "int64"),
    "wide sums": (lambda at, x: x * (at + (2**31 - 1)).float(), "int64"),
    "wide comparisons": (lambda at, x: torch.where(at < 2**40, x, 0.0), "int64"),
    "numbers that begin again": (
        lambda at, x: x * (((at + 2) * 2**62).clamp(min=0, max=7) + 1),
        "int64",
    ),
    "truncated inputs": (lambda at, x: x * (x * 1e12).long().remainder(7), "int64"),
}


@pytest.mark.parametrize("dynamic", [None, DYNAMIC], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_computed_with_positions_is_what_torch_computes(proven, name, dynamic):
    proven(Positions(CASES[name][0]), {"x": torch.randn(5)}, dynamic=dynamic)


@pytest.mark.parametrize("name", CASES)
def test_32_bits_are_taken_where_all_values_fit_and_only_there(name):
    compute, wanted = CASES[name]
    captured = capture(Positions(compute), inputs={"x": torch.randn(5)}, dynamic=DYNAMIC)
    found = dtypes(captured)
    assert found, "the case computes with no whole numbers"
    kept = {dtype for them in found.values() for dtype in them}
    assert f"mlx.core.{wanted}" in kept
    if wanted == "int32":
        assert kept == {"mlx.core.int32"}, str(found)


def test_without_the_pass_all_have_the_dtype_that_torch_has():
    others = [name for name in PASSES if name != "integers"]
    compute, _ = CASES["distances"]
    captured = capture(
        Positions(compute), inputs={"x": torch.randn(5)}, dynamic=DYNAMIC, passes=others
    )
    assert {dtype for them in dtypes(captured).values() for dtype in them} == {"mlx.core.int64"}


def test_results_keep_the_dtype_that_torch_gives_them():
    class Both(nn.Module):
        def forward(self, x):
            at = torch.arange(x.shape[0])
            return {"at": at, "moved": at[:, None] + 1, "x": x * at}

    found = capture(Both(), inputs={"x": torch.randn(5)}, dynamic=DYNAMIC)(x=mx.ones(7))
    assert (found["at"].dtype, found["moved"].dtype) == (mx.int64, mx.int64)
    assert found["moved"].flatten().tolist() == list(range(1, 8))


SCALARS = st.integers(-(2**34), 2**34) | st.integers(-9, 9)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "sub", "rsub", "mul", "clamp_min", "clamp_max", "remainder", "floor"]
        ),
        SCALARS,
    ),
    min_size=1,
    max_size=6,
)
APPLY = {
    "add": lambda a, n: a + n,
    "sub": lambda a, n: a - n,
    "rsub": lambda a, n: n - a,
    "mul": lambda a, n: a * n,
    "clamp_min": lambda a, n: a.clamp(min=n),
    "clamp_max": lambda a, n: torch.minimum(a, torch.full_like(a, n)),
    "remainder": lambda a, n: a.remainder(n or 3),
    "floor": lambda a, n: a.abs() // max(n, 1),
}


class Keeping(torch.fx.Interpreter):
    """Runs a graph as torch does and keeps what each of its nodes is."""

    def __init__(self, module):
        super().__init__(module)
        self.values = {}

    def run_node(self, node):
        self.values[node.name] = super().run_node(node)
        return self.values[node.name]


@given(STEPS)
@settings(max_examples=25, deadline=None)
def test_no_chain_of_sums_products_and_bounds_leaves_what_its_dtype_holds(chain):
    def compute(at, x):
        for name, number in chain:
            at = APPLY[name](at, number)
        return x * (at % 1000)

    traced = make_fx(lambda x: compute(torch.arange(x.shape[0]), x), tracing_mode="symbolic")(
        torch.ones(9)
    )
    held = Keeping(traced)
    held.run(torch.ones(9))
    draft = Draft(traced, {})
    narrow_integers(draft)
    for node in draft.calls():
        if getattr(node.meta["val"], "dtype", None) == torch.int32:
            wide = held.values[node.name]
            assert wide.dtype == torch.int64
            assert torch.equal(wide, wide.to(torch.int32).long())
