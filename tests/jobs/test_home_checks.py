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


@pytest.fixture(params=["zero", "trained"])
def ernie(request, tmp_path):
    """Return a checkpoint whose routing biases are so, and the directory that mlx-lm writes of it."""
    from mlx_lm.utils import load_model, save_config, save_model

    hub, own = make("ernie4_5_moe", tmp_path / "hub").folder, tmp_path / "own"
    weights = load_file(hub / "model.safetensors")
    for name in [name for name in weights if name.endswith("correction_bias")]:
        weights[name] = weights[name] * (request.param == "trained")
    save_file(weights, hub / "model.safetensors", metadata={"format": "pt"})
    model, config = load_model(hub, model_config={"rope_theta": 500_000.0})
    save_model(own, model)
    save_config(config, own / "config.json")
    return hub, own, request.param


@pytest.mark.heavy
def test_one_whose_class_drops_tensors_goes_back_with_those_of_its_original(ernie, tmp_path):
    hub, own, biases = ernie
    options = jobs.Options(original=str(hub))
    verdict = jobs.convert(str(own), tmp_path / "back", "torch", options=options).verdict
    layout = verdict.stage("layout")
    if biases == "zero":
        assert (verdict.status, layout.status) == ("PASS", "pass")
        assert (
            load_file(tmp_path / "back" / "model.safetensors").keys()
            == load_file(hub / "model.safetensors").keys()
        )
    else:  # mlx-lm routes without them, and so computes something else
        assert (verdict.status, verdict.stage("structure").status) == ("DIFFERS", "pass")
        assert layout.status == "fail"
        assert "mlx_lm.models.ernie4_5_moe" in layout.detail
