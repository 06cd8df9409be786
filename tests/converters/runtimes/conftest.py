"""Tiny models of many architectures, as transformers saves them and as mlx-lm's own code has them."""

from __future__ import annotations

import json
import os

import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return the folder of a tiny torch model of a type; each is made once."""
    from weighbridge.tests.support.atlas.tiny import make

    root, made = tmp_path_factory.mktemp("tiny"), {}

    def folder(kind):
        if kind not in made:
            made[kind] = make(kind, root / kind).folder
        return made[kind]

    return folder


@pytest.fixture(scope="session")
def tiny_mlx(tiny, tmp_path_factory):
    """Return the folder of the same model as mlx-lm's class makes it of the torch files."""
    import mlx.core as mx

    from weighbridge.converters.configs import to_mlx
    from weighbridge.converters.libraries import find

    root, made = tmp_path_factory.mktemp("tiny-mlx"), {}

    def folder(kind):
        if kind not in made:
            made[kind] = root / kind
            made[kind].mkdir()
            config = json.loads((tiny(kind) / "config.json").read_text())
            target = find(config)
            config = to_mlx(config, target).config
            weights = target.sanitize(config, mx.load(str(tiny(kind) / "model.safetensors")))
            file = made[kind] / "model.safetensors"
            mx.save_safetensors(str(file), weights, metadata={"format": "mlx"})
            (made[kind] / "config.json").write_text(json.dumps(config))
        return made[kind]

    return folder


def randomise(model, generator):
    """Fill every factor of a PEFT MODEL with numbers that matter."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(1 + 0.3 * torch.rand(parameter.shape, generator=generator))
            elif "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


def update_of(layer):
    """Return the update of a layer of PEFT, laid out as its parameter."""
    from peft.tuners.lora.layer import Embedding, ParamWrapper

    from weighbridge.converters.values import LowRank

    scale = layer.scaling["default"]
    if isinstance(layer, Embedding):
        a, b = (
            side["default"].detach().numpy()
            for side in (layer.lora_embedding_A, layer.lora_embedding_B)
        )
        return LowRank(b.T, a.T, scale)
    a, b = (side["default"].weight.detach().numpy() for side in (layer.lora_A, layer.lora_B))
    if isinstance(layer, ParamWrapper) and layer.num_experts > 1:
        a = a.reshape(layer.num_experts, -1, a.shape[-1])
        b = b.reshape(b.shape[0], -1, layer.num_experts).transpose(2, 0, 1)
        turned = not layer._did_swap_in_out_features
        if turned:
            a, b = b.transpose(0, 2, 1), a.transpose(0, 2, 1)
        return LowRank(a, b, scale)
    if layer.fan_in_fan_out:
        return LowRank(b.T, a.T, scale)
    magnitude = layer.lora_magnitude_vector if "default" in layer.lora_magnitude_vector else None
    return LowRank(a, b, scale, magnitude and magnitude["default"].weight.detach().numpy())


@pytest.fixture
def with_peft():
    """Return a function: a module and options of LoraConfig -> the module under PEFT, its updates."""
    import copy

    import torch
    from peft import LoraConfig, LoraModel
    from peft.tuners.lora import LoraLayer

    def adapt(module, **options):
        config = LoraConfig(**{"r": 3, "lora_alpha": 5, "lora_dropout": 0.0, **options})
        model = LoraModel(copy.deepcopy(module), config, "default").eval()
        randomise(model, torch.Generator().manual_seed(7))
        updates = {}
        for path, layer in model.model.named_modules():
            if isinstance(layer, LoraLayer):
                leaf = getattr(layer, "parameter_name", "weight")
                updates[f"{path.replace('.base_layer', '')}.{leaf}"] = update_of(layer)
        return model.model, updates

    return adapt
