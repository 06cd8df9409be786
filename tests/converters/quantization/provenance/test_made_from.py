"""Provenance is told right for every recipe that mlx-lm has, and for models that have none of it."""

from __future__ import annotations

import json

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx.utils import tree_flatten, tree_map
from mlx_lm.quant import awq
from mlx_lm.quant.gptq import gptq_quantize
from mlx_lm.utils import dequantize_model, load_model, quantize_model, save_config, save_model

import weighbridge
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.quantization import Dequantized, Scheme, quantize
from weighbridge.converters.quantization.provenance.made_from import (
    ALIKE,
    ALONE,
    FAR,
    GRID,
    MOVED,
    SHIFTED,
    provenance_from,
)
from weighbridge.errors import MismatchError

from ..conftest import DTYPES, LLAMA, MOE, Arrays, parts_of, save, to_numpy, weights

CONFIG = {**LLAMA, "hidden_size": 128, "num_hidden_layers": 1, "intermediate_size": 256}
LAYERS = 9  # quantized weights of it
MIXED = {"model.layers.0.self_attn.v_proj": {"group_size": 64, "bits": 8}, "lm_head": False}


def uneven(model, seed=1):
    """Give columns and norms of MODEL sizes of their own, as training does."""
    random = np.random.default_rng(seed)
    changed = []
    for name, array in tree_flatten(model.parameters()):
        factor = np.exp(0.4 * random.standard_normal(array.shape[-1])).astype(np.float32)
        changed.append((name, (array * mx.array(factor)).astype(array.dtype)))
    model.load_weights(changed)
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return an original in bfloat16 as mlx-lm would load it."""
    folder = tmp_path_factory.mktemp("models") / "original"
    model, _ = save(folder, CONFIG)
    save_model(folder, uneven(model), donate_model=False)
    return folder


@pytest.fixture
def original(folder):
    return open_checkpoint(folder)


@pytest.fixture
def model(folder):
    mx.random.seed(7)
    return load_model(folder)[0]


def rounded(model, bits=4, group_size=32, **more):
    return quantize_model(model, dict(CONFIG), group_size, bits, **more)


def held(model, config, original, path):
    """Return the provenance of MODEL, written to PATH as mlx-lm writes it, and ORIGINAL."""
    save_model(path, model, donate_model=False)
    save_config(dict(config), path / "config.json")
    written = json.loads((path / "config.json").read_text())
    return provenance_from(Dequantized(open_checkpoint(path), written), original)


def reasons(found):
    return {layer.why for layer in found.layers}


def changed(model, change, only=""):
    """Apply CHANGE(array, step of its 4-bit rounding) to the matrices of MODEL named by ONLY."""
    new = []
    for name, array in tree_flatten(model.parameters()):
        if array.ndim == 2 and only in name:
            step = mx.median(mx.abs(mx.quantize(array.astype(mx.float32), 32, 4)[1]))
            new.append((name, change(array.astype(mx.float32), step).astype(array.dtype)))
    model.load_weights(new, strict=False)
    return model


def trained(amount):
    """Return a change of rank 8 whose rms is AMOUNT of a step."""

    def change(array, step):
        rows, columns = array.shape
        delta = mx.random.normal((rows, 8)) @ mx.random.normal((8, columns))
        return array + amount * step * delta / np.sqrt(8)

    return change


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_lm_s_own_rounding_is_the_same_model(bits, model, original, tmp_path):
    found = held(*rounded(model, bits), original, tmp_path)
    assert (found.status, found.identical, found.total) == ("same", LAYERS, LAYERS)
    assert found.message == "9 of 9 layers identical"
    assert found.certain
    assert not found.lines()


@pytest.mark.parametrize("mode", ["mxfp4", "mxfp8", "nvfp4"])
def test_so_it_is_in_every_mode(mode, model, original, tmp_path):
    found = held(*rounded(model, None, None, mode=mode), original, tmp_path)
    assert found.status == "same"


@pytest.mark.parametrize(
    "more", [{}, {"bits": 8}, {"bits": None, "group_size": None, "mode": "mxfp4"}]
)
def test_so_is_an_original_that_mlx_lm_made_of_it(more, model, tmp_path):
    few, config = rounded(model, **more)
    (tmp_path / "dense").mkdir()
    (tmp_path / "quantized").mkdir()
    save_model(tmp_path / "quantized", few, donate_model=False)
    save_model(tmp_path / "dense", dequantize_model(few), donate_model=False)
    quantized = Dequantized(open_checkpoint(tmp_path / "quantized"), config)
    assert provenance_from(quantized, open_checkpoint(tmp_path / "dense")).certain


@pytest.mark.parametrize("code", ["F32", "BF16", "F16"])
def test_so_is_one_that_holds_its_values_unless_one_is_the_next_number(code, model, tmp_path):
    few, config = rounded(model)
    save_model(tmp_path, few, donate_model=False)
    quantized = Dequantized(open_checkpoint(tmp_path), config)
    dense = Dequantized(open_checkpoint(tmp_path), config, dtype=code)
    values = {name: dense.read(name) for name in dense.headers}
    assert provenance_from(quantized, Arrays(values)).certain
    some = values[next(iter(dense.schemes))]
    some.view(f"u{some.itemsize}")[1, 1] ^= 1
    assert not provenance_from(quantized, Arrays(values)).certain


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("cast", DTYPES)
def test_so_it_is_where_the_model_was_cast_before(stored, cast, tmp_path):
    dense, _ = save(tmp_path / "original", CONFIG, stored)
    dense.set_dtype(getattr(mx, cast))
    (tmp_path / "quantized").mkdir()
    found = held(*rounded(dense), open_checkpoint(tmp_path / "original"), tmp_path / "quantized")
    assert found.status == "same"


@pytest.mark.parametrize("more", [{"mode": "affine"}, {"mode": "nvfp4", "global_scale": True}])
def test_so_it_is_for_experts(more, tmp_path):
    save(tmp_path / "original", MOE, seed=3)
    size = 16 if more["mode"] == "nvfp4" else 64
    _, config = save(tmp_path / "quantized", MOE, seed=3, group_size=size, bits=4, **more)
    view = Dequantized(open_checkpoint(tmp_path / "quantized"), config)
    assert any(len(view.headers[name].shape) == 3 for name in view.schemes)
    found = provenance_from(view, open_checkpoint(tmp_path / "original"))
    assert found.status == "same", found.lines()


def test_a_mixed_recipe_that_is_recorded_is_the_same_model(model, original, tmp_path):
    made = rounded(model, quant_predicate=lambda path, _: MIXED.get(path, True))
    found = held(*made, original, tmp_path)
    assert (found.status, found.identical, found.certain) == ("same", LAYERS - 1, True)


def test_trained_scales_are_another_grid(model, original, tmp_path):
    """DWQ (`mlx_lm/quant/dwq.py`) trains scales and biases below 8 bits and keeps the codes."""
    model, config = rounded(model)
    target = mx.random.normal((4, 6, CONFIG["vocab_size"]))
    tokens = mx.random.randint(0, CONFIG["vocab_size"], (4, 6))
    model.apply_to_modules(
        lambda _, m: (
            m.unfreeze(keys=["scales", "biases"], recurse=False) if hasattr(m, "bits") else None
        )
    )
    for name, module in model.named_modules():
        if "norm" in name:
            module.freeze()
    step = nn.value_and_grad(model, lambda: mx.mean((model(tokens) - target) ** 2))
    for _ in range(3):
        _, gradients = step()
        model.update(_sign_step(model.trainable_parameters(), gradients, 2e-4))
    found = held(model, config, original, tmp_path)
    assert found.status == "other recipe"
    assert reasons(found) == {GRID}
    assert all(layer.codes_equal == 1.0 for layer in found.layers)
    assert "rounded on another grid" in found.message


SCHEMES = ({"bits": 4}, {"bits": 8, "group_size": 32}, {"mode": "mxfp4"}, {"dtype": "float16"})


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_scales_that_weighbridge_searched_are_proof(folder, original, model, tmp_path, scheme):
    weighbridge.quantize(folder, tmp_path / "codes", check="none", **scheme)
    config = json.loads((tmp_path / "codes" / "config.json").read_text())
    quantized = Dequantized(open_checkpoint(tmp_path / "codes"), config)
    found = provenance_from(quantized, original)
    assert (found.status, found.identical, found.certain) == ("same", LAYERS, True)
    save_model(tmp_path / "sibling", changed(model, trained(0.05)), donate_model=False)
    assert not provenance_from(quantized, open_checkpoint(tmp_path / "sibling")).certain


def _sign_step(parameters, gradients, rate):
    return tree_map(lambda p, g: (p - rate * mx.sign(g)).astype(p.dtype), parameters, gradients)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_scales_and_biases_trained_by_a_tenth_of_a_step_are_another_grid(bits):
    """Adam at the 1e-6 of DWQ moves a bias by at most 0.001 in a thousand steps."""
    scheme, array = Scheme(bits, 64), weights((96, 256))
    parts, random = parts_of(array, scheme), np.random.default_rng(3)
    for part, share in (("scales", 0.1 / (2**bits - 1)), ("biases", 0.1)):
        noise = share * parts["scales"] * random.standard_normal(parts["scales"].shape)
        parts[part] = (parts[part] + noise).astype(np.float32)
    found = one(parts, scheme, to_numpy(array))
    assert (found.status, reasons(found), found.certain) == ("other recipe", {GRID}, False)


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [2, 4])
def test_calibrated_codes_are_another_recipe_and_said_to_be_ambiguous(
    bits, model, original, tmp_path
):
    tokens = mx.random.randint(0, CONFIG["vocab_size"], (8, 64))
    model, section = gptq_quantize(model, tokens, bits, 32, 6, 64)
    found = held(model, {**CONFIG, "quantization": section}, original, tmp_path)
    assert found.status == "other recipe"
    assert found.identical == 1  # the embedding, which GPTQ only rounds
    assert SHIFTED in reasons(found)
    assert ALIKE in found.message


@pytest.mark.heavy
@pytest.mark.parametrize("bits", [3, 4])
def test_mlx_lm_s_awq_is_another_recipe(bits, model, original, tmp_path):
    tokens = mx.random.randint(0, CONFIG["vocab_size"], (8, 64))
    awq.awq_quantize(model, tokens, awq.llama_awq, 32, bits, 32, 4, n_grid=6)
    found = held(model, awq.update_config(model, dict(CONFIG)), original, tmp_path)
    assert found.status == "other recipe", found.lines()
    assert not found.tensors


def scaled(model, spread=0.5):
    """Move scales as AWQ does, by mlx-lm's own function."""
    block = model.layers[0]
    pairs = [
        (block.input_layernorm, [block.self_attn[it] for it in ("q_proj", "k_proj", "v_proj")]),
        (block.post_attention_layernorm, [block.mlp.gate_proj, block.mlp.up_proj]),
        (block.mlp.up_proj, [block.mlp.down_proj]),
    ]
    for before, layers in pairs:
        columns = layers[0].weight.shape[1]
        scales = mx.exp(spread * mx.random.normal((columns,)))
        awq.apply_scale(before, layers, scales)
    model.set_dtype(mx.bfloat16)
    return model


@pytest.mark.parametrize("spread", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("bits", [4, 8])
def test_moved_scales_are_found_again_from_the_values(bits, spread, model, original, tmp_path):
    found = held(*rounded(scaled(model, spread), bits), original, tmp_path)
    assert found.status == "other recipe", found.lines()
    assert MOVED in reasons(found)
    assert not found.tensors  # the norms are explained
    assert found.identical == LAYERS - 6
    assert not found.certain


@pytest.mark.parametrize(
    "forgotten", ["input_layernorm", "post_attention_layernorm", "mlp.up_proj"]
)
def test_moved_scales_that_nothing_cancels_are_a_mismatch(forgotten, model, original, tmp_path):
    kept = {
        name: array + 0 for name, array in tree_flatten(model.parameters()) if forgotten in name
    }
    scaled(model).load_weights(list(kept.items()), strict=False)
    found = held(*rounded(model), original, tmp_path)
    assert found.status == "mismatch"
    assert ALONE in reasons(found)


def test_scales_that_are_not_moved_as_far_as_they_came_are_a_mismatch(model, original, tmp_path):
    scaled(model)
    model.layers[0].self_attn.v_proj.weight *= 1.3
    found = held(*rounded(model), original, tmp_path)
    assert found.status == "mismatch"
    assert [layer.name for layer in found.layers if layer.why == ALONE] == [
        "model.layers.0.self_attn.v_proj.weight"
    ]


def some_rows(array, _):
    return array * mx.exp(0.3 * mx.random.normal((array.shape[0], 1)))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(
    ("change", "only"),
    [
        (some_rows, "up_proj"),
        (some_rows, "proj"),
        (lambda array, _: array * mx.exp(0.3 * mx.random.normal((array.shape[1],))), "down_proj"),
        (lambda array, _: array * 1.3, "up_proj"),
        (lambda array, _: array * 1.5, ""),
    ],
    ids=["rows of one", "rows of all", "columns", "one layer", "all"],
)
def test_scaled_weights_are_a_mismatch(change, only, bits, model, original, tmp_path):
    found = held(*rounded(changed(model, change, only), bits), original, tmp_path)
    assert found.status == "mismatch"
    assert "no other tensor cancels it" in found.message


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_another_seed_is_a_mismatch(bits, original, tmp_path):
    other, _ = save(tmp_path / "other", CONFIG, seed=2)
    found = held(*rounded(uneven(other), bits), original, tmp_path)
    assert (found.status, found.identical) == ("mismatch", 0)
    assert reasons(found) == {FAR}
    assert "9 further away than any recipe explains" in found.message


def test_another_seed_is_a_mismatch_in_the_experts_too(tmp_path):
    save(tmp_path / "original", MOE, seed=3)
    _, config = save(tmp_path / "quantized", MOE, seed=4, group_size=64, bits=4)
    view = Dequantized(open_checkpoint(tmp_path / "quantized"), config)
    assert provenance_from(view, open_checkpoint(tmp_path / "original")).status == "mismatch"


@pytest.mark.parametrize("amount", [1.3, 3.0])
def test_a_sibling_trained_by_more_than_a_step_is_a_mismatch(amount, model, original, tmp_path):
    found = held(*rounded(changed(model, trained(amount))), original, tmp_path)
    assert found.status == "mismatch"
    assert reasons(found) == {FAR}


def test_a_sibling_trained_in_some_layers_is_a_mismatch(model, original, tmp_path):
    found = held(*rounded(changed(model, trained(0.2), only="q_proj")), original, tmp_path)
    assert (found.status, found.identical) == ("mismatch", LAYERS - 1)
    assert "a sibling trained further" in found.message


def test_a_sibling_whose_norms_were_trained_with_the_rest_is_a_mismatch(model, original, tmp_path):
    model = changed(model, trained(0.03))
    norm = model.layers[0].input_layernorm
    norm.weight = (norm.weight * mx.exp(0.05 * mx.random.normal(norm.weight.shape))).astype(
        mx.bfloat16
    )
    found = held(*rounded(model), original, tmp_path)
    assert found.status == "mismatch"
    assert len(found.tensors) == 1
    assert found.tensors[0].startswith("model.layers.0.input_layernorm.weight: not quantized")


def test_what_cannot_be_told_from_calibration_is_said(model, original, tmp_path):
    found = held(*rounded(changed(model, trained(0.2))), original, tmp_path)
    assert found.status == "other recipe"
    assert len(found.lines()) == 1 + LAYERS


@pytest.mark.parametrize(
    ("amount", "bits"), [(0.01, 4), (0.04, 4), (0.1, 4), (0.3, 2), (0.003, 8), (0.04, 8)]
)
def test_every_sibling_that_is_not_told_is_warned_of(amount, bits, model, original, tmp_path):
    model = changed(model, trained(amount), only="proj")
    found = held(*rounded(model, bits), original, tmp_path)
    assert (found.status, found.certain) == ("other recipe", False)
    assert ALIKE in found.message
    assert found.lines()[0] == ALIKE


def test_dense_tensors_alone_that_differ_make_a_mismatch(model, original, tmp_path):
    model.model.norm.weight = model.model.norm.weight * 2
    found = held(*rounded(model), original, tmp_path)
    assert (found.status, found.identical, found.certain) == ("mismatch", LAYERS, False)
    assert found.lines() == ["model.norm.weight: not quantized, and differs by 1"]


@pytest.mark.parametrize(
    "change",
    [
        lambda array: 0.1 * mx.random.normal(array.shape),
        lambda array: array + 0.002 * mx.random.normal(array.shape),
        lambda array: some_rows(array, None),
    ],
    ids=["another", "trained", "scaled"],
)
def test_a_dense_head_of_another_model_makes_a_mismatch(change, model, original, tmp_path):
    model.lm_head.weight = change(model.lm_head.weight).astype(mx.bfloat16)
    made = rounded(model, quant_predicate=lambda path, _: path != "lm_head")
    found = held(*made, original, tmp_path)
    assert (found.status, found.identical) == ("mismatch", LAYERS - 1)
    assert [it.split(":")[0] for it in found.tensors] == ["lm_head.weight"]


def test_weights_quantized_twice_are_another_rounding(model, original, tmp_path):
    twice = rounded(dequantize_model(rounded(model)[0]))
    assert held(*twice, original, tmp_path).status == "other recipe"


def test_layers_that_changed_places_are_a_mismatch(model, original, tmp_path):
    attention = model.layers[0].self_attn
    attention.k_proj.weight, attention.v_proj.weight = (
        attention.v_proj.weight,
        attention.k_proj.weight,
    )
    found = held(*rounded(model), original, tmp_path)
    assert found.status == "mismatch"
    assert [layer.why for layer in found.layers] == [FAR, FAR]


def test_the_furthest_come_first(model, original, tmp_path):
    model = changed(changed(model, trained(3), only="v_proj"), trained(0.2), only="gate_proj")
    found = held(*rounded(model), original, tmp_path)
    assert [layer.name.split(".")[-2] for layer in found.layers] == ["v_proj", "gate_proj"]


def test_models_of_different_tensors_are_refused_with_the_list(model, original, tmp_path):
    model, config = rounded(model)
    save_model(tmp_path, model, donate_model=False)
    arrays = {name: original.read(name) for name in original.headers}
    arrays["model.norm.weight"] = arrays["model.norm.weight"][:3]
    del arrays["lm_head.weight"]
    with pytest.raises(MismatchError) as caught:
        provenance_from(Dequantized(open_checkpoint(tmp_path), config), Arrays(arrays))
    assert len(caught.value.problems) == 2


def test_an_original_that_is_quantized_itself_is_refused():
    raw = Arrays(
        {f"up.{part}": it for part, it in parts_of(weights((4, 64)), Scheme(4, 64)).items()}
    )
    view = Dequantized(raw, {"quantization": Scheme(4, 64).record})
    with pytest.raises(MismatchError, match=r"up.weight: the original has U32\[4, 8\]"):
        provenance_from(view, raw)


def one(parts, scheme, array):
    """Return the provenance of one weight, PARTS, and its original."""
    raw = Arrays({f"up.{part}": it for part, it in parts.items()})
    return provenance_from(
        Dequantized(raw, {"quantization": scheme.record}), Arrays({"up.weight": array})
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_that_were_clipped_first_are_on_another_grid(bits):
    """AWQ (`mlx_lm/quant/awq.py`, `search_best_clip`) clips what is rare and large."""
    array = weights((32, 256), "float32")
    largest = 0.8 * mx.max(mx.abs(array.reshape(32, 4, 64)), axis=-1, keepdims=True)
    clipped = mx.clip(array.reshape(32, 4, 64), -largest, largest).reshape(32, 256)
    found = one(parts_of(clipped, Scheme(bits, 64)), Scheme(bits, 64), to_numpy(array))
    assert found.status == (
        "other recipe" if bits < 8 else "mismatch"
    )  # clipping is no 8-bit recipe
    assert bits == 8 or reasons(found) == {GRID}


def test_the_right_codes_with_the_scales_of_another_weight_are_a_mismatch():
    scheme, array = Scheme(4, 32), weights((8, 64))
    parts = parts_of(array, scheme)
    found = one(parts | {"scales": parts["scales"][::-1] * 2}, scheme, to_numpy(array))
    assert (found.status, found.layers[0].codes_equal) == ("mismatch", 1.0)


def test_scales_that_are_not_numbers_are_a_mismatch():
    scheme, array = Scheme(4, 32), weights((8, 64))
    parts = parts_of(array, scheme)
    parts["scales"] = parts["scales"].copy()
    parts["scales"][0, 0] = np.nan
    assert one(parts, scheme, to_numpy(array)).status == "mismatch"


@pytest.mark.parametrize(("seed", "status"), [(0, "other recipe"), (1, "mismatch")])
def test_experts_with_global_scales_are_measured_one_by_one(seed, status):
    scheme, sizes = Scheme(4, 16, "nvfp4"), np.array([[[1]], [[100]], [[0.01]]], np.float32)
    array = to_numpy(weights((3, 8, 64), seed=seed)) * sizes
    parts = quantize(array, scheme, "float32", global_scale=True)
    parts["global_scale"] = parts["global_scale"] * np.float32(1.001)
    found = one(parts, scheme, to_numpy(weights((3, 8, 64))) * sizes)
    assert found.status == status
    assert (found.layers[0].codes_equal == 1.0) == (seed == 0)


@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("uniform", [False, True])
def test_norms_are_explained_by_what_their_weights_were_multiplied_by(gemma, uniform):
    random, scheme = np.random.default_rng(5), Scheme(4, 32)
    array = to_numpy(weights((96, 64)))
    norm = 1 + 0.1 * random.standard_normal(64).astype(np.float32)
    scales = np.full(64, 1.3, np.float32) if uniform else np.exp(0.3 * random.standard_normal(64))
    moved = (norm + gemma) / scales - gemma
    parts = {f"up.{n}": it for n, it in parts_of(mx.array(array * scales), scheme).items()}
    raw = Arrays(parts | {"norm.weight": moved.astype(np.float32)})
    view = Dequantized(raw, {"quantization": scheme.record})
    original = Arrays({"up.weight": array, "norm.weight": norm})
    found = provenance_from(view, original)
    assert (found.status, found.tensors) == ("other recipe", ())
    assert reasons(found) == {MOVED}
    raw.arrays["norm.weight"] = norm / moved  # as much, but another way
    assert provenance_from(view, original).status == "mismatch"


def test_a_gain_that_is_no_more_than_noise_explains_no_norm():
    """On small weights every third sibling has one near 1."""
    scheme, array = Scheme(4, 32), to_numpy(weights((32, 64)))
    for seed in range(20):
        random = np.random.default_rng(seed)
        sibling = array + 0.05 * random.standard_normal(array.shape).astype(np.float32)
        norm = 1 + 0.1 * random.standard_normal(64).astype(np.float32)
        moved = norm * np.exp(0.002 * random.standard_normal(64)).astype(np.float32)
        parts = {f"up.{n}": it for n, it in parts_of(mx.array(sibling), scheme).items()}
        raw = Arrays(parts | {"norm.weight": moved})
        original = Arrays({"up.weight": array, "norm.weight": norm})
        view = Dequantized(raw, {"quantization": scheme.record})
        assert len(provenance_from(view, original).tensors) == 1, seed


@pytest.mark.parametrize("kept", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_norm_that_was_cast_by_way_of_another_dtype_is_the_same(kept):
    scheme, array = Scheme(4, 32), to_numpy(weights((96, 64), "bfloat16"))
    norm = 1 + 0.1 * np.random.default_rng(8).standard_normal(64).astype(np.float32)
    parts = {f"up.{n}": it for n, it in parts_of(mx.array(array), scheme).items()}
    stored = norm.astype(ml_dtypes.bfloat16).astype(kept)
    view = Dequantized(Arrays(parts | {"norm.weight": stored}), {"quantization": scheme.record})
    assert provenance_from(view, Arrays({"up.weight": array, "norm.weight": norm})).tensors == ()


def test_a_cast_explains_no_more_than_it_rounds():
    scheme, array = Scheme(4, 32), to_numpy(weights((96, 64)))
    norm = 1 + 0.1 * np.random.default_rng(8).standard_normal(64).astype(np.float32)
    parts = {f"up.{n}": it for n, it in parts_of(mx.array(array), scheme).items()}
    original = Arrays({"up.weight": array, "norm.weight": norm})
    half = norm.astype(np.float16)
    twice = half.astype(ml_dtypes.bfloat16)  # is a cast too
    for stored, told in ((half, 0), (twice, 0), (half * np.float16(1.002), 1)):
        view = Dequantized(Arrays(parts | {"norm.weight": stored}), {"quantization": scheme.record})
        assert len(provenance_from(view, original).tensors) == told


def test_a_router_and_biases_are_explained_too():
    random, scheme = np.random.default_rng(6), Scheme(4, 32)
    array, router = to_numpy(weights((96, 64))), to_numpy(weights((8, 64), seed=2))
    bias = random.standard_normal(96).astype(np.float32)
    rows, columns = (np.exp(0.3 * random.standard_normal(it)).astype(np.float32) for it in (96, 64))
    down, norm = to_numpy(weights((64, 96), seed=4)), np.ones(64, np.float32)
    moved = {"up": array * columns / rows[:, None], "down": down * rows}
    parts = {
        f"{path}.{n}": it
        for path, wide in moved.items()
        for n, it in parts_of(mx.array(wide), scheme).items()
    }
    dense = {"norm": norm / columns, "up.bias": bias / rows, "gate.weight": router * columns}
    raw = Arrays(parts | dense)
    original = Arrays(
        {"up.weight": array, "down.weight": down, "norm": norm, "up.bias": bias}
        | {"gate.weight": router}
    )
    view = Dequantized(raw, {"quantization": scheme.record})
    found = provenance_from(view, original)
    assert (found.status, found.tensors, reasons(found)) == ("other recipe", (), {MOVED})
    raw.arrays["gate.weight"] = router * columns[::-1]
    assert provenance_from(view, original).tensors == (f"gate.weight: not quantized, and {ALONE}",)
    raw.arrays["gate.weight"] = router + 0.1 * to_numpy(weights((8, 64), seed=3))
    assert provenance_from(view, original).status == "mismatch"


def test_a_column_of_zeros_and_a_dead_layer_are_no_trouble():
    array = to_numpy(weights((8, 64), "bfloat16")).copy()
    array[:, 3] = 0
    original = Arrays({"up.weight": array, "dead.weight": np.zeros_like(array)})
    arrays = {
        f"{path}.{part}": it
        for path, sign in (("up", -1), ("dead", 1))
        for part, it in parts_of(
            mx.array(sign * original.read(f"{path}.weight").astype(np.float32)), Scheme(4, 64)
        ).items()
    }
    found = provenance_from(
        Dequantized(Arrays(arrays), {"quantization": Scheme(4, 64).record}), original
    )
    assert [layer.name for layer in found.layers] == ["up.weight"]
