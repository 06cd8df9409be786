"""Stacked, joined and split tensors are explained both ways; what is lost or swapped is not hidden."""

from __future__ import annotations

import cProfile

import ml_dtypes
import numpy as np
import pytest

from weighbridge.parity.check.stages import fingerprint_stage
from weighbridge.parity.weights.expectations import Expectation, disagreements, with_programs
from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.reference_index import Permitted
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketches

HEADS, NOPE, VALUE, RANK = 3, 4, 5, 7
RANDOM = np.random.default_rng(0)


def normal(*shape):
    return RANDOM.normal(size=shape).astype(np.float32)


def pair(layers=2, experts=3):
    """Return the same weights as transformers' hub files and as mlx-lm's classes have them."""
    hub, mlx = {}, {}
    for n in range(layers):
        layer = f"model.layers.{n}"
        for name, shape in {"gate": (9, 8), "up": (9, 8), "down": (8, 9)}.items():
            each = [normal(*shape) for _ in range(experts)]
            hub |= {f"{layer}.mlp.experts.{e}.{name}.weight": w for e, w in enumerate(each)}
            mlx[f"{layer}.mlp.switch_mlp.{name}.weight"] = np.stack(each)
        fused = normal(HEADS * (NOPE + VALUE), RANK)
        hub[f"{layer}.self_attn.kv_b_proj.weight"] = fused
        heads = fused.reshape(HEADS, NOPE + VALUE, RANK)
        mlx[f"{layer}.self_attn.embed_q.weight"] = np.array(
            heads[:, :NOPE].swapaxes(1, 2), order="C"
        )
        mlx[f"{layer}.self_attn.unembed_out.weight"] = np.array(heads[:, NOPE:])
        q, k, v = normal(12, 8), normal(6, 8), normal(6, 8)
        hub |= {f"{layer}.{p}_proj.weight": w for p, w in {"q": q, "k": k, "v": v}.items()}
        mlx[f"{layer}.qkv_proj.weight"] = np.concatenate([q, k, v])
        both = normal(experts, 10, 8)
        hub[f"{layer}.shared.input_linear.weight"] = both
        mlx |= {f"{layer}.shared.{p}.weight": np.array(both[:, at : at + 5])
                for p, at in {"a_gate": 0, "a_up": 5}.items()}  # fmt: skip
        hub[f"{layer}.norm.weight"] = mlx[f"{layer}.norm.weight"] = normal(8)
    return hub, mlx


HUB, MLX = pair()
WAYS = {"to mlx": (HUB, MLX), "to torch": (MLX, HUB)}


def judge(reference, candidate, *, arrays=True, **options):
    weights = ArrayWeights(reference)
    read = weights.read if arrays else None
    return explain(sketches(weights), ArrayWeights(candidate), reference_arrays=read, **options)


@pytest.mark.parametrize("way", WAYS)
def test_every_weight_of_a_mixture_of_experts_is_explained(way):
    found = judge(*WAYS[way])
    assert all(it.ok for it in found), [it for it in found if not it.ok]
    assert not [it for it in found if it.kind == "missing"]


@pytest.mark.parametrize("way", WAYS)
def test_weights_cast_on_the_way_are_explained_too(way):
    reference, candidate = WAYS[way]
    narrow = {name: array.astype(ml_dtypes.bfloat16) for name, array in candidate.items()}
    assert all(it.ok for it in judge(reference, narrow))


@pytest.mark.parametrize("way", WAYS)
def test_sketches_alone_never_call_a_right_weight_wrong(way):
    stage = fingerprint_stage(judge(*WAYS[way], arrays=False), [])
    assert stage.status in ("pass", "unverified")


def test_a_changed_element_of_a_stack_is_a_fault():
    name = "model.layers.1.mlp.switch_mlp.up.weight"
    wrong = MLX | {name: MLX[name].copy()}
    wrong[name][2, 3, 4] += 1
    assert any(it.name == name and not it.ok for it in judge(HUB, wrong))


def test_one_expert_in_place_of_another_leaves_one_missing():
    name = "model.layers.0.mlp.switch_mlp.down.weight"
    wrong = MLX | {name: MLX[name][[0, 1, 1]]}
    lost = [it.name for it in judge(HUB, wrong) if not it.ok]
    assert lost == ["model.layers.0.mlp.experts.2.down.weight"]


def test_half_of_a_fused_weight_twice_is_a_fault():
    up, gate = "model.layers.0.shared.a_up.weight", "model.layers.0.shared.a_gate.weight"
    found = {it.name: it for it in judge(HUB, MLX | {up: MLX[gate]})}
    assert not found[up].ok
    assert "nowhere" in found[up].detail


def test_an_expert_left_out_of_a_split_stack_is_a_fault():
    rest = {name: a for name, a in HUB.items() if "layers.1.mlp.experts.2.up" not in name}
    assert any(not it.ok for it in judge(MLX, rest))


@pytest.mark.parametrize("order", [("w1", "w3"), ("w3", "w1")])
def test_numbers_in_the_names_of_two_kinds_ask_for_no_order(order):
    whole = {f"e.{n}.{kind}.weight": normal(4, 8) for n in range(3) for kind in ("w1", "w3")}
    parts = [[whole[f"e.{n}.{kind}.weight"] for kind in order] for n in range(3)]
    [right] = judge(whole, {"experts": np.stack([np.concatenate(it) for it in parts])})
    [wrong] = judge(
        whole,
        {"experts": np.stack([np.concatenate(it) for it in (parts[0], parts[1][::-1], parts[2])])},
    )
    assert (right.ok, wrong.ok) == (True, False)


@pytest.mark.parametrize("window", [(), (1,), (1, 1)], ids=["linear", "1d", "2d"])
def test_a_fused_convolution_of_one_place_and_the_linear_layers_it_is_split_into_are_explained(
    window,
):
    fused = {"qkv.weight": normal(24, 8, *window)}
    apart = {f"{it}.weight": fused["qkv.weight"].reshape(3, 8, 8)[n] for n, it in enumerate("qkv")}
    assert {(it.kind, it.ok) for it in judge(fused, apart)} == {("split", True)}
    assert {(it.kind, it.ok) for it in judge(apart, fused)} == {("joined", True)}
    del apart["k.weight"]
    assert {(it.kind, it.ok) for it in judge(fused, apart)} == {("cropped", False)}


def cut_at(*places):
    """Return three tensors of which one follows the other, cut at PLACES."""
    return dict(zip("qkv", np.split(FOLLOWING, places), strict=True))


FOLLOWING = normal(16, 4, 1)


def test_tensors_that_follow_each_other_may_be_cut_elsewhere():
    found = judge(cut_at(6, 12), cut_at(3, 6))
    assert [(it.name, it.kind, it.parts) for it in found] == [
        ("q", "split", ()),
        ("k", "split", ()),
        ("v", "joined", ("k", "v")),
    ]
    assert all(it.ok for it in judge(cut_at(6, 12), cut_at(4, 8)))


def test_tensors_cut_elsewhere_that_lose_or_mix_rows_are_at_fault():
    right = cut_at(4, 8)
    for wrong in (right["k"][::-1], right["k"][[0, 1, 3, 2]], right["v"][:4]):
        found = judge(cut_at(6, 12), right | {"k": np.ascontiguousarray(wrong)})
        assert any(not it.ok for it in found)
    found = judge(cut_at(6, 12), right)
    sources = Expectation(("q", "k", "v"), shared=True)
    assert disagreements(found, dict.fromkeys("qkv", sources)) == []
    assert disagreements(found, {"k": Expectation(("k", "v"), shared=True)})


def test_experts_in_another_order_than_promised_are_a_disagreement():
    name = "model.layers.0.mlp.switch_mlp.down.weight"
    sources = tuple(f"model.layers.0.mlp.experts.{e}.down.weight" for e in range(3))
    right, wrong = (judge(HUB, MLX | {name: MLX[name][order]}) for order in ([0, 1, 2], [1, 0, 2]))
    assert disagreements(right, {name: Expectation(sources)}) == []
    (problem,) = disagreements(wrong, {name: Expectation(sources)})
    assert "the map says" in problem


def test_an_order_that_a_map_does_not_tell_is_no_disagreement():
    name = "model.layers.0.qkv_proj.weight"
    found = judge(HUB, MLX)
    sources = tuple(f"model.layers.0.{p}_proj.weight" for p in "vkq")
    assert disagreements(found, {name: Expectation(sources, ordered=False)}) == []
    assert disagreements(found, {name: Expectation(sources)})


def test_what_a_program_makes_is_left_open():
    odd = {**MLX, "model.layers.0.norm.weight": np.tanh(MLX["model.layers.0.norm.weight"])}
    expected = {
        "model.layers.0.norm.weight": Expectation(("model.layers.0.norm.weight",), computed=True)
    }
    stage = fingerprint_stage(with_programs(judge(HUB, odd), expected), [])
    assert stage.status == "unverified"


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_norms_with_one_added_are_explained_where_the_map_says_so(dtype):
    names = [name for name in MLX if name.endswith("norm.weight")]
    moved = MLX | {name: (MLX[name].astype(dtype) + dtype(1)).astype(dtype) for name in names}
    plain, allowed = judge(HUB, moved), judge(HUB, moved, permitted=Permitted(names))
    assert {it.name for it in plain if not it.ok} == set(names)
    assert all(it.ok for it in allowed)
    assert {it.amount for it in allowed if it.name in names} == {1.0}


def test_rows_with_factors_of_their_own_are_explained_where_the_map_says_so():
    name = "model.layers.0.q_proj.weight"
    factors = np.repeat(np.float32([2.5, 0.75, 1.25]), 4)[:, None]
    scaled = HUB | {name: HUB[name] * factors}
    assert all(it.ok for it in judge(HUB, scaled, permitted=Permitted([name])))
    assert any(not it.ok for it in judge(HUB, scaled))


def calls_of(function):
    """Return how many Python and C functions FUNCTION calls on its way."""
    profile = cProfile.Profile()
    profile.runcall(function)
    return sum(each.callcount for each in profile.getstats())


@pytest.mark.parametrize("way", WAYS)
def test_the_work_grows_no_faster_than_the_number_of_experts(way):
    def calls(experts):
        hub, mlx = pair(layers=2, experts=experts)
        reference, candidate = {"to mlx": (hub, mlx), "to torch": (mlx, hub)}[way]
        found = []
        count = calls_of(lambda: found.extend(judge(reference, candidate)))
        assert all(each.ok for each in found)
        return count

    assert calls(64) < 4.4 * calls(16)


def fused(order):
    """Return projections, and the same joined with the rows of q and k in ORDER, as mlx-vlm has muse_spark's."""
    parts = {f"{it}_proj.weight": normal(12, 8) for it in "qkvg"}
    q, k, v, g = parts.values()
    return parts, {"qkvg_proj.weight": np.concatenate([q[order], k[order], v, g])}


TURNED = np.arange(12).reshape(2, 6).T.reshape(-1)


@pytest.mark.parametrize("home", [False, True])
def test_rows_that_a_map_reorders_within_a_joined_tensor_are_found_and_else_are_not(home):
    ways = fused(TURNED)
    reference, candidate = ways[::-1] if home else ways
    found = judge(reference, candidate, permitted=Permitted(reordered=candidate))
    assert all(it.ok for it in found), found
    assert any("in another order" in it.detail for it in found)
    assert not all(it.ok for it in judge(reference, candidate))


@pytest.mark.parametrize("home", [False, True])
def test_a_row_that_is_lost_from_a_reordered_joined_tensor_is_not_hidden(home):
    reference, candidate = fused(np.r_[TURNED[:-1], TURNED[0]])
    if home:
        reference, candidate = candidate, reference
    assert not all(
        it.ok for it in judge(reference, candidate, permitted=Permitted(reordered=candidate))
    )
