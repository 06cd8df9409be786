"""A weight of which a package holds what was computed, as Mamba's decay, comes back as one that makes the same."""

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from torch import nn

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.records import without_record


class Decaying(nn.Module):
    """A gain by channel that is kept as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.A_log = nn.Linear(16, 16), nn.Parameter(torch.randn(16))

    def forward(self, x):
        return self.layer(x) * -torch.exp(self.A_log)


def decaying() -> modules.Built:
    """Return the model, with what it takes."""
    torch.manual_seed(0)
    return Decaying(), modules.signature({"x": ("float32", "hidden")}, 16)


def invoke(*words: object) -> str:
    result = CliRunner().invoke(main, [str(it) for it in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize(
    ("precision", "record", "like"),
    [
        ("mixed", "record", "config"),
        ("mixed", "none", "config"),
        ("mixed", "record", "weights"),
        pytest.param("float32", "record", "config", marks=pytest.mark.heavy),
        pytest.param("float32", "none", "config", marks=pytest.mark.heavy),
    ],
)
def test_a_power_comes_back_as_what_makes_it_to_the_bit(precision, record, like, tmp_path):
    module, _ = decaying()
    package, model, code = tmp_path / "m.mlpackage", tmp_path / "model", f"{__name__}:decaying"
    model.mkdir()
    (model / "config.json").write_text("{}")
    invoke("export", "coreml", code, package, "--precision", precision, "--check", "none")
    wanted = {name: it.numpy() for name, it in module.state_dict().items()}
    if like == "weights":
        save_file(wanted, model / "model.safetensors", metadata={"format": "pt"})
    if record == "none":
        without_record(package)
    back = ("convert", "coreml-to-torch", package, tmp_path / "back", "--like", model)
    assert "PASS" in invoke(*back, "--trust-code", code)
    found = load_file(tmp_path / "back/model.safetensors")["A_log"]
    if (like, record) == ("weights", "record"):
        assert found.tobytes() == wanted["A_log"].tobytes()
    made = -np.exp(found.astype(np.float32))
    held = load_program(package).constants().values()
    assert any(np.array_equal(it.ravel(), made.astype(it.dtype)) for it in held if it.size == 16)
