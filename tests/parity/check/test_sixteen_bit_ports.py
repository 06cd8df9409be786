"""A right port in MLX passes in the dtype that its weights are kept in."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.tests.support.atlas.tiny import make

PORT = """
from pathlib import Path

import mlx.nn as nn
from mlx_lm.utils import load_model

class Port(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = load_model(Path({folder!r}))[0]

    def __call__(self, input_ids):
        return {{"logits": self.model(input_ids){fault}}}

def build():
    return Port()
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Return a Llama in bfloat16, and its MLX directory."""
    import ml_dtypes
    from safetensors.numpy import load_file, save_file

    root = tmp_path_factory.mktemp("port")
    hub = make("llama", root / "hub").folder
    weights = load_file(hub / "model.safetensors")
    narrow = {name: a.astype(ml_dtypes.bfloat16) for name, a in weights.items()}
    save_file(narrow, hub / "model.safetensors", metadata={"format": "pt"})
    jobs.convert(str(hub), root / "mlx", "mlx", options=jobs.Options(check="none"))
    return hub, root / "mlx"


@pytest.mark.heavy
@pytest.mark.parametrize(("fault", "code", "status"), [("", 0, "PASS"), (" * 1.001", 1, "DIFFERS")])
def test_a_port_with_weights_in_bfloat16(folders, tmp_path, monkeypatch, fault, code, status):
    hub, mlx = folders
    name = f"port_{status.lower()}"
    (tmp_path / f"{name}.py").write_text(PORT.format(folder=str(mlx), fault=fault))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done = CliRunner().invoke(
        main, ["parity", "check", str(hub), f"{name}:build", "--quick", "--json"]
    )
    assert done.exit_code == code, done.output
    assert json.loads(done.stdout)["status"] == status
