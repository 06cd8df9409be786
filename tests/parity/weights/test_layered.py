"""What is wrong in a stack or a kernel is named, and words say no more than was measured."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weighbridge.parity.weights.expectations import disagreements
from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketch

RANDOM = np.random.default_rng(0)
EXPERTS = {
    f"layer.0.experts.{n}.up": RANDOM.normal(size=(6, 4)).astype(np.float32) for n in range(4)
}
KERNEL = RANDOM.normal(size=(8, 3, 7, 7)).astype(np.float32)


def explained(reference, name, array):
    sketches = {key: sketch(value) for key, value in reference.items()}
    weights = ArrayWeights({name: np.ascontiguousarray(array)})
    return explain(sketches, weights, reference_arrays=reference.__getitem__)


@pytest.mark.parametrize("turned", [False, True], ids=["as they lie", "transposed"])
@pytest.mark.parametrize(("factor", "said"), [(-1, "scaled, -1 *"), (1.5, "scaled, 1.5 *")])
def test_the_expert_of_a_stack_that_is_altered_is_named(turned, factor, said):
    stack = np.stack(list(EXPERTS.values()))
    stack[2] *= factor
    found, *rest = explained(
        EXPERTS, "layer.0.experts.up", stack.transpose(0, 2, 1) if turned else stack
    )
    assert not found.ok
    assert "part 2 of 4, layer.0.experts.2.up" in found.detail
    assert said in found.detail
    assert "the other 3 agree" in found.detail
    assert rest == []


@pytest.mark.parametrize(("factor", "said"), [(-1, "scaled, -1 *"), (1 + 1e-7, "close, ")])
def test_an_altered_part_of_a_reference_stack_is_named(factor, said):
    stacks = {
        f"layer.0.{it}": np.stack(list(EXPERTS.values())) + n for n, it in enumerate(("gate", "up"))
    }
    alone = {f"layer.0.experts.{n}.w": part for n, part in enumerate(stacks["layer.0.up"])}
    alone["layer.0.experts.2.w"] = np.float32(factor) * alone["layer.0.experts.2.w"]
    sketches = {key: sketch(value) for key, value in stacks.items()}
    found = explain(sketches, ArrayWeights(alone), reference_arrays=stacks.__getitem__)
    (wrong,) = (it for it in found if it.name == "layer.0.experts.2.w")
    assert not wrong.ok
    assert wrong.detail.startswith("part 2 of layer.0.up: ")
    assert said in wrong.detail


@pytest.mark.parametrize(("axes", "said"), [((2,), "axis 2"), ((2, 3), "axes (2, 3)")])
def test_a_kernel_turned_round_is_named(axes, said):
    (found,) = explained({"conv.weight": KERNEL}, "conv.weight", np.flip(KERNEL, axes))
    assert (found.ok, found.kind) == (False, "flipped")
    assert found.detail == f"conv.weight turned round along {said}"


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 0, 1)])
def test_a_kernel_turned_round_lies_as_the_map_says(order):
    turned = np.flip(KERNEL.transpose(order), 2)
    (found,) = explained({"conv.weight": KERNEL}, "conv.weight", turned)
    assert found.kind == "flipped"
    assert disagreements([found], {"conv.weight": ("conv.weight", order)}) == []
    assert disagreements([found], {"conv.weight": ("conv.weight", (1, 0, 2, 3))})


def test_a_copy_in_8_bits_is_not_called_rounding():
    weight = RANDOM.normal(size=(128, 64)).astype(np.float32)
    scale = np.abs(weight).max(axis=1, keepdims=True) / 127
    copy = (np.round(weight / scale) * scale).astype(ml_dtypes.bfloat16)
    (found,) = explained({"w": weight}, "w", copy)
    assert not found.ok
    assert "within rounding" not in found.detail
    assert "times what rounding would move" in found.detail


def test_rows_that_stay_are_no_rows_moved():
    """Each row is its own within the tolerance of bfloat16, and none of them is moved."""
    weight = RANDOM.normal(size=(16, 256)).astype(ml_dtypes.bfloat16)
    other = weight.astype(np.float32) * (1 + 0.03 * RANDOM.normal(size=weight.shape))
    for found in explained({"w": weight}, "w", other.astype(ml_dtypes.bfloat16)):
        assert "moved: " not in found.detail or found.detail.split("moved: ")[1]
