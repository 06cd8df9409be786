"""A model of MLX whose norms are kept as ``1 + w`` passes its check on the way home.

In bfloat16 ``w`` has fewer digits than ``1 + w`` where that is below 0.5. The class that vouches for
the layout runs the MLX files as they are, so it is compared with them, not with what came home.
"""

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weighbridge import jobs
from weighbridge.tests.support.atlas.tiny import make

PROJECTION = "model.layers.3.self_attn.q_proj"


@pytest.fixture(scope="module")
def mlx(tmp_path_factory):
    """Return a tiny model in MLX's layout and bfloat16, its sidecar beside it."""
    root = tmp_path_factory.mktemp("home")
    weights = make("qwen3_next", root / "torch").folder / "model.safetensors"
    narrow = {name: a.astype(ml_dtypes.bfloat16) for name, a in load_file(weights).items()}
    save_file(narrow, weights, metadata={"format": "pt"})
    options = jobs.Options(check="none")
    return jobs.convert(str(root / "torch"), root / "mlx", "mlx", options=options).target


@pytest.mark.heavy
def test_one_that_was_trained_in_mlx(mlx, tmp_path):
    trained = shutil.copytree(mlx, tmp_path / "trained")
    weights = load_file(trained / "model.safetensors")
    for name in [name for name in weights if name.endswith("layernorm.weight")]:
        weights[name] = (weights[name].astype(np.float32) * 0.45).astype(ml_dtypes.bfloat16)
    save_file(weights, trained / "model.safetensors", metadata={"format": "mlx"})
    verdict = jobs.convert(str(trained), tmp_path / "out", "torch").verdict
    assert verdict.status == "PASS"
    assert "digits that the candidate keeps" in verdict.stage("structure").detail


@pytest.mark.heavy
def test_one_that_takes_an_adapter_with_it(mlx, tmp_path):
    adapter, generator = tmp_path / "adapter", np.random.default_rng(0)
    rows, columns = load_file(mlx / "model.safetensors")[f"{PROJECTION}.weight"].shape
    pair = {"lora_a": (columns, 4), "lora_b": (4, rows)}
    adapter.mkdir()
    save_file(
        {
            f"{PROJECTION}.{part}": generator.normal(size=shape).astype(np.float32) * 0.1
            for part, shape in pair.items()
        },
        adapter / "adapters.safetensors",
    )
    lora = {"rank": 4, "scale": 2.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    settings = {"fine_tune_type": "lora", "num_layers": 4, "lora_parameters": lora}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    home = jobs.convert(str(mlx), tmp_path / "out", "torch", adapter=adapter)
    assert home.status == "PASS"
