"""Merging into quantized MLX models, held against mlx-lm's own live layers and its loader."""

import json
import os
import re
import shutil
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models import llama, qwen3_moe
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

from weighbridge import jobs
from weighbridge.converters.adapters.merging.affected import AffectedWeight, blocks
from weighbridge.converters.adapters.merging.statistics import SAMPLE, measure
from weighbridge.converters.checkpoints import Staging, Writer, open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.converters.quantization import Dequantized, Recipe, Scheme
from weighbridge.converters.quantization.forms import Form, common_dtype, refit, wider
from weighbridge.converters.values import LowRank
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError
from weighbridge.jobs.merging import from_original, plan, write
from weighbridge.jobs.merging import quantized as merging
from weighbridge.jobs.merging.check import BAR
from weighbridge.jobs.merging.quantized import merge_quantized
from weighbridge.jobs.merging.trial import affected_weights, changes_of, try_forms
from weighbridge.jobs.provenance.base import dense_view
from weighbridge.jobs.provenance.placement import live_on
from weighbridge.tests.support.atlas import tiny

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "attention_bias": True,
    "tie_word_embeddings": False,
}
MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 128,
    "rms_norm_eps": 1e-5,
    "vocab_size": 320,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "max_position_embeddings": 256,
    "norm_topk_prob": True,
}
QUERY, DOWN = "self_attn.q_proj", "mlp.down_proj"
IDS = mx.array([[3, 200, 17, 9, 250, 31, 4]])
QUIET = jobs.Options(check="none")
STEP = 0.02  # about what a 4-bit step is in these models: their weights spread over 0.25 or so
TINY = STEP / 10


def dense(config, dtype, classes=llama):
    """Return a random model of mlx-lm in DTYPE, its norms and biases perturbed."""
    mx.random.seed(0)
    model = classes.Model(classes.ModelArgs.from_dict(config))
    small = [
        (name, array + 0.1 * mx.random.normal(array.shape))
        for name, array in tree_flatten(model.parameters())
        if array.ndim == 1
    ]
    model.load_weights(small, strict=False)
    model.set_dtype(dtype)
    return model


def save(folder, model, config):
    save_model(folder, model)
    save_config(dict(config), folder / "config.json")
    return folder


def quantized(folder, config=LLAMA, classes=llama, dtype=mx.float16, **how):
    """Write what mlx_lm.convert makes of a random model: its base, and the dense original."""
    model = dense(config, dtype, classes)
    save(folder / "original", model, config)
    made, settings = quantize_model(model, dict(config), **{"group_size": 64, "bits": 4} | how)
    return save(folder / "base", made, settings)


def trained(folder, base, size, keys=(QUERY, DOWN), kind="lora", rank=4):
    """Write an adapter on BASE by mlx-lm's own layers, its updates about SIZE large in each number."""
    mx.random.seed(1)
    model, _ = load_model(base)
    settings = {"rank": rank, "scale": 2.0, "dropout": 0.0, "keys": list(keys)}
    model.freeze()
    linear_to_lora_layers(model, 2, settings, use_dora=kind == "dora")
    parameters = dict(tree_flatten(model.trainable_parameters()))
    halves = {}
    for name, array in parameters.items():
        if name.endswith((".lora_a", ".lora_b")):
            spread = (size / (2.0 * rank**0.5)) ** 0.5
            halves[name] = spread * mx.random.normal(array.shape)
        elif name.endswith(".m"):
            halves[name] = array * 1.01
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), halves)
    text = {"fine_tune_type": kind, "num_layers": 2, "lora_parameters": settings}
    (folder / "adapter_config.json").write_text(json.dumps(text))
    return folder


def live(base, adapter):
    """Return BASE seen dense with ADAPTER live on it."""
    return live_on(dense_view(open_model(base)), adapter)[0]


def merged(base, adapter, target, options=QUIET, **how):
    return merge_quantized(live(base, adapter), options.begin(target, "model"), options, **how)


def outputs(folder, adapter=None):
    """Return what mlx-lm computes in float32 from FOLDER, codes as they are."""
    model, _ = load_model(folder)
    model = load_adapters(model, str(adapter)) if adapter else model
    model.set_dtype(mx.float32)
    return np.array(model(IDS))


def off(target, base, adapter):
    """Return how far TARGET's outputs are from the live adapter's, in parts of its effect."""
    wanted, bare, found = outputs(base, adapter), outputs(base), outputs(target)
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted - bare)


def stored(folder):
    checkpoint = open_checkpoint(folder)
    return {name: (it, checkpoint.read(name).tobytes()) for name, it in checkpoint.headers.items()}


def ignore(_):
    """See a block and do nothing."""


def settings(folder):
    return json.loads((folder / "config.json").read_text())


def changed(target, base):
    """Return the tensors that differ between two directories."""
    one, other = stored(target), stored(base)
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return quantized(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def small(base):
    """An adapter that 4 bits erase and 8 bits keep."""
    return trained(base.parent / "small", base, TINY)


@pytest.fixture(scope="module")
def large(base):
    """An adapter that 4 bits keep."""
    return trained(base.parent / "large", base, 3 * STEP)


def test_an_adapter_that_4_bits_erase_is_refused_with_the_remedies(base, small, tmp_path):
    with pytest.raises(MismatchError) as refused:
        merged(base, small, tmp_path / "merged")
    text = str(refused.value)
    assert "in 4 of 4 layers" in text
    assert len(refused.value.problems) == 4
    places = [
        text.index(way) for way in ("1. keep the adapter live", "2. merge into", "3. --promote")
    ]
    assert places == sorted(places)
    assert "keep 4 of 4 layers at more bits (4 at 8-bit affine, groups of 64" in text
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_tells_the_same_and_writes_nothing(base, small, tmp_path):
    found = merged(base, small, tmp_path / "merged", replace(QUIET, dry_run=True))
    text = "\n".join(found.plan)
    assert found.target is None
    assert "3. --promote" in text
    assert list(tmp_path.iterdir()) == []


def test_forced_it_is_written_and_the_manifest_says_what_was_lost(base, small, tmp_path):
    found = merged(base, small, tmp_path / "merged", force=True)
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"refuse"}
    assert off(found.target, base, small) > BAR
    assert settings(found.target) == settings(base)


def test_promoted_layers_follow_the_live_adapter_in_mlx_lms_own_class(base, small, tmp_path):
    found = merged(base, small, tmp_path / "merged", promote=True)
    assert off(found.target, base, small) < BAR
    modules = {f"model.layers.{n}.{key}" for n in (0, 1) for key in (QUERY, DOWN)}
    section = settings(found.target)["quantization"]
    assert section == settings(found.target)["quantization_config"]
    assert {path for path, it in section.items() if isinstance(it, dict)} == modules
    assert section[f"model.layers.0.{QUERY}"] == {"group_size": 64, "bits": 8, "mode": "affine"}
    expected = {f"{m}.{part}" for m in modules for part in ("weight", "scales", "biases")}
    assert changed(found.target, base) == expected  # q_proj.bias stays
    rest = {"quantization", "quantization_config"}
    kept = {key: value for key, value in settings(base).items() if key not in rest}
    assert kept.items() <= settings(found.target).items()


def test_the_check_measures_what_mlx_lm_measures(base, small, tmp_path):
    np.savez(tmp_path / "ids.npz", input_ids=np.array(IDS))
    options = jobs.Options(inputs=tmp_path / "ids.npz")
    found = merged(base, small, tmp_path / "merged", options, promote=True)
    figures = found.facts["figures"]
    wanted, bare, real = outputs(base, small), outputs(base), outputs(found.target)
    norm = np.linalg.norm
    assert figures["merge"] == pytest.approx(norm(real - wanted) / norm(wanted), rel=0.01)
    assert figures["effect"] == pytest.approx(norm(wanted - bare) / norm(bare), rel=0.01)
    stage = found.verdict.stage("structure")
    assert stage.status == "pass"
    assert "mlx-lm's own loader took every tensor" in stage.detail
    assert found.status == "PASS"


def test_an_adapter_that_4_bits_keep_is_merged_at_4_bits(base, large, tmp_path):
    found = merged(base, large, tmp_path / "merged")
    assert (found.target / "config.json").read_bytes() == (base / "config.json").read_bytes()
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"pass"}
    assert off(found.target, base, large) < BAR
    assert stored(found.target).keys() == stored(base).keys()


def test_what_is_merged_at_4_bits_is_mx_quantize_of_the_sum(base, large, tmp_path):
    target = merged(base, large, tmp_path / "merged").target
    name = f"model.layers.1.{DOWN}"
    model, halves = load_model(base)[0], mx.load(str(large / "adapters.safetensors"))
    layer = model.model.layers[1].mlp.down_proj
    wide = (array.astype(mx.float32) for array in (layer.scales, layer.biases))
    before = mx.dequantize(layer.weight, *wide, group_size=64, bits=4)
    delta = 2.0 * (halves[f"{name}.lora_a"] @ halves[f"{name}.lora_b"]).T
    codes, scales, _ = mx.quantize(before + delta, group_size=64, bits=4)
    found = open_checkpoint(target)
    assert np.mean(found.read(f"{name}.weight") == np.array(codes)) > 0.99  # float64 against 32
    assert np.allclose(found.read(f"{name}.scales"), np.array(scales), rtol=1e-3)


def test_an_update_of_nothing_leaves_every_byte(base, tmp_path):
    nothing = trained(tmp_path / "nothing", base, 0.0)
    target = merged(base, nothing, tmp_path / "merged").target
    assert stored(target) == stored(base)
    assert (target / "config.json").read_bytes() == (base / "config.json").read_bytes()


def test_rows_that_an_update_leaves_alone_keep_their_bytes(base, large):
    model = live(base, large)
    name, update = next(iter(model.adapter.updates.items()))
    b = update.b.copy()
    b[::2] = 0
    half = replace(model.adapter, updates={name: replace(update, b=b)})
    [weight] = affected_weights(changes_of(replace(model, adapter=half)), model.tensors)
    made, parts = weight.made(weight.own, ignore), model.tensors.parts(name)
    for part, whole in parts.items():
        found = made[model.tensors.part_names(name)[part]]
        assert np.array_equal(found[::2], whole[::2])
        assert not np.array_equal(found[1::2], whole[1::2])


def test_dora_is_merged_as_mlx_lm_computes_it(base, tmp_path):
    adapter = trained(tmp_path / "dora", base, TINY, kind="dora")
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    assert off(target, base, adapter) < BAR


def test_experts_are_merged_one_by_one(tmp_path):
    base = quantized(tmp_path, MOE, qwen3_moe, mx.float32)
    keys = ("mlp.switch_mlp.gate_proj", "mlp.switch_mlp.down_proj")
    adapter = trained(tmp_path / "adapter", base, TINY, keys=keys)
    found = merged(base, adapter, tmp_path / "merged", promote=True)
    assert len(found.facts["merged"]) == 4
    assert off(found.target, base, adapter) < BAR


def edited(folder, target, change):
    """Copy FOLDER to TARGET, its tensors as CHANGE makes them."""
    shutil.copytree(folder, target)
    file = next(target.glob("*.safetensors"))
    tensors = change(dict(mx.load(str(file))))
    mx.eval(tensors)
    mx.save_safetensors(
        str(file), {n: mx.array(it) for n, it in tensors.items()}, {"format": "mlx"}
    )
    return target


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    """A base of 4 bits with experts, and an adapter of which the first expert survives alone."""
    folder = tmp_path_factory.mktemp("experts")
    base = quantized(folder, MOE, qwen3_moe)
    whole = trained(folder / "whole", base, 3 * STEP, keys=("mlp.switch_mlp.up_proj",))
    faint = mx.array([1.0, 0.03, 0.03, 0.03]).reshape(4, 1, 1)
    adapter = edited(
        whole,
        folder / "adapter",
        lambda it: {n: a * faint if n.endswith("lora_b") else a for n, a in it.items()},
    )
    return base, adapter


def test_a_large_expert_hides_no_small_one(experts, tmp_path):
    base, adapter = experts
    with pytest.raises(MismatchError, match="in 2 of 2 layers") as refused:
        merged(base, adapter, tmp_path / "merged")
    assert all(re.search(r"up_proj\.weight\[[123]\]: ", it) for it in refused.value.problems)
    found = merged(base, adapter, tmp_path / "merged", jobs.Options(), promote=True)
    assert found.status == "PASS"
    assert {tuple(it["part"]) for it in found.facts["merged"].values()} <= {(1,), (2,), (3,)}


def test_every_expert_is_in_the_sample(experts, monkeypatch):
    model = live(*experts)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.affected.BLOCK", 64)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.statistics.SAMPLE", 1)
    found = measure(
        affected_weights(changes_of(model), model.tensors)[0], Form(Scheme(4, 64), "F16")
    )
    assert found.seen == 4 * 64
    assert found.part in {(1,), (2,), (3,)}


def test_an_expert_without_an_update_is_not_called_lost(experts, tmp_path):
    base, adapter = experts
    one = edited(
        adapter,
        tmp_path / "one",
        lambda it: {
            n: a * (mx.arange(4) == 0).reshape(4, 1, 1) if n.endswith("lora_b") else a
            for n, a in it.items()
        },
    )
    found = merged(base, one, tmp_path / "merged", jobs.Options())
    assert found.status == "PASS"
    name = "model.layers.0.mlp.switch_mlp.up_proj.scales"
    after, before = (open_checkpoint(it).read(name) for it in (found.target, base))
    assert np.array_equal(after[1:], before[1:])
    assert not np.array_equal(after[0], before[0])
    again = merged(
        base,
        one,
        tmp_path / "from_original",
        jobs.Options(),
        original=open_model(base.parent / "original"),
    )
    assert again.verdict.stage("fingerprints").status == "pass"
    assert again.status == "UNVERIFIED"  # the rounding of all other weights hides one expert


def drop(monkeypatch):
    affected_weights = plan.affected_weights
    monkeypatch.setattr(
        plan,
        "affected_weights",
        lambda changes, *rest: affected_weights(dict(list(changes.items())[1:]), *rest),
    )


def exaggerate(monkeypatch):
    wanted = AffectedWeight.wanted
    monkeypatch.setattr(
        AffectedWeight, "wanted", lambda self, at, it: it + 1.5 * (wanted(self, at, it) - it)
    )


def leave_unmerged(monkeypatch):
    make = write.make

    def wrong(job, name, measured):
        made = make(job, name, measured)
        if ".0." not in name:
            return made
        names = job.tensors.part_names(name)
        return {names[part]: array for part, array in job.tensors.parts(name).items()}

    monkeypatch.setattr(write, "make", wrong)


def turn_rows(monkeypatch):
    """Turn rows, or experts, about."""
    make = write.make

    def wrong(*arguments):
        return {name: array[::-1].copy() for name, array in make(*arguments).items()}

    monkeypatch.setattr(write, "make", wrong)


def touch_another(monkeypatch):
    beside = merging.beside_weights

    def wrong(job, folder):
        file = folder / "model.safetensors"
        tensors = {n: mx.array(np.array(it)) for n, it in mx.load(str(file)).items()}
        tensors["model.norm.weight"] *= 1.01
        mx.save_safetensors(str(file), tensors, {"format": "mlx"})
        return beside(job, folder)

    monkeypatch.setattr(merging, "beside_weights", wrong)


FAULTS = [drop, exaggerate, leave_unmerged, turn_rows, touch_another]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda it: it.__name__)
def test_the_check_finds_what_the_merge_does_wrong(base, large, tmp_path, monkeypatch, fault):
    fault(monkeypatch)
    found = merged(base, large, tmp_path / "merged", jobs.Options(), force=True)
    assert found.status == "DIFFERS"
    assert found.verdict.stage("fingerprints").status == "fail"


@pytest.mark.parametrize("fault", [drop, leave_unmerged, turn_rows], ids=lambda it: it.__name__)
def test_so_it_does_of_a_merge_into_the_original(tmp_path, monkeypatch, fault):
    base = quantized(tmp_path, bits=8)
    adapter = trained(tmp_path / "adapter", base, STEP)
    original = open_model(tmp_path / "original")
    whole = merged(base, adapter, tmp_path / "whole", jobs.Options(), original=original)
    assert whole.status == "PASS"
    if fault is drop:
        changes = from_original.changes_of
        monkeypatch.setattr(
            from_original, "changes_of", lambda it: dict(list(changes(it).items())[1:])
        )
    else:
        fault(monkeypatch)
    found = merged(base, adapter, tmp_path / "merged", jobs.Options(), original=original)
    assert found.verdict.stage("fingerprints").status == "fail"


def test_where_no_other_loader_reads_the_adapter_the_stage_says_so(
    base, large, tmp_path, monkeypatch
):
    def absent(*_):
        raise UnsupportedError("not installed")

    monkeypatch.setattr("weighbridge.jobs.adapter_check.mlx_run", absent)
    found = merged(base, large, tmp_path / "merged", jobs.Options())
    stage = found.verdict.stage("structure")
    assert stage.status == "pass"
    assert "loaded by Weighbridge alone" in stage.detail


def test_what_its_own_loader_does_not_take_whole_is_never_a_pass(
    base, large, tmp_path, monkeypatch
):
    def partial(*_):
        raise MismatchError("not loaded whole", ["a tensor is loaded into nothing"])

    monkeypatch.setattr("weighbridge.jobs.adapter_check.mlx_run", partial)
    found = merged(base, large, tmp_path / "merged", jobs.Options())
    assert found.status == "UNVERIFIED"
    assert "loaded into nothing" in found.verdict.stage("structure").detail


def spoilt(base, target, name):
    """Copy BASE to TARGET with a scale of the module NAME that is not a number."""

    def spoil(tensors):
        scales = np.array(tensors[f"{name}.scales"])
        scales[0, 0] = np.nan
        return tensors | {f"{name}.scales": mx.array(scales)}

    return edited(base, target, spoil)


def test_outputs_that_are_no_numbers_are_never_a_pass(base, large, tmp_path):
    broken = spoilt(base, tmp_path / "broken", "model.layers.1.self_attn.v_proj")
    found = merged(broken, large, tmp_path / "merged", jobs.Options())
    assert found.status == "UNVERIFIED"
    assert "not finite" in found.verdict.stage("structure").detail


@pytest.mark.parametrize("how", [{}, {"promote": True}, {"force": True}])
def test_nothing_is_merged_into_what_is_no_number(base, large, tmp_path, how):
    broken = spoilt(base, tmp_path / "broken", f"model.layers.1.{QUERY}")
    with pytest.raises(MismatchError, match="NaN or infinity in weights") as refused:
        merged(broken, large, tmp_path / "merged", **how)
    [problem] = refused.value.problems
    assert problem == f"model.layers.1.{QUERY}.weight: the base holds NaN or infinite numbers there"
    assert not (tmp_path / "merged").exists()


def without(halves, layer, parts=("lora_b",)):
    """Return HALVES with those of LAYER that are named PARTS zero."""
    return {
        name: array * 0 if f".{layer}." in name and name.endswith(parts) else array
        for name, array in halves.items()
    }


def test_an_adapter_of_nothing_has_nothing_to_lose(base, large, tmp_path):
    nothing = edited(large, tmp_path / "nothing", lambda it: without(without(it, 0), 1))
    found = merged(base, nothing, tmp_path / "merged", jobs.Options())
    assert found.status == "PASS"
    assert "nothing to lose" in found.verdict.stage("structure").detail
    assert "0 of 0 updates" in found.verdict.stage("fingerprints").detail


def test_into_the_original_an_update_of_nothing_is_kept_too(tmp_path):
    base = quantized(tmp_path, bits=8)
    adapter = trained(tmp_path / "adapter", base, STEP)
    half = edited(adapter, tmp_path / "half", lambda it: without(it, 0))
    original = open_model(tmp_path / "original")
    found = merged(base, half, tmp_path / "merged", jobs.Options(), original=original)
    assert found.status == "PASS"
    assert not [name for name in changed(found.target, base) if ".0." in name]

    def scaled(it):
        return {n: a * 1.002 if n.endswith(".scales") else a for n, a in it.items()}

    other = edited(base, tmp_path / "other", scaled)
    again = merged(other, half, tmp_path / "again", jobs.Options(), original=original)
    open_questions = [it.name for it in again.verdict.stages if it.status == "unverified"]
    assert (again.status, open_questions) == ("UNVERIFIED", ["base"])  # it may be a sibling
    assert stored(again.target) == stored(found.target)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_dora_that_was_not_trained_is_an_update_of_nothing(tmp_path, dtype):
    base = quantized(tmp_path, dtype=dtype)
    adapter = trained(tmp_path / "adapter", base, 3 * STEP, kind="dora")

    def untrained(halves):
        fresh = {n: a / 1.01 if ".0." in n and n.endswith(".m") else a for n, a in halves.items()}
        return without(fresh, 0)

    half = edited(adapter, tmp_path / "half", untrained)
    found = merged(base, half, tmp_path / "merged", jobs.Options())
    assert found.status == "PASS"
    assert not [name for name in changed(found.target, base) if ".0." in name]
    assert "2 of 2 updates" in found.verdict.stage("fingerprints").detail


def test_promote_and_original_exclude_each_other(base, small, tmp_path):
    original = open_model(base.parent / "original")
    with pytest.raises(BadInputError, match="exclude each other"):
        merged(base, small, tmp_path / "merged", promote=True, original=original)
    assert list(tmp_path.iterdir()) == []


def test_a_quantized_embedding_and_head_are_merged(base, tmp_path):
    keys = ("model.embed_tokens", "lm_head")
    adapter = trained(tmp_path / "adapter", base, TINY, keys=keys)
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    assert off(target, base, adapter) < BAR


def test_a_mixed_recipe_keeps_what_it_names(tmp_path):
    def recipe(path, module):
        return {"group_size": 32, "bits": 6} if "v_proj" in path else "lm_head" not in path

    base = quantized(tmp_path, bits=4, quant_predicate=recipe)
    adapter = trained(tmp_path / "adapter", base, TINY, keys=("self_attn.v_proj", "lm_head"))
    found = merged(base, adapter, tmp_path / "merged", promote=True)
    forms = {name: it["form"] for name, it in found.facts["merged"].items()}
    assert forms["lm_head.weight"] == "F16"
    assert off(found.target, base, adapter) < BAR
    before, after = (settings(folder)["quantization"] for folder in (base, found.target))
    named = {path for path in before if path.endswith("v_proj")}
    assert named
    assert {path for path in before if before[path] != after[path]} <= named


def test_a_layer_that_no_group_of_8_bits_divides_becomes_dense(tmp_path):
    config = LLAMA | {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2}
    base = quantized(tmp_path, config, group_size=32)
    adapter = trained(tmp_path / "adapter", base, TINY)
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    section = settings(target)["quantization"]
    assert section[f"model.layers.0.{QUERY}"] is False
    assert section[f"model.layers.0.{DOWN}"]["bits"] == 8  # 192 columns
    assert stored(target)[f"model.layers.0.{QUERY}.weight"][0].dtype == "F16"
    assert off(target, base, adapter) < BAR


def test_experts_with_a_scale_of_their_own_keep_it_or_become_affine(tmp_path):
    how = {"group_size": None, "bits": None, "mode": "nvfp4", "global_scale": True}
    base = quantized(tmp_path, MOE, qwen3_moe, mx.float32, **how)
    adapter = trained(tmp_path / "adapter", base, 3 * STEP, keys=("mlp.switch_mlp.down_proj",))
    found = merged(base, adapter, tmp_path / "merged", force=True)
    faint = trained(tmp_path / "faint", base, TINY, keys=("mlp.switch_mlp.down_proj",))
    again = merged(base, faint, tmp_path / "promoted", promote=True)
    name = "model.layers.0.mlp.switch_mlp.down_proj.weight"
    for target, trained_there, bar in ((found.target, adapter, 0.15), (again.target, faint, 0.01)):
        load_model(target)  # which runs these on GPUs alone
        real = dense_view(open_model(target)).checkpoint.read(name)
        before = live(base, trained_there)
        wanted = before.adapter.updates[name].applied_to(before.checkpoint.read(name))
        assert np.linalg.norm(real - wanted) < bar * np.linalg.norm(wanted)
    scale = name.replace("weight", "global_scale")
    assert stored(found.target)[scale][0] == stored(base)[scale][0]
    assert scale not in stored(again.target)


def test_shards_are_as_large_as_asked(base, small, tmp_path):
    options = replace(QUIET, max_shard_size=20_000)
    target = merged(base, small, tmp_path / "merged", options, promote=True).target
    whole = merged(base, small, tmp_path / "whole", promote=True).target
    assert len(list(target.glob("model-*.safetensors"))) > 2
    assert stored(target) == stored(whole)
    assert off(target, base, small) < BAR


@pytest.mark.parametrize("mode", ["mxfp4", "nvfp4", "mxfp8"])
def test_floating_point_codes_are_promoted_as_well(tmp_path, mode):
    base = quantized(tmp_path, group_size=None, bits=None, mode=mode)
    adapter = trained(tmp_path / "adapter", base, TINY)
    target = merged(base, adapter, tmp_path / "merged", promote=True).target
    assert off(target, base, adapter) < BAR


def test_a_bfloat16_base_stays_in_bfloat16_where_that_is_enough(tmp_path):
    base = quantized(tmp_path, dtype=mx.bfloat16)
    adapter = trained(tmp_path / "adapter", base, TINY)
    found = merged(base, adapter, tmp_path / "merged", promote=True)
    assert {it["form"] for it in found.facts["merged"].values()} == {
        "8-bit affine, groups of 64, BF16 scales"
    }
    model, _ = load_model(found.target)
    assert model(IDS).dtype == mx.bfloat16
    assert not [note for note in found.facts["notes"] if "float32" in note]


def test_a_whole_tensor_takes_the_place_of_the_bases(base, large):
    model = live(base, large)
    name = f"model.layers.0.{QUERY}.weight"
    fresh = np.random.default_rng(3).normal(size=(64, 64)).astype(np.float32)
    norm = np.linspace(0.5, 2, 64, dtype=np.float16)
    saved = {name: fresh, "model.norm.weight": norm}
    model = replace(model, adapter=replace(model.adapter, updates={}, saved=saved))
    one, other = affected_weights(changes_of(model), model.tensors)
    assert other.made(other.own, ignore)["model.norm.weight"].tobytes() == norm.tobytes()
    form = Form(Scheme(8, 64), "F32")
    assert measure(one, form).survival.relative_error < 0.02


def test_numbers_too_large_for_float16_are_kept_in_another_dtype(base, large):
    model = live(base, large)
    name, update = next(iter(model.adapter.updates.items()))
    wild = LowRank(np.full((1, update.shape[1]), 3e3), np.full((update.shape[0], 1), 40.0), 1.0)
    adapter = replace(model.adapter, updates={name: wild})
    model = replace(model, adapter=adapter)
    found = try_forms(affected_weights(changes_of(model), model.tensors))[name]
    assert [it.fits for it in found.tried] == [False, False, False, True]
    assert str(found.best.form) == "BF16"


def test_an_adapter_of_another_base_is_refused_with_the_whole_list(base, large):
    model = live(base, large)
    update = next(iter(model.adapter.updates.values()))
    strange = {"a.weight": update, "model.norm.weight": update}
    model = replace(model, adapter=replace(model.adapter, updates=strange))
    with pytest.raises(MismatchError, match="0 of 2") as refused:
        affected_weights(changes_of(model), model.tensors)
    assert len(refused.value.problems) == 2


def test_merged_into_the_original_it_is_quantized_as_the_base_is(base, small, tmp_path):
    original = open_model(base.parent / "original")
    found = merged(base, small, tmp_path / "merged", original=original, force=True)
    assert settings(found.target) == settings(base)
    names = {name.removesuffix("weight") for name in found.facts["merged"]}
    assert {name.rpartition(".")[0] + "." for name in changed(found.target, base)} == names
    model, _ = load_model(base.parent / "original")
    halves = mx.load(str(small / "adapters.safetensors"))
    name = f"model.layers.0.{QUERY}"
    delta = 2.0 * (halves[f"{name}.lora_a"] @ halves[f"{name}.lora_b"]).T
    wide = model.model.layers[0].self_attn.q_proj.weight.astype(mx.float32) + delta
    codes, *_ = mx.quantize(wide, group_size=64, bits=4)
    assert np.mean(open_checkpoint(found.target).read(f"{name}.weight") == np.array(codes)) > 0.99
    for it in found.facts["merged"].values():
        assert it["error"] == pytest.approx(it["live"], rel=0.1)


def test_into_the_original_the_same_bar_holds_and_the_quantization_error_is_reported(
    base, small, tmp_path
):
    """Four bits round the update away there as well: that is refused, and never called a pass."""
    original = open_model(base.parent / "original")
    with pytest.raises(MismatchError, match="rounding the merged weights again moves them by"):
        merged(base, small, tmp_path / "merged", original=original)
    assert list(tmp_path.iterdir()) == []
    options = jobs.Options()
    found = merged(base, small, tmp_path / "merged", options, original=original, force=True)
    assert found.status == "UNVERIFIED"
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"refuse"}
    figures = found.facts["figures"]
    assert figures["merge"] == pytest.approx(figures["change of base"], rel=0.1)


def test_into_an_original_of_8_bits_it_survives(tmp_path):
    base = quantized(tmp_path, bits=8)
    adapter = trained(tmp_path / "adapter", base, STEP)
    original = open_model(tmp_path / "original")
    found = merged(base, adapter, tmp_path / "merged", original=original)
    assert {it["verdict"] for it in found.facts["merged"].values()} == {"pass"}


def test_a_base_of_another_recipe_is_made_from_the_original_as_a_whole(base, small, tmp_path):
    """As DWQ leaves it: scales trained, codes kept."""
    other = tmp_path / "dwq"
    other.mkdir()
    tensors = {
        name: array * 1.03 if name.endswith(".scales") else array
        for name, array in mx.load(str(base / "model.safetensors")).items()
    }
    mx.save_safetensors(str(other / "model.safetensors"), tensors, {"format": "mlx"})
    shutil.copy(base / "config.json", other)
    original = open_model(base.parent / "original")
    found = merged(other, small, tmp_path / "merged", original=original, force=True)
    whole = merged(base, small, tmp_path / "whole", original=original, force=True)
    assert stored(found.target) == stored(whole.target)
    assert any("weights are made again" in note for note in found.facts["notes"])


@pytest.mark.heavy
def test_the_original_may_lie_in_torchs_layout(tmp_path):
    made = tiny.make("qwen3_moe", tmp_path / "torch")
    jobs.convert(str(made.folder), tmp_path / "mlx", "mlx", options=QUIET)
    model, config = load_model(tmp_path / "mlx")
    base = save(tmp_path / "base", *quantize_model(model, config, 32, 4))
    adapter = trained(tmp_path / "adapter", base, TINY, ("mlp.switch_mlp.up_proj",))
    found, other = (
        merged(base, adapter, tmp_path / name, original=open_model(tmp_path / name[2:]), force=True)
        for name in ("a-torch", "a-mlx")
    )
    assert stored(found.target) == stored(other.target)
    assert found.facts["merged"]


def test_an_original_of_another_seed_is_refused(base, small, tmp_path):
    mx.random.seed(9)
    unrelated = llama.Model(llama.ModelArgs.from_dict(LLAMA))
    unrelated.set_dtype(mx.float16)
    other = open_model(save(tmp_path / "other", unrelated, LLAMA))
    with pytest.raises(MismatchError, match="was not made from"):
        merged(base, small, tmp_path / "merged", original=other)
    with pytest.raises(BadInputError, match="quantized itself"):
        merged(base, small, tmp_path / "merged", original=dense_view(open_model(base)))
    assert not (tmp_path / "merged").exists()


class Killed(BaseException):
    """Stands for SIGKILL."""


def killed(monkeypatch, *arguments, **how):
    """Merge until half of a tensor of the second layer is on disk; nothing is tidied up."""
    write = Writer.write

    def die(self, name, data):
        if name != f"model.layers.1.{DOWN}.weight":
            return write(self, name, data)
        bytes_ = memoryview(data.tobytes())

        def pieces():
            yield bytes_[: len(bytes_) // 2]
            raise Killed

        return write(self, name, pieces())

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "__exit__", lambda self, *_: os.close(self._lock))
        patched.setattr(Writer, "write", die)
        with pytest.raises(Killed):
            merged(*arguments, **how)


def test_a_killed_merge_is_resumed_to_the_same_bytes(base, small, tmp_path, monkeypatch):
    whole = merged(base, small, tmp_path / "whole", promote=True).target
    killed(monkeypatch, base, small, tmp_path / "merged", promote=True)
    assert (tmp_path / ".merged.staging").exists()
    written, write = set(), Writer.write
    monkeypatch.setattr(
        Writer, "write", lambda self, name, data: written.add(name) or write(self, name, data)
    )
    assert stored(merged(base, small, tmp_path / "merged", promote=True).target) == stored(whole)
    assert f"model.layers.1.{DOWN}.weight" in written
    assert f"model.layers.0.{QUERY}.weight" not in written


def test_what_a_killed_merge_of_another_adapter_left_is_not_taken_up(
    base, small, large, tmp_path, monkeypatch
):
    whole = merged(base, large, tmp_path / "whole", promote=True, force=True).target
    adapter = shutil.copytree(large, tmp_path / "adapter")
    file = adapter / "adapters.safetensors"
    halved = {name: array * 0.9 for name, array in mx.load(str(file)).items()}
    mx.save_safetensors(str(file), halved)
    killed(monkeypatch, base, adapter, tmp_path / "merged", promote=True, force=True)
    shutil.copy(large / file.name, file)
    target = merged(base, adapter, tmp_path / "merged", promote=True, force=True).target
    assert stored(target) == stored(whole)


def test_codes_chosen_by_the_rounded_scales_are_nearer():
    values = np.random.default_rng(0).normal(size=(64, 256))
    plain, fitted = (Form(Scheme(8, 64), "BF16", refitted=it) for it in (False, True))
    errors = [np.linalg.norm(form.decode(form.encode(values)) - values) for form in (plain, fitted)]
    assert errors[1] < 0.8 * errors[0]


def test_a_constant_row_survives_being_fitted_again():
    parts = Form(Scheme(8, 64), "F16").encode(np.zeros((2, 64)))
    again = refit(parts, np.zeros((2, 64), np.float32), Scheme(8, 64))
    assert not Form(Scheme(8, 64), "F16").decode(again).any()


def test_wider_forms_come_by_size_and_none_is_tried_that_holds_less(base):
    tensors = dense_view(open_model(base)).tensors
    assert isinstance(tensors, Dequantized)
    assert common_dtype(tensors) == "F16"
    of = [str(form) for form in wider(Form(Scheme(4, 64), "BF16"), (3, 64), "BF16")]
    assert of == [
        "8-bit affine, groups of 64, BF16 scales",
        "8-bit affine, groups of 64, F16 scales",
        "BF16",
        "F16",
        "F32",
    ]
    assert [str(it) for it in wider(Form(Scheme(8, 32), "F16"), (3, 64), "F16")] == [
        "F16",
        "BF16",
        "F32",
    ]
    assert [str(it) for it in wider(Form(None, "F16"), (3, 64), "F16")] == ["BF16", "F32"]
    assert Recipe.parse(settings(base)) is not None


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 700_000), (2, 3, 5), (2, 0)])
def test_blocks_cover_every_number_once(shape):
    count = np.zeros(shape, int)
    for index in blocks(shape):
        count[index] += 1
    assert (count == 1).all()


def test_some_rows_tell_what_all_of_them_do(base, large, monkeypatch):
    model = live(base, large)
    weight = affected_weights(changes_of(model), model.tensors)[0]
    monkeypatch.setattr("weighbridge.converters.adapters.merging.affected.BLOCK", 64)
    count = len(list(blocks(weight.shape)))
    assert count >= 2 * SAMPLE
    some = measure(weight, weight.own)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.statistics.SAMPLE", count)
    whole = measure(weight, weight.own)
    assert some.survival.size <= whole.survival.size / 2
    assert some.survival.gain == pytest.approx(whole.survival.gain, abs=0.05)


def test_a_change_that_no_sample_meets_is_found(base, large, monkeypatch):
    model = live(base, large)
    name, update = next(iter(model.adapter.updates.items()))
    b = np.zeros_like(update.b)
    b[1] = update.b[1]
    adapter = replace(model.adapter, updates={name: replace(update, b=b)})
    [weight] = affected_weights(changes_of(replace(model, adapter=adapter)), model.tensors)
    monkeypatch.setattr("weighbridge.converters.adapters.merging.affected.BLOCK", 64)
    found = measure(weight, weight.own)
    assert found.changed
    assert found.survival.size == np.prod(weight.shape)
