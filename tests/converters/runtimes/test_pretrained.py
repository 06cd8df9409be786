"""Classes of transformers are filled as transformers fills them, and nothing stays at random."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import weighbridge
from weighbridge.converters.libraries.transformers import torch_class
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.pretrained import load_pretrained, places
from weighbridge.converters.runtimes.torch import build, build_module
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.parity.check.distances import distance
from weighbridge.parity.probes.probes import Probe
from weighbridge.parity.reference.reference import float64_module, float64_outputs
from weighbridge.parity.reference.unused import unneeded, unreached

KINDS = ["mixtral", "qwen3_moe", "deepseek_v3", "mamba", "lfm2", "llama", "gemma2", "gemma3", "qwen2",
         "granitemoe", "phi3", "gpt2", "jamba", "falcon_h1", "qwen3_next", "gpt_oss", "dbrx",
         "qwen4_exp"]  # fmt: skip
IDS = np.random.default_rng(0).integers(3, 130, (2, 12))


def theirs(folder):
    name = torch_class(json.loads((folder / "config.json").read_text()))
    module = getattr(transformers, name).from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    )
    with torch.no_grad():
        return module.eval()(input_ids=torch.from_numpy(IDS), use_cache=False).logits.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_runs_as_transformers_runs_it(tiny, kind):
    ours, wanted = (
        load(open_model(tiny(kind)), "torch").run({"input_ids": IDS})["logits"],
        theirs(tiny(kind)),
    )
    # where an array begins in memory changes how a BLAS sums it
    assert np.abs(ours - wanted).max() <= 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_float64_reference_is_one_for_every_architecture(tiny, kind):
    model = open_model(tiny(kind))
    (wide,) = float64_outputs(
        float64_module(model), model.signature, [Probe("ids", {"input_ids": IDS})]
    )
    narrow = load(model, "torch").run({"input_ids": IDS})
    assert wide["logits"].dtype == np.float64
    assert 0 < distance(narrow["logits"], wide["logits"]).whole < 1e-5


def changed(tiny, tmp_path, kind, change):
    folder = tmp_path / "changed"
    folder.mkdir()
    tensors = load_file(tiny(kind) / "model.safetensors")
    save_file(change(tensors) or tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text((tiny(kind) / "config.json").read_text())
    return open_model(folder)


def without(tensors, name):
    return {key: tensor for key, tensor in tensors.items() if key != name}


def test_missing_unexpected_and_misshapen_weights_are_listed_together(tiny, tmp_path):
    def change(tensors):
        del tensors["model.norm.weight"]
        tensors["model.layers.0.odd.weight"] = torch.ones(3)
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].contiguous()

    with pytest.raises(MismatchError) as caught:
        build_module(changed(tiny, tmp_path, "mixtral", change))
    said = str(caught.value)
    assert "model.norm.weight is missing" in said
    assert "model.layers.0.odd.weight is unexpected" in said
    assert "lm_head.weight: expected [136, 48], found [135, 48]" in said


def test_one_lost_expert_is_a_mismatch(tiny, tmp_path):
    def change(tensors):
        del tensors["model.layers.1.block_sparse_moe.experts.5.w2.weight"]

    with pytest.raises(MismatchError, match=r"layers.1.*experts.*expected"):
        build_module(changed(tiny, tmp_path, "mixtral", change))


def test_a_tied_head_may_be_absent_and_an_untied_one_may_not(tiny, tmp_path):
    tied = open_model(tiny("gemma2"))
    assert "lm_head.weight" not in tied.checkpoint.headers
    module = build_module(tied)
    assert module.lm_head.weight is module.model.embed_tokens.weight
    with pytest.raises(MismatchError, match=r"lm_head.weight is missing"):
        build_module(changed(tiny, tmp_path, "llama", lambda t: without(t, "lm_head.weight")))


def test_every_tensor_of_a_checkpoint_is_in_a_weight_of_the_module(tiny):
    for kind in ("mixtral", "gemma3", "qwen3_next"):
        module, found = build(open_model(tiny(kind)))
        assert set(found.values()) <= set(module.state_dict())
    assert places(module, ["no.such.weight"]) == {"no.such.weight": None}


def test_an_absent_tower_cannot_pass_for_a_present_one(tiny):
    tensors = load_file(tiny("qwen3_vl") / "model.safetensors")
    text = {name: it for name, it in tensors.items() if "visual" not in name}
    module = build_module(open_model(tiny("qwen3_vl")))
    before = module(input_ids=torch.from_numpy(IDS)).logits
    load_pretrained(module, text, "here", towers=True)
    assert torch.equal(module(input_ids=torch.from_numpy(IDS)).logits, before)
    assert all(it.isnan().all() for it in module.model.visual.parameters())
    one_line = r"model\.visual\.\*: all 45 weights are missing \(model\.visual\.blocks\.0\.attn"
    with pytest.raises(MismatchError, match=one_line):
        load_pretrained(module, text, "here")
    del text["model.language_model.norm.weight"]
    with pytest.raises(MismatchError, match=r"language_model.norm.weight is missing"):
        load_pretrained(module, text, "here", towers=True)


def test_what_no_output_needs_is_named_as_the_checkpoint_names_it(tiny):
    model = open_model(tiny("gemma3"))
    needless = unneeded(model, Probe("ids", {"input_ids": IDS}))
    assert any(name.startswith("vision_tower.") for name in needless)
    assert needless <= set(model.checkpoint.headers)
    assert not any(name.startswith("language_model.model.layers") for name in needless)


def test_an_expert_that_was_not_chosen_is_not_unneeded():
    class Chosen(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layer = torch.nn.ModuleDict(
                {"experts": torch.nn.ModuleList([torch.nn.Linear(2, 2)] * 0)}
            )
            layer["experts"].extend(torch.nn.Linear(2, 2) for _ in range(3))
            self.layers = torch.nn.ModuleList([layer])
            self.pooler = torch.nn.Linear(2, 2)

    names = [name for name, _ in Chosen().named_parameters()]
    chosen = [f"layers.0.experts.1.{leaf}" for leaf in ("weight", "bias")]
    assert unreached(names, chosen) == ["pooler.weight", "pooler.bias"]


def test_a_sixteen_bit_checkpoint_becomes_a_float64_reference_without_loss(tiny, tmp_path):
    narrow = changed(
        tiny, tmp_path, "llama", lambda t: {name: it.to(torch.bfloat16) for name, it in t.items()}
    )
    module = float64_module(narrow)
    name = "model.layers.0.mlp.up_proj.weight"
    stored = load_file(narrow.path / "model.safetensors")[name]
    assert module.get_parameter(name).dtype is torch.float64
    assert torch.equal(module.get_parameter(name), stored.double())


def test_a_package_that_a_class_needs_is_named(tiny_bert_dir, monkeypatch):
    def needs(*_):
        raise ImportError("BertModel requires the timm library\nbut it was not found")

    monkeypatch.setattr(transformers.BertModel, "__init__", needs)
    with pytest.raises(UnsupportedError, match=r"BertModel requires the timm library$"):
        build_module(open_model(tiny_bert_dir))


def test_whole_numbers_in_place_of_a_weight_are_named_with_what_to_do(tiny_bert_dir, tmp_path):
    name, folder = "encoder.layer.0.output.dense.weight", tmp_path / "rounded"
    shutil.copytree(tiny_bert_dir, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = (tensors[name] * 50).round().to(torch.int8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        MismatchError, match=rf"{name} is int8, codes .*; save it as floating-point"
    ):
        weighbridge.check(folder, folder)
