"""What a run leaves behind opens in other people's code."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import mlx.core as mx
import mlx_embeddings
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from mlx.utils import tree_flatten
from mlx_embeddings.utils import load_model as load_embedder
from mlx_lm.utils import load_model as load_lm
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3Model,
)

from weighbridge.cli import main
from weighbridge.converters.adapters import read_adapter
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.jobs.converting import convert
from weighbridge.jobs.options import Options
from weighbridge.tests.support.atlas import tiny
from weighbridge.tests.trainers.conftest import Ids
from weighbridge.trainers.adapters import updates_of
from weighbridge.trainers.config import validate
from weighbridge.trainers.export import name_apart, write_result
from weighbridge.trainers.objectives.own import PREFIX
from weighbridge.trainers.runs.loop import make_step, train
from weighbridge.trainers.tasks import build_task

ADAPTER = {"rank": 2, "targets": ["q_proj"]}


def test_an_adapter_reads_back_with_the_same_deltas(pairs_config, pairs_task, tmp_path):
    config = pairs_config()
    task = pairs_task(config)
    generator = np.random.default_rng(1)
    values = {
        name: generator.normal(size=value.shape).astype(np.float32)
        for name, value in make_step("torch", task, config).trainable().items()
    }
    write_result(tmp_path, task, config.adapter, values)
    found = read_adapter(tmp_path).updates
    for name, update in updates_of(values, config.adapter.scale, PREFIX).items():
        assert np.array_equal(found[name].delta(), update.delta())


def test_whole_weights_load_into_the_module_they_came_from(series_config, series_task, tmp_path):
    from safetensors.torch import load_file

    config = series_config()
    task = series_task(config)
    train(config, tmp_path / "run", task=task)
    trained = series_task(config).module
    trained.load_state_dict(load_file(tmp_path / "run" / "model.safetensors"), strict=True)
    moved = [
        not torch.equal(new, old)
        for new, old in zip(trained.parameters(), task.module.parameters(), strict=True)
    ]
    assert all(moved)


def test_whole_weights_can_be_written_by_the_caller(series_config, series_task, tmp_path):
    from dataclasses import replace

    written = {}
    config = series_config(steps=1)
    task = replace(
        series_task(config), save_weights=lambda folder, weights: written.update(weights)
    )
    train(config, tmp_path / "run", task=task)
    assert written.keys() == task.module.state_dict().keys()
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.fixture
def opened(tiny_bert_dir, pairs_config):
    """Return a function that makes a task of the tiny BERT on disk."""

    def make(**changes):
        settings = pairs_config(**changes).model_dump(mode="json") | {"model": str(tiny_bert_dir)}
        return validate(settings)

    return make


def test_a_known_architecture_gets_the_names_and_layout_of_its_map(opened, tmp_path):
    from weighbridge.converters.checkpoints import open_checkpoint
    from weighbridge.converters.maps import WeightMap, apply
    from weighbridge.converters.values import Dense

    config = opened(adapter=None, freeze=["pooler"])
    task = build_task(config)
    write_result(tmp_path, task, None, make_step("torch", task, config).trainable())
    written = open_checkpoint(tmp_path)
    assert written.metadata["format"] == "mlx"
    home = WeightMap.load("bert").inverse().bind(written.headers, config=task.model.config)
    values = apply(home, {name: Dense(written.read(name)) for name in written.headers})
    for name, tensor in task.module.state_dict().items():
        assert np.array_equal(values[name].array, tensor.numpy())


def test_the_adapter_of_a_known_architecture_fits_its_mlx_weights(opened, tmp_path):
    config = opened()
    task = build_task(config)
    write_result(tmp_path, task, config.adapter, make_step("torch", task, config).trainable())
    assert len(read_adapter(tmp_path).updates) == 4


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """Return a folder with decoders by their type, for PyTorch and for MLX: the head of one is its embeddings."""
    folder = tmp_path_factory.mktemp("decoders")
    for kind, own in (("llama", {"tie_word_embeddings": True}), ("qwen3_moe", {})):
        there = folder / kind
        tiny.make(kind, there / "torch", own=own, gain=tiny.GAIN)
        convert(str(there / "torch"), there / "mlx", "mlx", options=Options(check="none"))
    return folder


@pytest.mark.parametrize(
    ("place", "adapter"),
    [
        ("llama/mlx", ADAPTER),
        ("llama/torch", None),
        *(
            pytest.param(*it, marks=pytest.mark.heavy)
            for it in (
                ("qwen3_moe/torch", ADAPTER),
                ("llama/torch", ADAPTER),
                ("llama/mlx", None),
                ("qwen3_moe/mlx", ADAPTER),
                ("qwen3_moe/mlx", None),
                ("qwen3_moe/torch", None),
            )
        ),
    ],
)
def test_a_decoder_in_another_form_than_its_checkpoint_trains_and_comes_back(
    decoders, place, adapter, decoder_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    rate = {"learning_rate": 1e-3}
    changes = {"adapter": adapter, "steps": 6, "validate_every": 1, "optimizer": rate}
    config = decoder_config(model=str(decoders / place), **changes)
    Path("own.json").write_text(config.model_dump_json())
    said = invoke("train", "run", "--config", "own.json", "--backend", "mlx")
    [*_, following] = said.partition("Next: weighbridge ")[2].splitlines()[:1]
    invoke(*shlex.split(following))
    found = AutoModelForCausalLM.from_pretrained("run-torch")
    own = AutoModelForCausalLM.from_pretrained((decoders / place).with_name("torch"))
    moved = [
        name
        for (name, one), other in zip(found.named_parameters(), own.parameters(), strict=True)
        if not torch.equal(one, other)
    ]
    every = [name for name, _ in own.named_parameters()]
    assert moved == ([it for it in every if "q_proj" in it] if adapter else every)


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_adapters_of_weights_that_lie_in_out_are_those_of_peft(
    backend, decoder_config, tmp_path, monkeypatch
):
    from peft import PeftModel

    monkeypatch.chdir(tmp_path)
    base = tmp_path / "base"
    tiny.make("gpt2", base, gain=tiny.GAIN)
    adapter = {"rank": 2, "targets": ["c_attn", "mlp.c_proj"]}
    every = {"steps": 6, "validate_every": 3, "optimizer": {"learning_rate": 1e-2}}
    config = decoder_config(model=str(base), adapter=adapter, **every)
    Path("own.json").write_text(config.model_dump_json())
    said = invoke("train", "run", "--config", "own.json", "--backend", backend)
    invoke(*shlex.split(said.partition("Next: weighbridge ")[2].splitlines()[0]))
    invoke("convert", "mlx-to-peft", "run", "peft", "--base", base)
    invoke("convert", "peft-to-mlx", "peft", "back", "--base", base)
    plain, merged = (AutoModelForCausalLM.from_pretrained(it) for it in (base, "run-torch"))
    ids = torch.arange(18).reshape(2, 9)
    [before, found] = [it(input_ids=ids).logits for it in (plain, merged)]
    live = PeftModel.from_pretrained(plain, "peft")(input_ids=ids).logits
    assert (before - live).norm() > 0.01 * live.norm()
    assert torch.allclose(found, live, rtol=0, atol=1e-5 * live.abs().max().item())
    assert loss_of(merged) == pytest.approx(best_of("run"), rel=1e-5)
    [first, back] = [read_adapter(Path(it)).updates for it in ("run", "back")]
    assert first.keys() == back.keys()
    assert all(np.array_equal(first[it].delta(), back[it].delta()) for it in first)


@pytest.mark.heavy
def test_an_adapter_beside_codes_comes_back_in_the_dtype_of_its_base(
    decoder_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    config = decoder_config(optimizer={"learning_rate": 1e-2}, validate_every=1)
    Path("own.json").write_text(config.model_dump_json())
    following = invoke("train", "run", "--config", "own.json").partition("Next: weighbridge ")[2]
    invoke(*shlex.split(following.splitlines()[0]))
    made = AutoModelForCausalLM.from_pretrained("run-torch")
    assert loss_of(made) == pytest.approx(best_of("run"), rel=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("backend", ["mlx", "torch"])
def test_whole_tensors_trained_beside_codes_come_back_dense_and_into_the_codes(
    backend, decoder_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    adapter = {"rank": 2, "targets": ["q_proj", "down_proj"], "scale": 20.0}
    every = {"steps": 40, "validate_every": 40, "checkpoint_every": 40}
    rate = {"optimizer": {"learning_rate": 1e-2}}
    config = decoder_config(adapter=adapter, train=["*norm*"], **every, **rate)
    Path("own.json").write_text(config.model_dump_json())
    said = invoke("train", "run", "--config", "own.json", "--backend", backend)
    invoke(*shlex.split(said.partition("Next: weighbridge ")[2].splitlines()[0]))
    dense = AutoModelForCausalLM.from_pretrained("run-torch")
    assert loss_of(dense) == pytest.approx(best_of("run"), rel=1e-5)
    assert not torch.equal(dense.model.norm.weight, torch.ones_like(dense.model.norm.weight))
    invoke("merge", config.model, "run", "merged")
    base, made = (load_file(Path(it, "model.safetensors")) for it in (config.model, "merged"))
    assert torch.equal(made["model.norm.weight"], dense.model.norm.weight)
    changed = {name for name in made if not torch.equal(made[name], base[name])}
    norms = {name for name in base if "norm" in name}
    assert norms <= changed
    assert {it.rpartition(".")[0] for it in changed - norms} == {
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.mlp.down_proj",
    }


@pytest.mark.heavy
def test_updates_that_no_mlx_class_has_a_matrix_for_are_written_for_peft(
    decoder_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    tiny.make("deepseek_v3", Path("torch"), gain=tiny.GAIN)
    adapter = {"rank": 2, "targets": ["kv_b_proj"]}  # mlx-lm's class has it in two, head by head
    every = {"validate_every": 1, "optimizer": {"learning_rate": 1e-2}}
    config = decoder_config(model="torch", adapter=adapter, **every)
    Path("own.json").write_text(config.model_dump_json())
    following = invoke("train", "run", "--config", "own.json").partition("Next: weighbridge ")[2]
    invoke(*shlex.split(following.splitlines()[0]))
    made = AutoModelForCausalLM.from_pretrained("run-torch")
    assert loss_of(made) == pytest.approx(best_of("run"), rel=1e-5)
    invoke("convert", "torch-to-mlx", "torch", "mlx", "--check", "none")
    done = CliRunner().invoke(main, ["train", "two", "--config", "own.json", "--set", "model=mlx"])
    assert done.exit_code == 3
    assert "train the PyTorch model: weighbridge convert mlx-to-torch" in done.output
    assert not Path("two").exists()


def loss_of(model):
    """Return the loss that the torch MODEL has, of transformers alone, of the validation split."""
    ids = torch.from_numpy(Ids("validation").batch(np.arange(20))["ids"])
    found = model(input_ids=ids).logits
    return functional.cross_entropy(found[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()


def best_of(run):
    """Return the best validation loss of RUN."""
    return json.loads(Path(run, "result.json").read_text())["best"]["loss"]


def invoke(*words):
    done = CliRunner().invoke(main, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.output


def test_a_checkpoint_holds_the_adapter_of_its_step(pairs_config, pairs_task, tmp_path):
    config = pairs_config(steps=2, validate_every=2, checkpoint_every=1)
    train(config, tmp_path / "run", backend="torch", task=pairs_task(config))
    checkpoints = [tmp_path / "run" / "checkpoints" / f"step-0000000{step}" for step in (1, 2)]
    first, last = (read_adapter(folder).updates for folder in checkpoints)
    assert first.keys() == last.keys() == read_adapter(tmp_path / "run").updates.keys()
    assert not any(np.array_equal(first[name].delta(), last[name].delta()) for name in first)


@pytest.fixture(scope="module")
def whole_run(tiny_bert_dir, pairs_folder, tmp_path_factory):
    """Return a run that trained all weights of an encoder, with its checkpoints."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    sets = {"model": tiny_bert_dir, "steps": 2, "batch_size": 4, "checkpoint_every": 1}
    sets |= {
        "data.kind": "pairs",
        "data.train": pairs_folder / "train.jsonl",
        "objective": "contrastive",
    }
    sets |= {"data.validation": pairs_folder / "validation.jsonl", "optimizer.learning_rate": 1e-2}
    sets |= {"freeze": "[pooler]", "data.lengths.query": [16], "data.lengths.document": [16]}
    words = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    invoke("train", folder, "--backend", "torch", *words)
    return folder


def same_weights(loaded, path):
    """Say whether the MLX model LOADED has the weights in the file at PATH."""
    held, kept = dict(tree_flatten(loaded.parameters())), mx.load(str(path))
    return all(mx.array_equal(held[name], kept[name]).item() for name in held)


def test_a_run_with_checkpoints_loads_in_the_library_of_its_encoder(whole_run):
    """``mlx_embeddings.load`` reads every ``model*.safetensors`` below the folder that it is given."""
    assert same_weights(mlx_embeddings.load(str(whole_run))[0], whole_run / "model.safetensors")
    for step in (1, 2):
        checkpoint = whole_run / "checkpoints" / f"step-0000000{step}"
        loaded = mlx_embeddings.load(str(checkpoint))[0]
        assert same_weights(loaded, checkpoint / "weights.safetensors")
        _, report = AutoModel.from_pretrained(checkpoint, output_loading_info=True)
        assert not report["missing_keys"] - {"pooler.dense.weight", "pooler.dense.bias"}
    assert not same_weights(loaded, checkpoint.parent / "step-00000001" / "weights.safetensors")
    opened = open_model(str(checkpoint))
    assert opened.checkpoint.headers == open_model(str(whole_run)).checkpoint.headers
    assert opened.framework == "mlx"


def test_a_run_of_an_earlier_version_goes_on_and_loads(whole_run, tmp_path):
    """Earlier versions called the weights of every checkpoint ``model.safetensors``."""
    run = shutil.copytree(whole_run, tmp_path / "run")
    for folder in (run / "checkpoints").glob("step-*"):
        (folder / "model.safetensors.index.json").unlink()
        (folder / "weights.safetensors").rename(folder / "model.safetensors")
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    invoke("train", run, "--resume")
    assert same_weights(mlx_embeddings.load(str(run))[0], whole_run / "model.safetensors")


def test_checkpoints_of_a_decoder_load_in_mlx_lm(tmp_path):
    """Only the weights of what mlx-embeddings alone loads get another name in checkpoints."""
    kinds = {
        ("llama", "model.a"): "model.safetensors",
        ("qwen3", "model.a"): "model.safetensors",
        ("qwen3", "a"): "weights.safetensors",
        ("bert", "a"): "weights.safetensors",
    }
    for (kind, name), kept in kinds.items():
        folder = tmp_path / f"{kind}-{name}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        save_file({name: torch.zeros(2)}, folder / "model.safetensors")
        name_apart(folder)
        assert (folder / kept).is_file()


@pytest.mark.parametrize("headed", [False, True], ids=["embedder", "decoder"])
def test_a_class_of_both_libraries_loads_where_it_can(tmp_path, headed):
    """Without its head Qwen3 is nothing that mlx-lm loads, and the run loads in mlx-embeddings."""
    settings = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        tie_word_embeddings=True,
    )
    run, step = tmp_path / "run", tmp_path / "run" / "checkpoints" / "step-1"
    model = (Qwen3ForCausalLM if headed else Qwen3Model)(settings)
    for folder in (run, step):
        model.save_pretrained(folder)
    name_apart(step)
    if headed:
        load_lm(step)
    else:
        load_embedder(run)
        with pytest.raises(ValueError, match="not in model"):
            load_lm(run)
    load_embedder(step)
