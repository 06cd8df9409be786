"""The configuration of a target: a manifest's word goes before that of an original."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.config import translated

OWN = {"model_type": "llama", "rope_theta": 10.0, "vocab_size": 7}
THEIRS = {"model_type": "llama", "rope_theta": 777.0, "vocab_size": 9}


def save(folder, config, manifest=None):
    folder.mkdir()
    weights = {"w": np.ones((2, 3), np.float32)}
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config))
    if manifest:
        (folder / "weighbridge.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        ({"framework": "mlx", "source": {"spec": "x"}}, OWN),  # nothing was changed on the way
        (None, THEIRS),  # nobody knows what was
    ],
)
def test_an_original_gives_its_configuration_where_none_is_recorded(tmp_path, manifest, expected):
    model = open_model(save(tmp_path / "mlx", OWN, manifest))
    original = save(tmp_path / "original", THEIRS)
    assert translated(model, "torch", str(original)).config == expected
