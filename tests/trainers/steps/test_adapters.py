"""Adapters under training: DoRA, other parameters beside them, and bases of codes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.adapters import read_adapter
from weighbridge.errors import MismatchError
from weighbridge.trainers.export import write_result
from weighbridge.trainers.runs.loop import _check, make_step, preflight, train
from weighbridge.trainers.steps.torch import TorchStep
from weighbridge.trainers.tasks import build_task

ADAPTER = {"rank": 2, "targets": ["query", "value"]}
BACKENDS = ["mlx", "torch"]


def distance(one, other):
    return max(np.abs(one[name] - other[name]).max() for name in one)


def test_dora_in_torch_is_that_of_peft(tiny_bert_dir, pairs_config, pairs_task):
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel

    config = pairs_config(adapter={**ADAPTER, "dora": True})
    step = TorchStep(pairs_task(config), config)
    generator = np.random.default_rng(0)
    values = {
        name: value + 0.3 * generator.normal(size=value.shape).astype(np.float32)
        for name, value in step.trainable().items()
    }
    step.assign(values)
    base = BertModel.from_pretrained(tiny_bert_dir, add_pooling_layer=False)
    targets = ["query", "value"]
    theirs = get_peft_model(
        base, LoraConfig(r=2, lora_alpha=4, target_modules=targets, use_dora=True)
    )
    leaves = {"lora_A": "lora_a", "lora_B": "lora_b", "lora_magnitude_vector": "lora_m"}
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.requires_grad:
                kind = next(it for it in leaves if f".{it}." in f"{name}.")
                path = name.removeprefix("base_model.").partition(f".{kind}")[0]
                own = torch.from_numpy(values[f"{path}.{leaves[kind]}"])
                parameter.copy_(own if own.ndim == 1 else own.T)
    ids = torch.arange(12).reshape(2, 6)
    ours = step._loss.model(input_ids=ids).last_hidden_state
    assert torch.allclose(ours, theirs.eval()(input_ids=ids).last_hidden_state, atol=1e-5)


def test_updates_of_weights_that_lie_in_out_are_those_of_peft(decoder_config, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 64, "n_positions": 16}
    base = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.4)).eval()
    targets = ["c_attn", "mlp.c_proj"]
    config = decoder_config(adapter={"rank": 2, "targets": targets})
    task = build_task(config, base)
    assert _check(task, config, make_step("mlx", task, config)).ok
    step = TorchStep(task, config)
    generator = np.random.default_rng(0)
    values = {
        name: generator.normal(size=value.shape).astype(np.float32)
        for name, value in step.trainable().items()
    }
    write_result(tmp_path, task, config.adapter, values)
    step.assign(values)
    ids = torch.arange(12).reshape(2, 6)
    ours = step._loss.model(input_ids=ids).logits
    settings = LoraConfig(r=2, lora_alpha=4, target_modules=targets, fan_in_fan_out=True)
    theirs = get_peft_model(base, settings)
    found = read_adapter(tmp_path).updates
    with torch.no_grad():
        for name, update in found.items():
            layer = theirs.base_model.model.get_submodule(name.removesuffix(".weight"))
            layer.lora_A["default"].weight.copy_(torch.from_numpy(update.a))
            layer.lora_B["default"].weight.copy_(torch.from_numpy(update.b))
    wanted = theirs.eval()(input_ids=ids).logits
    assert torch.allclose(ours, wanted, rtol=0, atol=1e-5 * wanted.abs().max().item())


@pytest.mark.heavy
def test_dora_and_other_parameters_train_alike_and_are_written(pairs_config, pairs_task, tmp_path):
    config = pairs_config(adapter={**ADAPTER, "dora": True}, train=["layer.1.output.LayerNorm"])
    task = pairs_task(config)
    sides = [make_step(backend, task, config) for backend in BACKENDS]
    before = sides[0].trainable()
    kinds = {name.rsplit(".", 1)[-1] for name in before}
    assert kinds == {"lora_a", "lora_b", "lora_m", "weight", "bias"}
    for number in range(4):
        batch = task.splits["train"].batch(task.order(config)[number])
        for side in sides:
            side.advance([batch], 1e-3)()
    mlx, tensors = (side.trainable() for side in sides)
    assert mlx.keys() == tensors.keys()
    assert distance(mlx, tensors) < 2e-5
    assert distance(mlx, before) > 1e-3
    write_result(tmp_path, task, config.adapter, mlx)
    found = read_adapter(tmp_path)
    name = "encoder.layer.1.attention.self.query"
    assert np.array_equal(found.updates[f"{name}.weight"].magnitude, mlx[f"model.{name}.lora_m"])
    norm = "encoder.layer.1.output.LayerNorm.weight"
    [saved] = [array for key, array in found.saved.items() if key.endswith(norm)]
    assert np.array_equal(saved, mlx[f"model.{norm}"])


def test_a_part_of_a_module_trained_beside_adapters_is_merged_as_it_was_trained(
    tiny_bert_dir, pairs_config, pairs_task, tmp_path
):
    from click.testing import CliRunner
    from safetensors.numpy import load_file

    from weighbridge.cli import main

    config = pairs_config(adapter=ADAPTER, train=["layer.1.output.LayerNorm.weight"])
    task = pairs_task(config)
    generator = np.random.default_rng(1)
    values = {
        name: value + generator.normal(scale=0.1, size=value.shape).astype(np.float32)
        for name, value in make_step("torch", task, config).trainable().items()
    }
    write_result(tmp_path / "run", task, config.adapter, values)
    arguments = ["merge", tiny_bert_dir, tmp_path / "run", tmp_path / "merged", "--check", "none"]
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    base = load_file(tiny_bert_dir / "model.safetensors")
    name = "encoder.layer.1.output.LayerNorm.weight"
    assert np.array_equal(merged[name], values[f"model.{name}"])
    moved = {name for name, value in merged.items() if not np.array_equal(value, base[name])}
    parts = [
        f"encoder.layer.{n}.attention.self.{it}.weight" for n in (0, 1) for it in ADAPTER["targets"]
    ]
    assert moved == {name, *parts}


def test_a_base_of_codes_is_trained_beside_as_it_lies(decoder_config):
    config = decoder_config(train=["norm.weight"])
    task = build_task(config)
    sides = [make_step(backend, task, config) for backend in BACKENDS]
    assert sides[0].model.blocks().keys() == {f"model.{name}" for name in task.blocks}
    assert len(task.blocks) == 7 + 2
    before = sides[0].trainable()
    for number in range(4):
        batch = task.splits["train"].batch(task.order(config)[number])
        losses = [side.advance([batch], 1e-3)().loss for side in sides]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    mlx, tensors = (side.trainable() for side in sides)
    assert distance(mlx, tensors) < 2e-5
    assert distance(mlx, before) > 1e-3


def test_every_trained_parameter_beside_codes_has_a_gradient(decoder_config):
    checked = preflight(decoder_config())
    assert checked.problems == ()
    assert {row.name.rsplit(".", 1)[-1] for row in checked.rows if row.trainable} == {
        "lora_a",
        "lora_b",
    }


@pytest.mark.heavy
def test_an_adapter_of_a_base_of_codes_is_written_for_it(decoder_config, tmp_path):
    train(decoder_config(), tmp_path / "run")
    found = read_adapter(tmp_path / "run")
    assert len(found.updates) == 2
    assert found.base["quantization"]["bits"] == 4


def test_codes_cannot_be_trained(decoder_config):
    with pytest.raises(MismatchError, match=r"(?s)quantized weights cannot be trained.*lm_head"):
        build_task(decoder_config(train=["lm_head"]))
