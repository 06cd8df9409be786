"""Tiny models of many architectures, as transformers saves them and as mlx-lm's own code has them."""

from __future__ import annotations

import json
import os

import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return the folder of a tiny torch model of a type; each is made once."""
    from weighbridge.benchmarks.atlas.tiny import make

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
