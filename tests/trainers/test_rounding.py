"""Training that computes with what a merge into few bits will store."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

from weighbridge.errors import MismatchError
from weighbridge.trainers.export import base_record
from weighbridge.trainers.runs.loop import make_step, preflight
from weighbridge.trainers.steps.torch_adapters import attach_adapters, modules_of
from weighbridge.trainers.tasks import build_task

TARGETS = ["q_proj", "down_proj"]
BACKENDS = ["mlx", "torch"]


def aware(wanted=True, **more):
    return {"rank": 2, "targets": TARGETS, "quantize_aware": wanted, **more}


def advanced(config, count=4):
    """Return both backends after some updates, and the losses of each."""
    task = build_task(config)
    sides = [make_step(backend, task, config) for backend in BACKENDS]
    losses = []
    for number in range(count):
        batch = task.splits["train"].batch(task.order(config)[number])
        losses.append([side.advance([batch], 1e-2)().loss for side in sides])
    return task, sides, losses


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("base", ["codes", "original"])
def test_both_backends_train_alike_by_rounded_weights(decoder, decoder_config, base, dora):
    wanted = True if base == "codes" else str(decoder.parent / "base")
    config = decoder_config(adapter=aware(wanted, dora=dora))
    task, sides, losses = advanced(config)
    assert task.grids.blocks.keys() == task.updates.keys()
    for ours, theirs in losses:
        assert ours == pytest.approx(theirs, rel=1e-5)
    ours, theirs = (side.trainable() for side in sides)
    assert max(np.abs(ours[name] - theirs[name]).max() for name in ours) < 2e-5


def test_a_copy_of_an_adapted_module_has_adapters_of_its_own(decoder_config):
    task = build_task(decoder_config(adapter=aware()))
    model = copy.deepcopy(task.module)
    attach_adapters(model, task.updates, task.grids.blocks)
    other, ids = copy.deepcopy(model).eval(), torch.arange(1, 9)[None]
    before = model.eval()(input_ids=ids).logits
    for name, parameter in model.named_parameters():
        parameter.data += "lora_b" in name
    assert torch.equal(other(input_ids=ids).logits, before)
    assert not torch.allclose(model(input_ids=ids).logits, before)


def test_preflight_finds_a_gradient_in_every_factor(decoder_config):
    checked = preflight(decoder_config(adapter=aware()))
    assert checked.problems == ()
    assert sum(row.trainable for row in checked.rows) == 4


def test_weights_are_rounded_in_float32_whatever_the_model_computes_in(decoder, decoder_config):
    narrow = decoder_config(dtype="bfloat16", adapter=aware(str(decoder.parent / "base")))
    task = build_task(narrow)
    batch = task.splits["train"].batch(range(4))
    sides = [make_step(backend, task, narrow) for backend in BACKENDS]
    losses = [side.gradients(batch)[0] for side in sides]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3)


def preferences(rows):
    """Return preferences of answers that are random."""
    generator = np.random.default_rng(0)
    found = {}
    for answer in ("chosen", "rejected"):
        ids = generator.integers(1, 60, (rows, 7))
        labels = np.where(np.arange(7) < 2, -100, ids)
        found |= {f"{answer}_ids": ids, f"{answer}_mask": np.ones_like(ids)}
        found[f"{answer}_labels"] = labels
    return found


class Preferences(list):
    """Data of them."""

    def __init__(self, split):
        super().__init__(range(8))

    def batch(self, rows):
        return {name: it[rows] for name, it in preferences(8).items()}


def test_preferences_are_learned_against_what_the_run_begins_with(
    decoder, decoder_config, monkeypatch
):
    monkeypatch.setattr(sys.modules["own_tokens"], "Ids", Preferences)
    original = str(decoder.parent / "base")
    task = build_task(decoder_config(adapter=aware(original), objective={"name": "dpo"}))
    loss, _ = modules_of(task)
    inputs = task.splits["train"].batch(range(4)).inputs
    found = loss(**{name: torch.from_numpy(it) for name, it in inputs.items()})
    assert found.item() == pytest.approx(np.log(2), abs=1e-6)


def test_what_the_scales_are_is_recorded_of_a_module_without_a_directory(decoder_config):
    task = build_task(decoder_config(adapter=aware()))
    names = sorted(task.grids.blocks)
    recorded = task.grids.recorded(names)
    assert recorded.keys() == set(names)
    assert task.grids._replace(tensors=None).recorded(names) == recorded
    model = dataclasses.replace(task.model, path=None, tensors=None)
    alone = dataclasses.replace(task, model=model, grids=task.grids._replace(tensors=None))
    assert json.loads(base_record(alone, names))["base"]["grids"] == recorded


def test_a_model_without_codes_is_refused(decoder, decoder_config):
    config = decoder_config(adapter=aware(), model=str(decoder.parent / "base"))
    with pytest.raises(MismatchError, match="nothing that adapters change is quantized"):
        build_task(config)


def test_another_original_is_refused(decoder, decoder_config, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(decoder.parent / "base")
    torch.manual_seed(9)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "other")
    settings = decoder_config(adapter=aware(str(tmp_path / "other")))
    with pytest.raises(MismatchError, match=r"(?s)not what the quantized.*q_proj.weight: 1\d\d"):
        build_task(settings)


def test_a_relative_directory_is_found_from_anywhere(decoder, decoder_config, monkeypatch):
    monkeypatch.chdir(decoder.parent)
    config = decoder_config(adapter=aware("base"))
    assert config.adapter.quantize_aware == decoder.parent / "base"
    assert decoder.parent / "base" in config.sources()
