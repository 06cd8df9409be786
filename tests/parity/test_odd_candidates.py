"""Models that run unlike others, checked through the verb: each ends in a verdict or in one line."""

from __future__ import annotations

import json
from textwrap import dedent

import pytest
import torch
from click.testing import CliRunner
from transformers import ConvNextConfig, ConvNextModel, Qwen3Config, Qwen3Model

import weighbridge
from weighbridge.cli import main
from weighbridge.errors import UsersCodeError

MODULE = """
    import torch
    from torch import nn
    from weighbridge.converters.models import Port, Signature

    PORTS = [Port(name, "float32", ("batch", 8, 6), "hidden", (("batch", 4),)) for name in "xy"]
    SIGNATURE = Signature((PORTS[0],), (PORTS[1],))

    class Net(nn.Module):
        def __init__(self, way):
            super().__init__()
            torch.manual_seed(0)
            self.way, self.first, self.second = way, nn.Linear(6, 6), nn.Linear(6, 6)
            self.dropout = nn.Dropout()

        def forward(self, x):
            way = {"plain": plain, "batch": of_the_batch, "raising": raising}[self.way]
            return self.second(self.dropout(way(self.first(x))))

    def plain(hidden):
        return hidden.tanh()

    def of_the_batch(hidden):
        return hidden.amax((0, 1), keepdim=True).ceil().expand_as(hidden)

    def raising(hidden):
        raise ValueError("no such size")

    def build():
        return Net("plain"), SIGNATURE

    def bare():
        return Net("plain")

    def batch():
        return Net("batch"), SIGNATURE

    def bad():
        return Net("raising"), SIGNATURE
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"odd_{tmp_path.name}.py").write_text(dedent(MODULE))
    return f"odd_{tmp_path.name}"


def run(*arguments):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def verdict_of(reference, candidate):
    return json.loads(run("parity", "check", reference, candidate, "--json").stdout)


def perturbed(model, seed=0):
    """Return MODEL with weights of realistic gain, none of them zero or one."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        fan = parameter[0].numel() if parameter.ndim > 1 else 100
        noise = torch.randn(parameter.shape, generator=generator) * 1.5 / fan**0.5
        parameter.data = noise if parameter.ndim > 1 else parameter.data + noise
    return model.eval()


@pytest.mark.parametrize(("reference", "candidate"), [("build", "batch"), ("batch", "build")])
def test_rows_that_depend_on_one_another_end_in_a_verdict(code, reference, candidate):
    found = verdict_of(f"{code}:{reference}", f"{code}:{candidate}")
    assert found["status"] == "DIFFERS"
    assert not [line for line in found["provenance"]["not_checked"] if "failed" in line]


def test_what_blame_raises_is_a_line_and_costs_no_verdict(code, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr("weighbridge.parity.blame.locating.blame", broken)
    found = verdict_of(f"{code}:build", f"{code}:batch")
    assert found["status"] == "DIFFERS"
    assert any("ZeroDivisionError" in line for line in found["provenance"]["not_checked"])


@pytest.mark.parametrize("pair", [("build", "bad"), ("bad", "build")], ids=["candidate", "source"])
def test_a_forward_that_raises_is_one_error_of_ours_in_python_too(code, pair):
    with pytest.raises(UsersCodeError, match=r"ValueError: no such size"):
        weighbridge.check(*(f"{code}:{name}" for name in pair))


def test_a_source_of_transformers_that_raises_is_told_in_one_line(tmp_path, monkeypatch):
    def forward(self, *_, **__):
        raise KeyError("logits")

    perturbed(tiny_qwen3()).save_pretrained(tmp_path / "model")
    monkeypatch.setattr(Qwen3Model, "forward", forward)
    result = run("parity", "check", tmp_path / "model", tmp_path / "model")
    assert result.exit_code == 3
    assert "does not run: KeyError: 'logits'" in result.output


def tiny_qwen3():
    return Qwen3Model(
        Qwen3Config(
            vocab_size=31, hidden_size=16, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, head_dim=4, intermediate_size=20, max_position_embeddings=40,
        )
    )  # fmt: skip


@pytest.mark.heavy
def test_a_language_model_without_a_head_is_compared_by_its_hidden_states(tmp_path):
    perturbed(tiny_qwen3()).save_pretrained(tmp_path / "base")
    result = run("convert", "torch-to-mlx", tmp_path / "base", tmp_path / "mlx", "--json")
    found = json.loads(result.stdout)["verdict"]
    stages = {stage["name"]: stage for stage in found["stages"]}
    assert stages["structure"]["status"] == "pass"
    rows = stages["structure"]["figures"]["rows"]
    assert {row["output"] for row in rows} == {"last_hidden_state"}


@pytest.mark.heavy
@pytest.mark.parametrize("sizes", [[8, 16], [8, 12, 16]], ids=["another width", "one more"])
def test_a_network_of_other_stages_differs_and_blame_does_not_fail(tmp_path, sizes):
    for name, widths in {"one": [8, 12], "other": sizes}.items():
        config = ConvNextConfig(
            hidden_sizes=widths, depths=[1] * len(widths), num_stages=len(widths), image_size=32
        )
        perturbed(ConvNextModel(config)).save_pretrained(tmp_path / name)
    found = verdict_of(tmp_path / "one", tmp_path / "other")
    assert found["status"] == "DIFFERS"
    assert not [line for line in found["provenance"]["not_checked"] if "failed" in line]


def test_a_function_without_a_signature_takes_the_others(code):
    assert verdict_of(f"{code}:build", f"{code}:bare")["status"] == "PASS"
    assert verdict_of(f"{code}:bare", f"{code}:build")["status"] == "PASS"


def test_where_neither_has_one_three_lines_say_how_to_write_it(code):
    result = run("parity", "check", f"{code}:bare", f"{code}:bare")
    assert result.exit_code == 3
    assert "import Port, Signature" in result.output
    assert "return module, Signature(" in result.output


def test_train_mode_is_reported_by_the_verb(code):
    found = verdict_of(f"{code}:build", f"{code}:build")
    assert [line for line in found["provenance"]["not_checked"] if "train mode" in line]
