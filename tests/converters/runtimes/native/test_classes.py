"""An MLX library's own class runs a directory as the library itself would; an independent check of the layout."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from weighbridge.converters.common.policy import Policy
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.native.caches import answered
from weighbridge.converters.runtimes.native.classes import (
    layout_reader,
    misfits,
    parameter_names,
    sixteen_bit_experts,
)
from weighbridge.errors import MismatchError

KINDS = ["mixtral", "qwen3_moe", "deepseek_v3", "mamba", "lfm2", "llama", "gemma2", "qwen2",
         "granitemoe", "phi3", "qwen3_next", "dbrx", "qwen3_vl"]  # fmt: skip
IDS = np.random.default_rng(0).integers(3, 130, (2, 12))
INPUTS = {"input_ids": IDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_library_s_class_agrees_with_torch(tiny, tiny_mlx, kind):
    runner = load(open_model(tiny_mlx(kind)), "mlx")
    ours = runner.run(INPUTS)["logits"]
    theirs = load(open_model(tiny(kind)), "torch").run(INPUTS)["logits"]
    assert (runner.kind, runner.describe()["captured"]) == ("library", "False")
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)


def test_norms_kept_as_one_and_more_in_16_bits_run_in_torch_as_they_are(tiny_mlx, tmp_path):
    folder = tmp_path / "bfloat16"
    shutil.copytree(tiny_mlx("qwen3_next"), folder)
    weights = {k: v.astype(mx.bfloat16) for k, v in mx.load(f"{folder}/model.safetensors").items()}
    for name in [name for name in weights if name.endswith("layernorm.weight")]:
        weights[name] = weights[name] * 0.3  # 1 + w below 0.5: w has a digit less in bfloat16
    mx.save_safetensors(f"{folder}/model.safetensors", weights, metadata={"format": "mlx"})
    ours, theirs = (load(open_model(folder), to).run(INPUTS)["logits"] for to in ("mlx", "torch"))
    assert np.linalg.norm(ours - theirs) < 1e-5 * np.linalg.norm(theirs)


@pytest.mark.parametrize("kind", ["mixtral", "gemma3_text"])
def test_it_is_what_mlx_lm_loads(tiny_mlx, kind):
    from mlx_lm.utils import load_model

    theirs = load_model(tiny_mlx(kind))[0](mx.array(IDS))
    ours = load(open_model(tiny_mlx(kind)), "mlx").run(INPUTS)["logits"]
    assert np.array_equal(ours, np.array(theirs))


@pytest.mark.parametrize("kind", KINDS)
def test_the_class_vouches_by_headers_alone(tiny_mlx, kind, monkeypatch):
    model = open_model(tiny_mlx(kind))
    monkeypatch.setattr(type(model.checkpoint), "read", None)
    assert "mlx-lm" in layout_reader(model)


def test_nobody_vouches_for_a_torch_directory_or_an_unknown_type(tiny):
    assert layout_reader(open_model(tiny("llama"))) is None


def changed(tiny_mlx, folder, change):
    shutil.copytree(tiny_mlx("mixtral"), folder)
    weights = mx.load(str(folder / "model.safetensors"))
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return open_model(folder)


def test_what_does_not_fit_is_listed_together(tiny_mlx, tmp_path):
    stack = "model.layers.2.block_sparse_moe.switch_mlp.up_proj.weight"

    def change(weights):
        del weights["model.norm.weight"]
        weights["odd.weight"] = mx.zeros((2, 3))
        weights[stack] = weights[stack][:-1]

    model = changed(tiny_mlx, tmp_path / "m", change)
    assert misfits(model) == [
        "model.norm.weight is missing",
        "odd.weight is unexpected",
        f"{stack}: expected [6, 80, 48], found [5, 80, 48]",
    ]
    assert layout_reader(model) is None
    with pytest.raises(MismatchError, match="3 problems"):
        load(model, "mlx")


def test_a_configuration_that_the_class_refuses_is_a_misfit(tiny_mlx, tmp_path):
    folder = shutil.copytree(tiny_mlx("qwen3_moe"), tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    del config["num_experts"]
    (folder / "config.json").write_text(json.dumps(config))
    assert "num_experts" in misfits(open_model(folder))[0]


@pytest.mark.parametrize("kind", ["mixtral", "llama"])
def test_it_runs_in_sixteen_bits_on_a_cpu(tiny_mlx, kind):
    model = open_model(tiny_mlx(kind))
    narrow = load(model, "mlx", Policy(compute="bfloat16")).run(INPUTS)["logits"]
    wide = load(model, "mlx").run(INPUTS)["logits"]
    assert narrow.dtype.name == "bfloat16"
    gap = np.linalg.norm(narrow.astype(np.float32) - wide)
    assert 1e-4 < gap / np.linalg.norm(wide) < 0.1


def test_gathered_products_in_sixteen_bits_are_rounded_once():
    random = np.random.default_rng(0)
    a, b = (mx.array(random.normal(size=s).astype(np.float32)) for s in ((3, 1, 1, 7), (5, 7, 9)))
    chosen = mx.array([[0], [4], [2]])
    with sixteen_bit_experts():
        narrow = mx.gather_mm(a.astype(mx.bfloat16), b.astype(mx.bfloat16), rhs_indices=chosen)
        same = mx.gather_mm(a, b, rhs_indices=chosen)
    wide = [a.astype(mx.bfloat16).astype(mx.float32), b.astype(mx.bfloat16).astype(mx.float32)]
    assert mx.array_equal(same, mx.gather_mm(a, b, rhs_indices=chosen))
    assert mx.array_equal(narrow, mx.gather_mm(*wide, rhs_indices=chosen).astype(mx.bfloat16))
    assert narrow.dtype == mx.bfloat16


def test_parameters_are_told_from_tensors_that_loading_changes(tiny, tiny_mlx):
    model = open_model(tiny_mlx("qwen3_moe"))
    assert parameter_names(model) == {name: name for name in model.checkpoint.headers}
    dense = replace(model, tensors=open_model(tiny("qwen3_moe")).checkpoint)  # as torch has it
    found = parameter_names(dense)
    assert "model.layers.0.self_attn.q_proj.weight" in found
    assert not any("experts" in name for name in found)


def test_an_answer_is_read_token_by_token_and_its_text_once():
    calls = []

    def language(cache, decoder_input_ids, **given):
        calls.append((decoder_input_ids.shape[1], *given))
        return SimpleNamespace(encoder_outputs=mx.zeros(1), logits=mx.zeros((1, 1, 4)))

    given = {"inputs_embeds": mx.zeros(1), "decoder_inputs_embeds": mx.zeros(1)}
    found = answered(language, mx.zeros((1, 3), mx.int32), given, [])
    assert found.logits.shape == (1, 3, 4)
    assert calls == [(1, "inputs_embeds"), (1, "encoder_outputs"), (1, "encoder_outputs")]
