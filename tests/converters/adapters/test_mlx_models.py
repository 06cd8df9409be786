"""On models of mlx-lm, its own LoRA layers mean here what they mean there, and PEFT's become them."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import llama, qwen3_moe
from mlx_lm.tuner.utils import linear_to_lora_layers, load_adapters
from safetensors.numpy import load_file

from weighbridge.converters.adapters import fit, read_adapter, write_adapter, write_peft
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.libraries.modules import mlx_kind
from weighbridge.errors import MismatchError, UnsupportedError

from . import models

pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA = models.LLAMA | {"rms_norm_eps": 1e-6, "rope_theta": 1e4, "max_position_embeddings": 64}
QWEN = models.EXPERTS | {"mlp_only_layers": [], "decoder_sparse_step": 1, "norm_topk_prob": True}
IDS = mx.array(models.IDS.numpy())
CASES = {
    "attention": ("llama", ["self_attn.q_proj", "self_attn.v_proj"], False),
    "everything": ("llama", None, False),
    "DoRA": ("llama", ["self_attn.q_proj", "mlp.down_proj"], True),
    "embedding": ("llama", ["model.embed_tokens", "lm_head"], False),
    "experts": ("qwen3_moe", ["mlp.switch_mlp.gate_proj", "mlp.switch_mlp.down_proj"], False),
    "everything of experts": ("qwen3_moe", None, False),
}


class Base:
    """A model of mlx-lm before training."""

    def __init__(self, family: str, **changes) -> None:
        self.family, self.changes = family, changes
        model = self.fresh()
        generator = np.random.default_rng(0)
        shapes = {name: it.shape for name, it in tree_flatten(model.parameters())}
        self.weights = {
            name: mx.array(0.2 * generator.normal(size=shape).astype(np.float32))
            for name, shape in shapes.items()
        }
        self.headers = {name: Header("F32", tuple(it.shape)) for name, it in self.weights.items()}
        found = ((path, mlx_kind(module)) for path, module in model.named_modules())
        self.kinds = {path: kind for path, kind in found if kind}

    def fresh(self):
        module, more = (llama, {}) if self.family == "llama" else (qwen3_moe, QWEN)
        settings = LLAMA | more | self.changes | {"model_type": self.family}
        return module.Model(module.ModelArgs.from_dict(settings))

    def model(self, weights=None):
        model = self.fresh()
        model.load_weights(list((weights or self.weights).items()))
        return model.eval()


def run(model) -> np.ndarray:
    return np.array(model(IDS))


def far(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def trained(base: Base, folder, keys, dora=False, rank=4, scale=3.0):
    """Return BASE with an adapter on, of random numbers, after saving it as mlx-lm does."""
    model = base.model()
    model.freeze()
    parameters = {"rank": rank, "scale": scale, "dropout": 0.0}
    parameters |= {} if keys is None else {"keys": keys}
    linear_to_lora_layers(model, -1, parameters, use_dora=dora)
    generator = np.random.default_rng(1)
    values = {}
    for name, it in tree_flatten(model.trainable_parameters()):
        noise = mx.array(generator.normal(size=it.shape).astype(np.float32))
        values[name] = it * (1 + 0.1 * mx.abs(noise)) if name.endswith(".m") else 0.3 * noise
    model.load_weights(list(values.items()), strict=False)
    folder.mkdir()
    mx.save_safetensors(str(folder / "adapters.safetensors"), values)
    config = {"fine_tune_type": "dora" if dora else "lora", "num_layers": 16}
    text = json.dumps(config | {"lora_parameters": parameters})
    (folder / "adapter_config.json").write_text(text)
    return model.eval()


@pytest.fixture(params=CASES)
def training(request, tmp_path):
    """Return a base, it with an adapter on, and where that is; fusing changes the second."""
    family, keys, dora = CASES[request.param]
    base = Base(family)
    tuned = trained(base, tmp_path / "mlx", keys, dora)
    return base, tuned, tmp_path


def fitted(base, folder):
    return fit(read_adapter(folder), base.headers, base.kinds)


def test_the_weights_are_those_that_mlx_lm_fuses_and_so_are_the_outputs(training):
    base, tuned, folder = training
    adapter = fitted(base, folder / "mlx")
    weights = dict(base.weights)
    for name, update in adapter.updates.items():
        weights[name] = mx.array(update.applied_to(np.array(base.weights[name])), mx.float32)
    live = run(tuned)
    assert far(run(base.model(weights)), live) < 1e-5
    assert far(run(base.model()), live) > 1e-3
    fused = [(name, it.fuse()) for name, it in tuned.named_modules() if hasattr(it, "fuse")]
    tuned.update_modules(tree_unflatten(fused))
    for name, it in tree_flatten(tuned.parameters()):
        np.testing.assert_allclose(np.array(weights[name]), np.array(it), rtol=0, atol=1e-5)


def test_what_is_written_is_loaded_by_mlx_lm_and_read_back_bit_for_bit(training):
    base, tuned, folder = training
    adapter = fitted(base, folder / "mlx")
    write_adapter(folder / "new", adapter.updates, config={}, kinds=base.kinds)
    assert far(run(load_adapters(base.model(), str(folder / "new"))), run(tuned)) == 0
    old, new = (load_file(folder / at / "adapters.safetensors") for at in ("mlx", "new"))
    assert set(old) == set(new)
    assert all(np.array_equal(old[name], new[name]) for name in old)


# Names and layouts of experts differ between the frameworks: those go through maps.
ALIKE = [name for name, (family, *_) in CASES.items() if family == "llama"]


@pytest.mark.parametrize("training", ALIKE, indirect=True)
def test_it_goes_to_peft_and_comes_back_bit_for_bit(training):
    base, _, folder = training
    adapter = fitted(base, folder / "mlx")
    there = models.build("llama")
    write_peft(folder / "peft", adapter.updates, kinds=there.kinds)
    models.loaded(there, folder / "peft")
    back = fit(read_adapter(folder / "peft"), there.headers, there.kinds)
    write_adapter(folder / "new", back.updates, config={}, kinds=base.kinds)
    old, new = (load_file(folder / at / "adapters.safetensors") for at in ("mlx", "new"))
    assert set(old) == set(new)
    assert all(np.array_equal(old[name], new[name]) for name in old)
    assert models.config_in(folder / "new")["lora_parameters"]["scale"] == 3.0


PEFT = {
    "attention": {"target_modules": ["q_proj", "v_proj"]},
    "rank as wide as the weight": {"target_modules": ["q_proj", "k_proj"], "r": 16},
    "DoRA": {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
    "embedding": {"target_modules": ["embed_tokens", "lm_head", "o_proj"]},
    "rsLoRA": {"target_modules": ["q_proj"], "use_rslora": True, "r": 3},
    "patterns": {
        "target_modules": ["q_proj", "o_proj"],
        "rank_pattern": {"o_proj": 2},
        "alpha_pattern": {"layers.0.self_attn.q_proj": 7},
    },
}


@pytest.mark.parametrize("case", PEFT)
def test_a_model_of_torch_with_an_adapter_is_one_of_mlx_with_the_same(case, tmp_path):
    torch_base = models.build("llama")
    tuned = models.trained(torch_base, tmp_path / "peft", **PEFT[case])
    adapter = fit(read_adapter(tmp_path / "peft"), torch_base.headers, torch_base.kinds)
    base = Base("llama")
    base.weights = {name: mx.array(it.numpy()) for name, it in torch_base.weights.items()}
    write_adapter(tmp_path / "mlx", adapter.updates, config={}, kinds=base.kinds)
    live = models.run(tuned).numpy()
    assert far(run(load_adapters(base.model(), str(tmp_path / "mlx"))), live) < 1e-6
    assert far(run(base.model()), live) > 1e-3
    back = fitted(base, tmp_path / "mlx")
    write_peft(tmp_path / "back", back.updates, kinds=torch_base.kinds)
    assert (
        np.abs(models.run(models.loaded(torch_base, tmp_path / "back")).numpy() - live).max() < 1e-5
    )
    if case == "patterns":  # mlx-lm has one rank and one scale
        return
    old, new = (load_file(tmp_path / at / "adapter_model.safetensors") for at in ("peft", "back"))
    assert set(new) == {name for name in old if "base_layer" not in name}
    assert all(np.array_equal(old[name], new[name]) for name in new)


def test_a_square_embedding_is_turned_where_its_kind_is_known(tmp_path):
    base = Base("llama", vocab_size=16)
    trained(base, tmp_path / "mlx", ["model.embed_tokens"])
    straight = fit(read_adapter(tmp_path / "mlx"), base.headers).updates
    turned = fitted(base, tmp_path / "mlx").updates
    name = "model.embed_tokens.weight"
    assert np.array_equal(turned[name].delta(), straight[name].delta().T)


def test_an_embedding_that_is_not_square_needs_no_kind(tmp_path):
    base = Base("llama")
    trained(base, tmp_path / "mlx", ["model.embed_tokens"])
    found = fit(read_adapter(tmp_path / "mlx"), base.headers).updates
    assert found["model.embed_tokens.weight"].shape == (31, 16)


def test_dora_of_an_embedding_is_refused(tmp_path):
    base = Base("llama", vocab_size=16)
    trained(base, tmp_path / "mlx", ["model.embed_tokens"], dora=True)
    with pytest.raises(
        MismatchError,
        match=r"DoRA magnitudes are of rows.*merge it with the program that trained it",
    ):
        fitted(base, tmp_path / "mlx")


def test_weights_trained_whole_are_read_and_written(tmp_path):
    base = Base("llama")
    (tmp_path / "mlx").mkdir()
    name = "model.norm.weight"
    mx.save_safetensors(str(tmp_path / "mlx/adapters.safetensors"), {name: base.weights[name] * 2})
    text = json.dumps({"fine_tune_type": "full", "num_layers": 2})
    (tmp_path / "mlx/adapter_config.json").write_text(text)
    adapter = fitted(base, tmp_path / "mlx")
    assert list(adapter.saved) == [name]
    write_adapter(tmp_path / "new", {}, config={}, saved=adapter.saved)
    loaded = load_adapters(base.model(), str(tmp_path / "new"))
    assert (loaded.model.norm.weight == base.weights[name] * 2).all()


def test_whole_modules_of_peft_have_no_place_in_mlx_lm(tmp_path):
    base = models.build("llama")
    models.trained(base, tmp_path, target_modules=["q_proj"], modules_to_save=["norm"])
    adapter = fit(read_adapter(tmp_path), base.headers, base.kinds)
    with pytest.raises(UnsupportedError, match=r"modules_to_save tensors beside updates \(model"):
        write_adapter(tmp_path / "x", adapter.updates, config={}, saved=adapter.saved)
