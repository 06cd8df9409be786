"""Mirrors converters/runtimes/mlx_adapters.py; the oracle is mlx-lm's own loading of an adapter."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.tuner.utils import load_adapters
from mlx_lm.utils import load_model

from weighbridge import jobs
from weighbridge.converters.adapters.adapter import Adapter
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.live import live_difference
from weighbridge.converters.runtimes.native.mlx_lm import mlx_lm_runner
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.parity.probes.probes import Probe

IDS = np.random.default_rng(0).integers(3, 120, (2, 12))
PROBES = [Probe("ids", {"input_ids": IDS})]
SWITCH = "model.layers.1.mlp.switch_mlp"
CASES = {
    "llama": (["model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"], False),
    "llama dora": (["model.layers.1.mlp.up_proj"], True),
    "gemma2 embedding": (["model.embed_tokens"], False),
    "qwen3_moe": ([f"{SWITCH}.gate_proj", f"{SWITCH}.down_proj", "model.layers.0.mlp.gate"], False),
}
RANK, SCALE = 3, 1.7


def update_of(name, shape, dora=False, rank=RANK):
    random = np.random.default_rng(len(name))
    *lead, out, inner = shape
    a, b = (0.3 * random.normal(size=(*lead, *s)) for s in ((rank, inner), (out, rank)))
    magnitude = random.uniform(0.5, 2, out).astype(np.float32) if dora else None
    return LowRank(a.astype(np.float32), b.astype(np.float32), SCALE, magnitude)


def tensors_of(module, update):
    """Return the tensors of UPDATE as mlx-lm names and lays them."""
    a, b = update.a, update.b
    if "embed" in module:
        a, b = b, a
    elif not update.lead:
        a, b = a.T, b.T
    made = {f"{module}.lora_a": a, f"{module}.lora_b": b}
    return made if update.magnitude is None else {**made, f"{module}.m": update.magnitude}


def saved(folder, tensors, keys, dora=False):
    """Write an adapter with mlx's own writer."""
    folder.mkdir()
    arrays = {name: mx.array(np.ascontiguousarray(array)) for name, array in tensors.items()}
    mx.save_safetensors(str(folder / "adapters.safetensors"), arrays)
    parameters = {"rank": RANK, "scale": SCALE, "dropout": 0.1, "keys": keys}
    kind = "dora" if dora else "lora"
    config = {"fine_tune_type": kind, "num_layers": -1, "lora_parameters": parameters}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def adapted(tiny_mlx, tmp_path):
    """Return a model, its updates by parameter, and a folder with them in mlx-lm's dialect."""

    def make(case):
        keys, dora = CASES[case]
        model = open_model(tiny_mlx(case.split()[0]))
        headers = model.checkpoint.headers
        updates = {key: update_of(key, headers[f"{key}.weight"].shape, dora) for key in keys}
        tensors = {n: t for key, it in updates.items() for n, t in tensors_of(key, it).items()}
        folder = saved(tmp_path / "adapter", tensors, keys, dora)
        named = {f"{key}.weight": update for key, update in updates.items()}
        return model, named, folder

    return make


def live(model, updates):
    return replace(model, adapter=Adapter(Path("a"), "mlx", updates, {}))


@pytest.mark.parametrize("case", CASES)
def test_a_live_adapter_computes_what_mlx_lm_computes(adapted, case):
    model, updates, folder = adapted(case)
    theirs = load_adapters(load_model(model.path)[0], str(folder))
    theirs.eval()
    runner = load(live(model, updates), "mlx")
    ours = runner.run(PROBES[0].inputs)["logits"]
    assert runner.kind == "library"
    assert np.array_equal(ours, np.array(theirs(mx.array(IDS))))
    assert live_difference(load(model, "mlx"), runner, PROBES) > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_the_loader_of_mlx_lm_computes_what_the_live_adapter_does(adapted, case):
    model, updates, folder = adapted(case)
    loaded = mlx_lm_runner(model, folder)
    assert live_difference(load(live(model, updates), "mlx"), loaded, PROBES) == 0
    assert loaded.describe()["library"].startswith("mlx-lm")


@pytest.mark.parametrize("case", ["llama", "llama dora", "qwen3_moe"])
def test_torch_runs_the_same_adapter(adapted, case):
    model, updates, folder = adapted(case)
    torch_side = load(live(model, updates), "torch")
    floor = live_difference(load(model, "torch"), load(model, "mlx"), PROBES)
    assert live_difference(torch_side, mlx_lm_runner(model, folder), PROBES) < max(1e-6, 4 * floor)


def changed(folder, change):
    file = folder / "adapters.safetensors"
    tensors = mx.load(str(file))
    change(tensors)
    mx.save_safetensors(str(file), tensors)


def test_a_missing_tensor_is_found_though_mlx_lm_does_not_mind(adapted):
    model, _, folder = adapted("llama")
    lost = "model.layers.1.self_attn.q_proj.lora_b"
    changed(folder, lambda tensors: tensors.pop(lost))
    with pytest.raises(MismatchError, match=rf"1 problem\n.*{lost} is in no file: left at random"):
        mlx_lm_runner(model, folder)


def test_what_mlx_lm_refuses_is_passed_on(adapted):
    model, _, folder = adapted("llama")
    changed(folder, lambda tensors: tensors.update(odd=mx.zeros(2)))
    with pytest.raises(MismatchError, match=r"odd: not an adapter parameter in the model"):
        mlx_lm_runner(model, folder)


def test_a_class_without_layers_is_wrapped_by_path():
    from mlx import nn

    from weighbridge.converters.runtimes.native.mlx_lm import with_layers

    module = nn.Sequential(nn.Linear(2, 3))
    del module.layers
    module.head = nn.Linear(3, 2)
    with with_layers(module):
        assert module.layers == []
    assert not hasattr(module, "layers")


def test_an_encoder_of_mlx_embeddings_is_loaded_by_mlx_lm_too(tiny_bert_dir, tmp_path):
    pytest.importorskip("mlx_embeddings")
    jobs.convert(str(tiny_bert_dir), tmp_path / "bert", "mlx", options=jobs.Options(check="none"))
    model = open_model(tmp_path / "bert")
    keys = [
        name.removesuffix(".weight")
        for name, header in model.checkpoint.headers.items()
        if "query.weight" in name or "embeddings.word_embeddings.weight" in name
    ]
    updates = {key: update_of(key, model.checkpoint.headers[f"{key}.weight"].shape) for key in keys}
    tensors = {n: t for key, it in updates.items() for n, t in tensors_of(key, it).items()}
    loaded = mlx_lm_runner(model, saved(tmp_path / "adapter", tensors, keys))
    own = live(model, {f"{key}.weight": update for key, update in updates.items()})
    ids = np.random.default_rng(0).integers(5, 60, (2, 9))
    probes = [Probe("ids", {"input_ids": ids, "attention_mask": np.ones_like(ids)})]
    assert len(keys) > 2
    for runtime in ("torch", "mlx"):  # both run torch's own computation, theirs is the library's
        assert live_difference(load(own, runtime), loaded, probes) < 1e-6


def test_what_does_not_fit_is_listed(tiny_mlx):
    model = open_model(tiny_mlx("llama"))
    name = "model.layers.1.mlp.up_proj.weight"
    updates = {name: update_of("", (48, 80)), "odd.weight": update_of("", (3, 4))}
    with pytest.raises(MismatchError, match="2 problems") as caught:
        load(live(model, updates), "mlx")
    assert f"{name}: expected [80, 48], found an update of [48, 80]" in caught.value.problems


def test_what_mlx_lm_has_no_layer_for_is_refused_by_name(tiny_mlx):
    model = open_model(tiny_mlx("qwen3_moe"))
    name = f"{SWITCH}.up_proj.weight"
    update = update_of("", model.checkpoint.headers[name].shape)
    update = replace(update, magnitude=np.ones(3))
    with pytest.raises(UnsupportedError, match=rf"{name} \(SwitchLinear, DoRA\)"):
        load(live(model, {name: update}), "mlx")


def test_a_torch_directory_is_loaded_by_no_class_of_mlx(tiny, tmp_path):
    with pytest.raises(UnsupportedError, match="no class of an MLX library runs"):
        mlx_lm_runner(open_model(tiny("llama")), tmp_path)


def test_tensors_that_the_adapter_holds_whole_replace_the_base_s(tiny_mlx, tmp_path):
    model = open_model(tiny_mlx("llama"))
    name = "model.norm.weight"
    array = np.linspace(0.5, 2, 48, dtype=np.float32)
    adapter = Adapter(Path("a"), "mlx", {}, {}, saved={name: array})
    folder = tmp_path / "model"
    shutil.copytree(tiny_mlx("llama"), folder)
    weights = mx.load(str(folder / "model.safetensors"))
    weights[name] = mx.array(array)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    wanted = load(open_model(folder), "mlx")
    for runtime in ("mlx", "torch"):
        found = load(replace(model, adapter=adapter), runtime)
        assert live_difference(load(open_model(folder), runtime), found, PROBES) == 0
    assert live_difference(load(model, "mlx"), wanted, PROBES) > 1e-3
