"""Constants and submodules found again in an exported program."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weighbridge.converters.captures.constants import (
    SMALLEST,
    digest,
    match_weights,
    source_hash,
)
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.coreml.manifest import sites
from weighbridge.converters.models.signature import Port, Signature

# torch.export warns of its own pytrees.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

STATE = {
    "a": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
    "b": torch.randn(4, 3, generator=torch.Generator().manual_seed(1)),
    "step": torch.tensor(3),
}


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_constants_are_matched_by_value_whatever_their_name_and_shape(dtype):
    constants = {
        "x": STATE["b"].numpy().astype(dtype),
        "y": STATE["a"].numpy().astype(dtype).reshape(2, 6),
        "z": STATE["a"].numpy().T.astype(dtype),
        "made": np.ones(12, dtype),
    }
    found = match_weights(constants, STATE)
    assert {name: entry["key"] for name, entry in found.items()} == {"x": "b", "y": "a", "z": "a"}
    assert [name for name, entry in found.items() if entry.get("transposed")] == ["z"]


def test_equal_tensors_are_named_together():
    state = {"first": STATE["a"], "tied": STATE["a"], "other": STATE["b"]}
    (entry,) = match_weights({"x": STATE["a"].numpy()}, state).values()
    assert (entry["key"], entry["also"]) == ("first", ["tied"])


def test_one_wrong_number_is_no_match():
    changed = STATE["a"].numpy().copy()
    changed[0, 0] = np.nextafter(changed[0, 0], 9)
    assert match_weights({"x": changed}, STATE) == {}


def test_weights_lifted_to_the_smallest_float16_still_match():
    tiny = torch.tensor([1e-9, -1e-9, 0.5, 0.0])
    lifted = np.float16([SMALLEST, -SMALLEST, 0.5, 0.0])
    assert match_weights({"x": lifted}, {"tiny": tiny})["x"]["key"] == "tiny"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_the_hash_is_of_the_bytes_at_the_source_dtype(dtype):
    tensor = (STATE["a"] * 10).to(dtype)
    raw = tensor.view(torch.uint8).numpy().tobytes()
    assert source_hash(tensor) == f"xxh3:{xxhash.xxh3_128_hexdigest(raw)}"
    assert source_hash(tensor.T.contiguous().T) == source_hash(tensor)


@given(st.floats(-1e5, 1e5, width=32))
def test_digests_agree_exactly_when_float16_does(number):
    array = np.float32([number, 1])
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    assert digest(array, np.float16) == digest(half, np.float16)


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x)) + x


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Sequential(Inner(), Inner())

    def forward(self, x):
        return (self.module(x),)


def test_sites_say_which_operation_ends_which_submodule():
    graph = torch.export.export(Outer().eval(), (torch.randn(2, 3),)).run_decompositions({})
    names = [node.name for node in graph.graph.nodes if node.op == "call_function"]
    linears = [name for name in names if name.startswith("linear")]
    variables = dict.fromkeys([*names, "result"])
    found = sites(graph, variables, ["result"])
    assert set(found[linears[0]]) == {"0.linear", "0.dropout"}
    assert found["result"] == ["1"]
    half = sites(graph, dict.fromkeys(f"{name}_cast_fp16" for name in linears), ["result"])
    assert set(half[f"{linears[1]}_cast_fp16"]) == {"1.linear", "1.dropout"}


class Mixed(nn.Module):
    """A product whose weight is computed, which coremltools makes no linear of, before two linears."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        x = nn.functional.linear(x, self.mix(x))
        return self.last(self.second(self.first(x).relu()).relu())


ROWS = Signature(
    inputs=(Port("x", "float32", (4, 4), "series"),),
    outputs=(Port("y", "float32", (4, 4), "series"),),
)


@pytest.mark.parametrize("compute", ["float16", "float32"])
def test_sites_are_the_submodules_whatever_coremltools_made_before(compute, tmp_path):
    from coremltools.converters.mil.mil import Builder

    Builder.program([Builder.TensorSpec((1, 4))])(
        lambda x: Builder.linear(x=x, weight=np.ones((4, 4), np.float32))
    )
    module = Mixed().eval()
    export_coreml(module, ROWS, tmp_path / "mixed.mlpackage", compute=compute)
    x, outputs = torch.randn(4, 4), {}
    for name, child in module.named_children():
        child.register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out}))
    with torch.no_grad():
        module(x)
    program = load_program(tmp_path / "mixed.mlpackage")
    _, found = program.trace({"x": x.numpy()}, "float32", sites=program.manifest["sites"])
    assert found.keys() == outputs.keys()
    for name, value in found.items():
        np.testing.assert_allclose(value, outputs[name].numpy(), rtol=1e-2, atol=1e-2)
