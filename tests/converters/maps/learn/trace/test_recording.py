"""A trace sees what a class does without evaluating anything, and says in one line where it cannot."""

from __future__ import annotations

import mlx.core as mx
import pytest

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.maps.learn.trace.recording import record
from weighbridge.errors import UnsupportedError

HEADERS = {"a": Header("BF16", (4, 6)), "b": Header("U8", (4, 64))}


def named(trace):
    return [node["name"] for node in trace.nodes]


def test_a_rename_has_no_node():
    trace = record(lambda w: {"c": w["a"], "b": w["b"]}, HEADERS)
    assert (named(trace), trace.outputs["c"]) == ([], trace.inputs["a"])
    assert trace.layout == {"c": HEADERS["a"], "b": HEADERS["b"]}


def test_more_names_than_python_takes_arguments_are_no_problem():
    headers = {f"x.{n}": Header("F32", (2,)) for n in range(3000)}
    assert len(record(lambda w: w, headers).outputs) == 3000


def test_a_huge_tensor_takes_no_memory():
    headers = {"a": Header("F32", (1 << 20, 1 << 20))}
    assert record(lambda w: {"a": w["a"].T}, headers).layout == headers


@pytest.mark.parametrize(
    ("call", "node"),
    [
        (lambda w: mx.from_fp8(w["b"], dtype=mx.float16), "FromFP8"),
        (lambda w: mx.to_fp8(w["a"]), "ToFP8"),
        (lambda w: mx.contiguous(w["a"].T), "Transpose"),
        (
            lambda w: mx.dequantize(
                w["b"].view(mx.uint32), *[w["b"][:, :2].astype(mx.float32)] * 2
            ),
            "Dequantize",
        ),
        (lambda w: mx.quantize(w["b"].astype(mx.float32))[0], "Quantize"),
    ],
)
def test_what_mlx_cannot_export_is_one_node(call, node):
    wanted = call(
        {
            name: mx.zeros(h.shape, mx.bfloat16 if name == "a" else mx.uint8)
            for name, h in HEADERS.items()
        }
    )
    trace = record(lambda w: {"c": call(w)}, HEADERS)
    assert named(trace)[-1] == node
    assert trace.layout["c"].shape == tuple(wanted.shape)
    assert str(trace.nodes[-1]["outputs"][0][2]) == str(wanted.dtype)


def test_the_functions_of_mlx_are_put_back_even_after_a_failure():
    before = mx.contiguous, mx.from_fp8, mx.to_fp8, mx.dequantize
    with pytest.raises(UnsupportedError):
        record(lambda w: {"a": w["missing"]}, HEADERS)
    assert (mx.contiguous, mx.from_fp8, mx.to_fp8, mx.dequantize) == before


@pytest.mark.parametrize(
    "look",
    [lambda a: a.sum().item(), lambda a: bool((a == 0).all()), mx.eval, lambda a: a.tolist()],
)
def test_a_function_that_reads_values_is_told_so(look):
    def reads(w):
        look(w["a"])
        return w

    with pytest.raises(UnsupportedError, match=r"^reads values of tensors"):
        record(reads, HEADERS)


def test_a_failure_is_one_line_with_its_reason():
    with pytest.raises(UnsupportedError) as caught:
        record(lambda w: {"a": w["a"].reshape(5, 5)}, HEADERS)
    assert "fails on these tensors (ValueError: [reshape]" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_function_may_change_its_dict_and_its_arrays():
    def changes(w):
        w["a"] *= 2
        w["c"] = w.pop("b")
        return w

    trace = record(changes, HEADERS)
    assert (list(trace.outputs), named(trace)[-1]) == (["a", "c"], "Multiply")
