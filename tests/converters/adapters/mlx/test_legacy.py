"""Adapters that older programs wrote for MLX are what those programs made of them."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.tuner.utils import load_adapters

from weighbridge.converters.adapters import fit, read_adapter, write_adapter
from weighbridge.converters.checkpoints import Header
from weighbridge.errors import BadInputError, MismatchError

HEADERS = {"layers.0.q.weight": Header("F32", (7, 5))}


def noise(*shape):
    return mx.array(np.random.default_rng(0).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize("said", [{"alpha": 3.0}, {}])
def test_mlx_vlms_first_layers_mean_here_what_they_mean_there(said, tmp_path):
    lora = pytest.importorskip("mlx_vlm.trainer.peft.lora")
    layer = lora.LoRaLayer(nn.Linear(5, 7), 2, **said).eval()
    layer.B = noise(2, 7)
    mx.save_safetensors(
        str(tmp_path / "adapters.safetensors"), {"layers.0.q.A": layer.A, "layers.0.q.B": layer.B}
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"rank": 2, "dropout": 0.1} | said))
    adapter = fit(read_adapter(tmp_path), HEADERS)
    weight = adapter.updates["layers.0.q.weight"].applied_to(np.array(layer.original_layer.weight))
    x = noise(3, 5)
    ours = x @ mx.array(weight, mx.float32).T + layer.original_layer.bias
    assert float(mx.abs(layer(x) - ours).max()) < 1e-6
    assert (adapter.dialect, adapter.framework) == ("mlx-vlm", "mlx")
    assert "alpha / rank" in adapter.notes[0]


def npz(folder, **config):
    layer = LoRALinear.from_base(nn.Linear(5, 7), r=2, scale=20.0).eval()
    layer.lora_b = noise(2, 7)
    names = {"layers.0.q.lora_a": layer.lora_a, "layers.0.q.lora_b": layer.lora_b}
    mx.savez(str(folder / "adapters.npz"), **names)
    if config:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return layer


@pytest.mark.parametrize("name", ["", "adapters.npz"])
def test_an_archive_of_the_examples_is_read_without_a_configuration(name, tmp_path):
    layer = npz(tmp_path)
    adapter = fit(read_adapter(tmp_path / name), HEADERS)
    weight = adapter.updates["layers.0.q.weight"].applied_to(np.array(layer.linear.weight))
    np.testing.assert_allclose(weight, np.array(layer.fuse().weight), rtol=0, atol=1e-4)
    assert adapter.dialect == "npz"
    assert "nothing says the scale: 20" in adapter.notes[0]


class Model(nn.Module):
    """A model as mlx-lm loads adapters into: a list of layers."""

    def __init__(self, linear):
        super().__init__()
        self.layers = [nn.Module()]
        self.layers[0].q = linear


def today(adapter, linear, folder):
    """Return LINEAR with ADAPTER on, written in today's dialect and loaded by mlx-lm itself."""
    write_adapter(folder, adapter.updates, config={})
    return load_adapters(Model(linear), str(folder)).eval().layers[0].q


@pytest.mark.parametrize("said", [{"alpha": 3.0}, {}])
def test_mlx_vlms_first_layers_do_in_todays_dialect_what_they_did(said, tmp_path):
    lora = pytest.importorskip("mlx_vlm.trainer.peft.lora")
    layer = lora.LoRaLayer(nn.Linear(5, 7), 2, **said).eval()
    layer.A, layer.B = noise(5, 2), noise(2, 7)
    mx.save_safetensors(
        str(tmp_path / "adapters.safetensors"), {"layers.0.q.A": layer.A, "layers.0.q.B": layer.B}
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"rank": 2, "dropout": 0.1} | said))
    adapter = fit(read_adapter(tmp_path), HEADERS)
    same(layer, layer.original_layer, today(adapter, layer.original_layer, tmp_path / "out"))


def test_an_archive_of_the_examples_does_in_todays_dialect_what_it_did(tmp_path):
    layer = npz(tmp_path)
    adapter = fit(read_adapter(tmp_path), HEADERS)
    same(layer, layer.linear, today(adapter, layer.linear, tmp_path / "out"))


def same(old, base, new):
    """Require the outputs of OLD and NEW to agree to rounding, where OLD is far from its BASE."""
    x = noise(3, 5)
    effect = float(mx.abs(old(x) - base(x)).max())
    assert type(new) is LoRALinear
    assert effect > 0.05
    assert float(mx.abs(old(x) - new(x)).max()) < 1e-6 * (1 + effect)


def test_a_scale_that_is_said_holds(tmp_path):
    npz(tmp_path, lora_parameters={"scale": 2.0})
    adapter = read_adapter(tmp_path)
    assert (adapter.updates["layers.0.q.weight"].scale, adapter.notes) == (2.0, ())


def test_half_an_archive_is_refused(tmp_path):
    mx.savez(str(tmp_path / "adapters.npz"), **{"q.lora_a": noise(5, 2)})
    with pytest.raises(MismatchError, match=r"q\.lora_b is missing"):
        read_adapter(tmp_path)


def test_an_alpha_of_zero_is_refused(tmp_path):
    mx.save_safetensors(str(tmp_path / "adapters.safetensors"), {"q.A": noise(5, 2)})
    (tmp_path / "adapter_config.json").write_text(json.dumps({"rank": 2, "alpha": 0}))
    with pytest.raises(BadInputError, match="alpha is 0, expected a positive number"):
        read_adapter(tmp_path)
