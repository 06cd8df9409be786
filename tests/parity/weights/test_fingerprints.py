"""Every weight is explained by value: with the reference's arrays at hand, and by sketches alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from weighbridge.converters.values import LowRank
from weighbridge.parity.weights.fingerprints import disagreements, explain
from weighbridge.parity.weights.reference_index import KINDS, Explanation, Permitted
from weighbridge.parity.weights.sketches.at_hand import sketches_at_hand
from weighbridge.parity.weights.sketches.casts import clamp
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketches

Arrays = dict[str, np.ndarray]
Change = Callable[[np.ndarray], np.ndarray]
BF16 = ml_dtypes.bfloat16
RANDOM = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.normal(size=shape) * scale).astype(np.float32)


REFERENCE: Arrays = {
    "embed.weight": normal(40, 12),
    "position.weight": normal(32, 12),
    "layer.0.query.weight": normal(12, 12),
    "layer.0.query.bias": normal(12),
    "layer.0.key.weight": normal(12, 12),
    "layer.0.up.weight": normal(20, 12),
    "layer.0.norm.weight": np.ones(12, np.float32),
    "layer.1.query.weight": normal(12, 12),
    "layer.1.query.bias": normal(12),
    "layer.1.norm.weight": np.ones(12, np.float32),
    "conv.weight": normal(6, 5, 4),
    "image.weight": normal(6, 5, 3, 3),
    "position_ids": np.arange(32)[None],
}
QUERY = "layer.0.query.weight"


def judge(
    candidate: Mapping[str, np.ndarray],
    reference: Mapping[str, np.ndarray] = REFERENCE,
    *,
    arrays: bool = True,
    **options: Any,
) -> dict[str, Explanation]:
    weights = ArrayWeights(reference)
    found = explain(
        sketches(weights),
        ArrayWeights(candidate),
        reference_arrays=weights.read if arrays else None,
        **options,
    )
    assert {it.kind for it in found} <= set(KINDS)
    return {it.name: it for it in found}


def changed(name: str, change: Change) -> Arrays:
    return REFERENCE | {name: np.ascontiguousarray(change(REFERENCE[name].copy()))}


def swap(array: np.ndarray) -> np.ndarray:
    return array[[3, 4, 5, 0, 1, 2, *range(6, len(array))]]


def overflow(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return (array * np.float32(1e38)).astype(np.float16)


def put(place: Any, value: Any) -> Change:
    def change(array: np.ndarray) -> np.ndarray:
        array[place] = value(array[place]) if callable(value) else value
        return array

    return change


# name, change, kind, part of the detail, ok, whether sketches alone can tell
CHANGES: dict[str, tuple[str, Change, str, str, bool, bool]] = {
    "as it is": (QUERY, lambda a: a, "equal", "", True, True),
    "float16": (QUERY, lambda a: a.astype(np.float16), "cast", "F32 to F16", True, True),
    "bfloat16": (QUERY, lambda a: a.astype(BF16), "cast", "F32 to BF16", True, True),
    "int32": ("position_ids", lambda a: a.astype(np.int32), "cast", "I64 to I32", True, True),
    "reshaped": ("embed.weight", lambda a: a[None], "equal", "", True, True),
    "transposed": (QUERY, np.transpose, "transposed", "(1, 0)", True, True),
    "transposed, not square": ("layer.0.up.weight", np.transpose, "transposed", "", True, True),
    "transposed and cast": (QUERY, lambda a: a.T.astype(BF16), "transposed", "BF16", True, True),
    "via bfloat16": (
        QUERY, lambda a: a.astype(BF16).astype(np.float32), "rounded", "bfloat16", False, True,
    ),
    "zeroed": ("layer.0.query.bias", np.zeros_like, "zeroed", "", False, True),
    "scaled": (QUERY, lambda a: a * np.float32(1.01), "scaled", "1.01 *", False, True),
    "scaled in float16": (
        QUERY, lambda a: (a * np.float32(0.3)).astype(np.float16), "scaled", "0.3", False, True,
    ),
    "offset": ("layer.0.query.bias", lambda a: a + 1, "offset", "+1", False, True),
    "one unit in the last place": (
        QUERY, put((2, 3), lambda x: np.nextafter(x, 9)), "close", "1 of 144 elements", False, False,
    ),
    "cropped": ("position.weight", lambda a: a[None, 3:9], "cropped", "rows 3-8 of 32", False, True),
    "heads swapped": (
        QUERY, swap, "shuffled", "blocks of 3 rows moved: 0 <- 1, 1 <- 0", False, True,
    ),
    "columns swapped": (
        QUERY, lambda a: swap(a.T).T, "shuffled", "blocks of 3 columns moved", False, False,
    ),
    "row zeroed": (
        "embed.weight", put(17, 0), "unexplained", "rows 17 (1 of 40) are zeros", False, True,
    ),
    "rows zeroed": (
        "position.weight", put(slice(20, None), 0), "unexplained", "rows 20-31 (12 of 32) are zeros",
        False, True,
    ),
    "sign flipped": (
        QUERY, put((3, 7), np.negative), "unexplained", "1 of 144 elements, first [3, 7]", False,
        False,
    ),
    "sign flipped, row": (
        QUERY, put((3, 7), np.negative), "unexplained", "rows 3 (1 of 12) differ", False, True,
    ),
    "random": (QUERY, lambda a: normal(*a.shape), "unexplained", f"differs from {QUERY}", False, True),
    "overflow": (
        QUERY, overflow, "unexplained", "", False, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "sketches"])
@pytest.mark.parametrize("case", CHANGES)
def test_change_is_explained(case: str, arrays: bool) -> None:
    name, change, kind, detail, ok, from_sketches = CHANGES[case]
    found = judge(changed(name, change), arrays=arrays)
    it = found[name]
    if arrays or from_sketches:
        assert (it.kind, it.ok) == (kind, ok), it
        assert detail in it.detail
    assert it.ok == ok  # less to say, but never a different verdict
    others = [other for other in found.values() if other.name != name]
    assert all(other.ok for other in others), "a fault must not spread to other weights"


def test_overflow_in_a_cast_is_a_fault() -> None:
    large = {"w": np.array([1.0, 7e4, -9e9], np.float32)}
    it = judge({"w": large["w"].astype(BF16)}, large)["w"]
    assert it.ok
    with np.errstate(over="ignore"):
        it = judge({"w": large["w"].astype(np.float16)}, large)["w"]
    assert (it.kind, it.ok) == ("cast", False)
    assert "2 elements overflowed" in it.detail


def test_coreml_cast_that_keeps_small_weights_from_vanishing_is_a_cast() -> None:
    reference = {"w": np.array([1.0, 1e-12, -1e-12, 0.0], np.float32)}
    assert judge({"w": clamp(reference["w"])}, reference)["w"].kind == "cast"


@pytest.mark.parametrize("name", ["conv.weight", "image.weight"])
def test_every_permutation_is_named_so_that_it_can_be_undone(name: str) -> None:
    reference = REFERENCE[name]
    for axes in permutations(range(reference.ndim)):
        found = judge(changed(name, lambda a, axes=axes: a.transpose(axes)), arrays=False)[name]
        candidate = reference.transpose(found.axes or range(reference.ndim))
        np.testing.assert_array_equal(candidate, reference.transpose(axes))
        assert found.ok


@given(st.permutations(sorted(REFERENCE)), st.booleans())
def test_renaming_every_weight_changes_no_explanation_but_the_name(
    names: list[str], arrays: bool
) -> None:
    renamed = {f"model.{i}": REFERENCE[name] for i, name in enumerate(names)}
    found = judge(renamed, arrays=arrays)
    assert all(it.ok and it.kind == "equal" for it in found.values())
    for i, name in enumerate(names):
        it = found[f"model.{i}"]
        assert name in (it.source, *it.also)


def test_among_equal_weights_the_nearest_name_wins() -> None:
    renamed = {name.replace("layer", "layers"): array for name, array in REFERENCE.items()}
    assert judge(renamed)["layers.1.norm.weight"].source == "layer.1.norm.weight"
    exported = {"layer_1_norm_weight_to_fp16": np.ones(12, np.float16)}
    found = judge(exported, unused=lambda: REFERENCE)
    assert found["layer_1_norm_weight_to_fp16"].source == "layer.1.norm.weight"


def test_a_weight_that_nobody_carries_is_missing_unless_declared_unused() -> None:
    candidate = {name: array for name, array in REFERENCE.items() if "query.bias" not in name}
    found = judge(candidate, unused=lambda: {"layer.1.query.bias"})
    assert (found["layer.0.query.bias"].kind, found["layer.0.query.bias"].ok) == ("missing", False)
    assert (found["layer.1.query.bias"].kind, found["layer.1.query.bias"].ok) == ("unused", True)


def test_tied_and_deduplicated_weights_are_not_missing() -> None:
    tied = REFERENCE | {"head.weight": REFERENCE["embed.weight"]}
    candidate = {name: it for name, it in REFERENCE.items() if name != "layer.1.norm.weight"}
    assert all(it.ok for it in judge(candidate, tied).values())


@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "sketches"])
def test_rows_in_another_order_are_no_part(arrays: bool) -> None:
    candidate = changed("position.weight", lambda a: a[[3, 5, 4, 6, 7, 8]])
    found = judge(candidate, arrays=arrays)["position.weight"]
    assert found.kind != "cropped"
    assert not found.ok


def test_two_numbers_are_no_multiple_of_two_others() -> None:
    """Of any two numbers there is one that nearly makes them of any two others."""
    reference = {"scale": np.float32([1, 1e-7])}
    found = judge({"scale": np.float32([3, 4e-7])}, reference)
    assert found["scale"].kind == "unexplained"


def test_zeroed_bias_is_not_excused_by_another_that_is_zero() -> None:
    reference = REFERENCE | {"layer.1.query.bias": np.zeros(12, np.float32)}
    found = judge(reference | {"layer.0.query.bias": np.zeros(12, np.float32)}, reference)
    assert (found["layer.0.query.bias"].kind, found["layer.0.query.bias"].ok) == ("zeroed", False)
    renamed = {f"x.{name}": it for name, it in reference.items()}
    renamed["x.layer.0.query.bias"] = np.zeros(12, np.float32)
    assert not judge(renamed, reference)["layer.0.query.bias"].ok


def test_what_the_route_alters_is_permitted_by_name_only() -> None:
    candidate = changed("layer.0.norm.weight", lambda a: a + 1) | {QUERY: REFERENCE[QUERY] * 2}
    found = judge(candidate, permitted=Permitted({QUERY}))
    assert (found[QUERY].kind, found[QUERY].ok) == ("scaled", True)
    assert not found["layer.0.norm.weight"].ok


def test_neutral_weights_may_be_eliminated() -> None:
    candidate = {name: it for name, it in REFERENCE.items() if "norm" not in name}
    unused = REFERENCE.keys() - candidate.keys()
    assert all(it.ok for it in judge(candidate, unused=lambda: unused).values())


# ------------------------------------------------------------------ updates

UPDATE = LowRank(normal(4, 12), normal(12, 4, scale=1e-2), scale=2.0)


def merged(share: float, dtype: Any = np.float32) -> Arrays:
    exact = REFERENCE[QUERY].astype(np.float64) + share * UPDATE.delta()
    return {name: it.astype(dtype) for name, it in REFERENCE.items()} | {QUERY: exact.astype(dtype)}


SHARES = [(1.0, "merged", True), (0.0, "unmerged", False), (2.0, "misscaled", False)]


@pytest.mark.parametrize("arrays", [True, False], ids=["arrays", "sketches"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("share", "kind", "ok"), SHARES)
def test_due_update_is_weighed(share: float, kind: str, ok: bool, dtype: Any, arrays: bool) -> None:
    found = judge(merged(share, dtype), updates={QUERY: UPDATE}, arrays=arrays)[QUERY]
    assert (found.kind, found.ok, found.source) == (kind, ok, QUERY)


@pytest.mark.parametrize(("share", "kind", "ok"), SHARES)
def test_due_update_is_weighed_in_bfloat16_with_arrays(share: float, kind: str, ok: bool) -> None:
    found = judge(merged(share, BF16), updates={QUERY: UPDATE})[QUERY]
    assert (found.kind, found.ok) == (kind, ok)


@pytest.mark.parametrize("size", [1e-3, 1e-4, 1e-5])
@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_rounding_of_a_small_update_is_no_other_scale(size: float, dtype: Any) -> None:
    base, a, b = normal(64, 64), normal(4, 64), normal(64, 4)
    update = LowRank(a, b * np.float32(size / (b @ a).std()), 1.0)
    for known, early in ((base, False), (base, True), (base.astype(dtype), True)):
        start = base.astype(dtype) if early else base
        for share in (1.0, 0.0, 0.4, 2.0, -1.0):
            whole = (start.astype(np.float64) + share * update.delta()).astype(dtype)
            found = judge({"w": whole}, {"w": known}, updates={"w": update})["w"]
            alike = np.array_equal(whole, (start.astype(np.float64) + update.delta()).astype(dtype))
            assert found.ok == alike, (share, found)


def test_merge_in_float32_arithmetic_is_merged() -> None:
    weight = torch.from_numpy(REFERENCE[QUERY].copy())
    weight += UPDATE.scale * (torch.from_numpy(UPDATE.b) @ torch.from_numpy(UPDATE.a))
    found = judge(REFERENCE | {QUERY: weight.numpy()}, updates={QUERY: UPDATE})
    assert found[QUERY].kind == "merged"


def test_merged_weight_may_have_another_name_and_transposed_axes() -> None:
    candidate = merged(1.0)
    candidate["q"] = np.ascontiguousarray(candidate.pop(QUERY).T)
    found = judge(candidate, updates={QUERY: UPDATE})
    assert (found["q"].kind, found["q"].source, found["q"].axes) == ("merged", QUERY, (1, 0))


def test_update_below_the_rounding_of_the_dtype_is_not_called_missing() -> None:
    tiny = LowRank(UPDATE.a, UPDATE.b * np.float32(1e-7), UPDATE.scale)
    candidate = {name: it.astype(np.float16) for name, it in REFERENCE.items()}
    assert judge(candidate, updates={QUERY: tiny})[QUERY].ok


def test_magnitudes_of_dora_are_merged_as_peft_merges_them() -> None:
    from peft import LoraConfig, get_peft_model

    model = nn.Sequential(nn.Linear(12, 10, bias=False))
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["0"], use_dora=True)
    tuned = get_peft_model(model, config)
    layer = tuned.base_model.model[0]
    with torch.no_grad():
        layer.lora_B["default"].weight.normal_()
        layer.lora_magnitude_vector["default"].weight.mul_(1.3)
    update = LowRank(
        layer.lora_A["default"].weight.detach().numpy().copy(),
        layer.lora_B["default"].weight.detach().numpy().copy(),
        2.0,
        layer.lora_magnitude_vector["default"].weight.detach().numpy().copy(),
    )
    base = {"w": layer.base_layer.weight.detach().numpy().copy()}
    whole = tuned.merge_and_unload()[0].weight.detach().numpy()
    assert judge({"w": whole}, base, updates={"w": update})["w"].kind == "merged"
    assert judge(base, base, updates={"w": update})["w"].kind == "unmerged"


EXPERTS: Arrays = {f"experts.{i}.{p}": normal(7, 5) for i in range(3) for p in ("gate", "up")}
STACKED: Arrays = {"gate_up": np.stack([np.concatenate([EXPERTS[f"experts.{i}.{p}"]
                   for p in ("gate", "up")]) for i in range(3)])}  # fmt: skip
STACK_UPDATE = LowRank(normal(3, 2, 5), normal(3, 14, 2), scale=0.5)
PART_UPDATES = {
    f"experts.{i}.{p}": STACK_UPDATE.part(i).rows(slice(7 * half, 7 * half + 7))
    for i in range(3)
    for half, p in enumerate(("gate", "up"))
}


def with_updates(arrays: Arrays, updates: dict[str, LowRank], dtype: Any) -> Arrays:
    wide = {
        name: updates[name].applied_to(it) if name in updates else it for name, it in arrays.items()
    }
    return {name: it.astype(dtype) for name, it in wide.items()}


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_experts_with_their_updates_are_told_apart_in_a_stack(dtype: Any) -> None:
    whole = with_updates(STACKED, {"gate_up": STACK_UPDATE}, dtype)
    assert judge(whole, STACKED, updates={"gate_up": STACK_UPDATE})["gate_up"].kind == "merged"
    halves = {"gate": whole["gate_up"][:, :7].copy(), "up": whole["gate_up"][:, 7:].copy()}
    found = judge(halves, EXPERTS, updates=PART_UPDATES)
    assert {name: it.kind for name, it in found.items()} == {"gate": "stacked", "up": "stacked"}
    assert found["gate"].parts == tuple(f"experts.{i}.gate" for i in range(3))
    assert all(it.ok for it in found.values())


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_one_number_of_a_merged_expert_may_not_be_another(dtype: Any) -> None:
    """A sketch of a large stack in 16 bits does not see it."""
    base = normal(4, 256, 128)
    update = LowRank(normal(4, 4, 128), normal(4, 256, 4, scale=1e-2))
    stacked = update.applied_to(base.astype(dtype)).astype(dtype)
    apart = {f"e.{i}.w": it for i, it in enumerate(base.astype(dtype))}
    updates = {f"e.{i}.w": update.part(i) for i in range(4)}
    wrong = stacked.copy()
    wrong[2, 3, 4] *= dtype(1.5)
    for whole, ok in ((stacked, True), (wrong, False)):
        known = judge({"w": whole}, {"w": base.astype(dtype)}, updates={"w": update})
        assert known["w"].ok is ok
        assert all(it.ok for it in judge({"e.w": whole}, apart, updates=updates).values()) is ok


@pytest.mark.parametrize("dtype", [np.float32, BF16])
def test_experts_with_their_updates_are_found_in_a_stack_with_one(dtype: Any) -> None:
    apart = with_updates(EXPERTS, PART_UPDATES, dtype)
    found = judge(apart, STACKED, updates={"gate_up": STACK_UPDATE})
    assert {it.kind for it in found.values()} == {"split"}
    turned = np.swapaxes(with_updates(STACKED, {"gate_up": STACK_UPDATE}, dtype)["gate_up"], 1, 2)
    found = judge({"w": turned.copy()}, STACKED, updates={"gate_up": STACK_UPDATE})
    assert (found["w"].kind, found["w"].axes) == ("permuted", (0, 2, 1))


@pytest.mark.parametrize("dtype", [np.float16, BF16])
def test_one_wrong_number_of_a_merged_weight_is_a_fault(dtype: Any) -> None:
    whole = merged(1, dtype)
    assert judge(whole, updates={QUERY: UPDATE})[QUERY].kind == "merged"
    place = np.unravel_index(np.argmax(np.abs(whole[QUERY])), whole[QUERY].shape)
    whole[QUERY][place] *= 1.1
    assert not judge(whole, updates={QUERY: UPDATE})[QUERY].ok


def test_one_expert_without_its_update_in_a_stack_is_a_fault() -> None:
    whole = with_updates(EXPERTS, PART_UPDATES, np.float32) | {
        "experts.1.up": EXPERTS["experts.1.up"]
    }
    stack = {p: np.stack([whole[f"experts.{i}.{p}"] for i in range(3)]) for p in ("gate", "up")}
    found = judge(stack, EXPERTS, updates=PART_UPDATES)
    assert found["gate"].ok
    assert not found["up"].ok


# ------------------------------------------------------------------ folding


@pytest.mark.parametrize("bias", [True, False])
def test_folded_batch_norm_is_recognised_as_torch_folds_it(bias: bool) -> None:
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    torch.manual_seed(0)
    conv, norm = nn.Conv1d(5, 7, 3, bias=bias), nn.BatchNorm1d(7)
    for tensor in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        tensor.data.uniform_(0.5, 2.0)
    network = nn.ModuleDict({"conv": conv, "norm": norm}).eval()
    reference = {name: it.detach().numpy() for name, it in network.state_dict().items()}
    fused = fuse_conv_bn_eval(conv.eval(), norm.eval())
    candidate = {f"const_{i}": p.detach().numpy() for i, p in enumerate(fused.parameters())}
    found = judge(candidate, reference, unused=lambda: {"norm.num_batches_tracked"})
    assert {it.kind for it in found.values()} == {"folded", "unused"}
    assert all(it.ok for it in found.values())


def test_one_wrong_number_of_a_folded_weight_in_float16_is_a_fault() -> None:
    random = np.random.default_rng(0)
    shape, fields = (32, 16, 3), ("weight", "bias", "running_mean", "running_var")
    reference = {f"norm.{it}": random.uniform(0.5, 2, 32).astype(np.float32) for it in fields}
    reference["conv.weight"] = random.normal(size=shape).astype(np.float32) / 8
    scale, shift, mean, variance = (reference[f"norm.{it}"] for it in fields)
    factor = scale / np.sqrt(variance + 1e-5)
    weight = (reference["conv.weight"] * factor[:, None, None]).astype(np.float16)
    candidate = {"weight": weight, "bias": (shift - factor * mean).astype(np.float16)}
    assert all(it.ok for it in judge(candidate, reference).values())
    weight[3, 4, 1] *= np.float16(1.1)
    assert not judge(candidate, reference)["weight"].ok


# ------------------------------------------------------------------ disagreements


def identity(found: Mapping[str, Explanation]) -> dict[str, tuple[str, tuple[int, ...] | None]]:
    return {name: (name, None) for name in found}


def test_values_as_promised_are_no_disagreement() -> None:
    found = judge(REFERENCE)
    assert disagreements(list(found.values()), identity(found)) == []


def test_swapped_weights_are_a_disagreement_though_each_is_explained() -> None:
    other = "layer.0.key.weight"
    found = judge(REFERENCE | {QUERY: REFERENCE[other], other: REFERENCE[QUERY]})
    assert all(it.ok for it in found.values())
    problems = disagreements(list(found.values()), identity(found))
    assert len(problems) == 2
    assert f"{QUERY} carries the values of {other}, the map says {QUERY}" in problems


AXES = {
    "left as it lies": (None, (1, 0), "left untransposed"),
    "transposed needlessly": ((1, 0), None, "transposed wrongly"),
    "as promised": ((1, 0), (1, 0), None),
}


@pytest.mark.parametrize("case", AXES)
def test_axes_are_compared_with_the_promise(case: str) -> None:
    axes, promised, fault = AXES[case]
    found = judge(changed(QUERY, lambda a: a.transpose(axes) if axes else a))
    problems = disagreements(list(found.values()), identity(found) | {QUERY: (QUERY, promised)})
    assert [fault in problem for problem in problems] == ([True] if fault else [])


def test_axes_of_size_one_and_constants_are_no_disagreement() -> None:
    reference = {"depthwise": normal(6, 1, 4), "gate": np.ones((4, 4), np.float32)}
    candidate = {
        "depthwise": reference["depthwise"].transpose(0, 2, 1).copy(),
        "gate": reference["gate"],
    }
    found = judge(candidate, reference)
    expected = {"depthwise": ("depthwise", (0, 2, 1)), "gate": ("gate", (1, 0))}
    assert disagreements(list(found.values()), expected) == []
    assert all(it.ok for it in found.values())


# ------------------------------------------------------------------ the real model


def test_real_encoder_is_explained_at_every_dtype(minilm_dir: Any) -> None:
    from safetensors.numpy import load_file

    arrays = load_file(minilm_dir / "model.safetensors")
    known = sketches(ArrayWeights(arrays))
    for dtype in (np.float32, np.float16, BF16):
        candidate = {n: a.astype(dtype) if a.dtype == np.float32 else a for n, a in arrays.items()}
        found = explain(known, ArrayWeights(candidate))
        assert all(it.ok and it.source == it.name for it in found)


def test_a_tensor_with_a_few_other_rows_is_compared_with_its_own_reference_alone():
    generator = np.random.default_rng(0)
    layers = {f"layers.{n}.w": generator.normal(size=(32, 16)).astype(np.float32) for n in range(4)}
    damaged = {name: array.copy() for name, array in layers.items()}
    damaged["layers.2.w"][5] = 0
    read = []

    def reference(name):
        read.append(name)
        return layers[name]

    class Weights(ArrayWeights):
        def read(self, name):
            read.append(name)
            return super().read(name)

    found = explain(
        sketches_at_hand(Weights(layers)), ArrayWeights(damaged), reference_arrays=reference
    )
    [wrong] = [it for it in found if it.name == "layers.2.w"]
    assert wrong.kind == "unexplained"
    assert "rows 5 (1 of 32) are zeros" in wrong.detail
    assert all(read.count(name) == 1 for name in layers if name != "layers.2.w")  # its hash
