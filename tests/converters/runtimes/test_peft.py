"""Mirrors converters/runtimes/peft.py; the oracles are PEFT's live model and its own saving."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from weighbridge.converters.adapters.adapter import Adapter
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.live import live_difference
from weighbridge.converters.runtimes.peft import peft_runner
from weighbridge.errors import MismatchError
from weighbridge.parity.probes.probes import Probe

IDS = np.random.default_rng(0).integers(3, 120, (2, 12))
PROBES = [Probe("ids", {"input_ids": IDS})]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES = {
    "llama": {"target_modules": ["q_proj", "down_proj"]},
    "llama dora": {"target_modules": ["up_proj"], "use_dora": True},
    "llama saved": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    "qwen2 embeddings": {"target_modules": ["embed_tokens", "v_proj"]},
    "gpt2": {"target_modules": ["c_attn"], "fan_in_fan_out": True},
    "qwen3_moe": {"target_modules": ["o_proj"], "target_parameters": EXPERTS},
}


@pytest.fixture
def saved(tiny, tmp_path):
    """Return a model, PEFT's own logits, and the folder that PEFT saves."""

    def make(case):
        kind = case.split()[0]
        module = AutoModelForCausalLM.from_pretrained(tiny(kind), attn_implementation="eager")
        config = LoraConfig(r=3, lora_alpha=5, **CASES[case])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tied weights, and of embeddings that it saves
            live = get_peft_model(module.eval(), config).eval()
            generator = torch.Generator().manual_seed(3)
            with torch.no_grad():
                for name, parameter in live.named_parameters():
                    if "lora_" in name or "modules_to_save" in name:
                        noise = torch.randn(parameter.shape, generator=generator)
                        parameter.add_(0.2 * noise)
                logits = live(torch.from_numpy(IDS), use_cache=False).logits.numpy()
            live.save_pretrained(tmp_path / "adapter")
        return open_model(tiny(kind)), logits, tmp_path / "adapter"

    return make


def apart(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("case", CASES)
def test_what_peft_saved_runs_as_it_did(saved, case):
    model, wanted, folder = saved(case)
    runner = peft_runner(model, folder)
    assert apart(runner.run(PROBES[0].inputs)["logits"], wanted) < 1e-6
    assert live_difference(load(model, "torch"), runner, PROBES) > 1e-3


def test_a_live_adapter_on_a_checkpoint_with_experts_apart_agrees(tiny, with_peft):
    model = open_model(tiny("qwen3_moe"))
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in model.checkpoint.headers
    module = AutoModelForCausalLM.from_pretrained(tiny("qwen3_moe"), attn_implementation="eager")
    theirs, updates = with_peft(module.eval(), **CASES["qwen3_moe"])
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(IDS), use_cache=False).logits.numpy()

    from weighbridge.converters.maps.sources.modules import module_map

    headers = model.checkpoint.headers
    there = module_map(model.config, headers)
    plan = there.bind(headers, config=model.config)
    own = there.inverse().rename_updates(updates, plan.layout, config=model.config)
    assert "model.layers.0.mlp.experts.0.gate_proj.weight" in own
    runner = load(replace(model, adapter=Adapter(Path("a"), "peft", own, {})), "torch")
    assert apart(runner.run(PROBES[0].inputs)["logits"], wanted) < 1e-6


def rewritten(folder, change):
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return folder


LOST = "base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"


def test_a_missing_tensor_is_found_though_peft_only_warns(saved):
    model, _, folder = saved("llama")
    rewritten(folder, lambda tensors: tensors.pop(LOST))
    with pytest.raises(MismatchError, match=rf"1 problem\n.*{LOST} is in no file: left at random"):
        peft_runner(model, folder)


def test_names_that_peft_passes_over_are_found(saved):
    model, _, folder = saved("llama")
    names = [LOST.replace("lora_B.weight", "lora_b"), "model.layers.1.mlp.up_proj.lora_a"]
    rewritten(folder, lambda tensors: tensors.update({name: torch.ones(2) for name in names}))
    with pytest.raises(MismatchError, match="2 problems") as caught:
        peft_runner(model, folder)
    assert set(caught.value.problems) == {f"{name} is loaded into nothing" for name in names}


def test_what_peft_refuses_is_passed_on(saved):
    model, _, folder = saved("llama")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"target_modules": ["odd"]}))
    with pytest.raises(MismatchError, match=r"PEFT cannot load(.|\n)*odd"):
        peft_runner(model, folder)


def test_a_shape_of_another_base_is_refused(saved):
    model, _, folder = saved("llama")
    rewritten(folder, lambda tensors: tensors.update({LOST: torch.ones(5, 3)}))
    with pytest.raises(MismatchError, match=r"q_proj\.lora_B"):
        peft_runner(model, folder)
