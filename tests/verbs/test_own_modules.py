"""Somebody's own torch module and port, which say nothing of their inputs, through the verbs."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from mlx.utils import tree_flatten
from safetensors.torch import save_file

from weighbridge.cli import main
from weighbridge.converters.planning import opening as models

CODE = """
import numpy as np, torch
import mlx.core as mx
import mlx.nn as layers

class TorchSide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x, scale):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.mT, -1) @ v) * scale[:, None, None]

class Port(layers.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (layers.Linear(8, 8) for _ in range(4))

    def __call__(self, x, scale):
        mixed = mx.softmax(self.q(x) @ self.k(x).swapaxes(-1, -2), -1) @ self.v(x)
        return self.o(mixed) * scale[:, None, None]

def build():
    torch.manual_seed(0)
    return TorchSide()

def bare():
    return Port()

def port():
    state, port = build().state_dict(), Port()
    cut = {
        f"{name}.{kind}": part
        for kind in ("weight", "bias")
        for name, part in zip("qkv", state[f"qkv.{kind}"].chunk(3), strict=True)
    }
    cut |= {f"o.{kind}": state[f"out.{kind}"] for kind in ("weight", "bias")}
    port.load_weights([(name, mx.array(it.numpy())) for name, it in cut.items()])
    return port

def Needing(size):
    return TorchSide()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text(CODE)
    draw = np.random.default_rng(0).normal
    for name, rows in (("one", (5,)), ("two", (5, 7))):
        arrays = {}
        for row in rows:
            x = draw(size=(2, row, 8)).astype(np.float32)
            probe = {"x": x, "scale": np.ones(2, np.float32)}
            arrays |= {f"p{row}/{key}" if len(rows) > 1 else key: it for key, it in probe.items()}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    np.savez(tmp_path / "wrong.npz", y=np.ones((2, 5, 8), np.float32))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_code", "tied_code"):
        sys.modules.pop(name, None)


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


@pytest.mark.parametrize("inputs", ["one.npz", "two.npz"])
def test_own_inputs_say_what_a_module_takes(own, inputs):
    sides = ("own_code:build", "own_code:port", "--inputs", inputs)
    assert "PASS" in invoke("parity", "check", *sides).stdout
    assert invoke("map", "infer", "own_code:build", "own_code:bare", "m.wmap", *sides[2:]).stdout
    said = invoke("parity", "check", "own_code:build", "own_code:bare", *sides[2:], code=1).stdout
    assert "were they loaded?" in " ".join(said.split())


def test_a_golden_of_own_inputs_is_recorded_and_not_called_unverified(own):
    made = invoke("parity", "record", "own_code:build", "golden", "--inputs", "one.npz").stdout
    assert "recorded" in made
    assert "UNVERIFIED" not in made


def test_a_golden_without_its_source_explains_thirds_of_a_bias(own):
    invoke("parity", "record", "own_code:build", "golden", "--inputs", "one.npz")
    invoke("parity", "check", "golden", "own_code:port")


def test_inputs_that_a_module_does_not_take_are_refused_in_one_line(own):
    said = invoke(
        "parity", "check", "own_code:build", "own_code:port", "--inputs", "wrong.npz", code=3
    )
    assert said.stderr.splitlines()[-1].startswith(
        "Error: own_code:build does not run on wrong.npz (y)"
    )
    said = invoke("parity", "check", "own_code:build", "own_code:port", code=3)
    assert "--inputs FILE.npz" in said.stderr


def test_a_directory_of_a_port_is_refused_with_both_ways_to_name_its_code(own):
    state = dict(import_module("own_code").port().parameters())
    invoke("parity", "record", "own_code:build", "golden", "--inputs", "one.npz")
    Path("there").mkdir()
    mx.save_safetensors("there/model.safetensors", dict(tree_flatten(state)), {"format": "mlx"})
    said = invoke("parity", "check", "golden", "there", code=3).stderr.splitlines()[-1]
    assert "--trust-code MODULE:FUNCTION" in said
    assert "--candidate-code MODULE:FUNCTION" in said
    invoke("parity", "check", "golden", "there", "--candidate-code", "own_code:bare")


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("own_code:port", "the torch side comes first"),
        ("own_code:Needing", "called without arguments"),
    ],
)
def test_wrong_references_are_refused_with_what_to_do(own, reference, says):
    said = invoke("parity", "check", reference, "own_code:port", "--inputs", "one.npz", code=3)
    assert said.stderr.splitlines()[-1].startswith("Error: ")
    assert says in said.stderr


def test_guesses_are_told_in_words_and_not_all_of_them(own):
    said = invoke("map", "infer", "own_code:build", "own_code:bare", "m.wmap", code=4).stdout
    assert "Guess(" not in said
    assert "--inputs FILE.npz" in said


@pytest.mark.parametrize("name", ["emb", "wte"])
def test_a_directory_with_an_own_architecture_and_a_tied_head_goes_to_mlx_and_back(own, name):
    """Of the embedding and its head, `save_model` keeps the name that comes first."""
    (own / "tied_code.py").write_text(TIED.replace("self.emb", f"self.{name}"))
    import_module("tied_code")  # writes its files
    invoke("map", "infer", "tied_code:build", "tied_code:bare", "tied.wmap", "--inputs", "ids.npz")
    refused = invoke(
        "convert", "torch-to-mlx", "tied_code:build", "x", "--map", "tied.wmap", code=3
    )
    assert "DIR --trust-code tied_code:build" in refused.stderr
    ours = ("--inputs", "ids.npz", "--trust-code", "tied_code:build")
    theirs = ("--map", "tied.wmap", "--candidate-code", "tied_code:bare")
    made = invoke("convert", "torch-to-mlx", "torch", "mlx", *ours, *theirs)
    assert "PASS" in made.stdout
    assert "PASS" in invoke("convert", "mlx-to-torch", "mlx", "back", *ours).stdout


def test_what_can_follow_is_a_command_that_takes_code(own):
    said = invoke("inspect", "own_code:build").stdout
    assert "weighbridge parity check own_code:build PORT --inputs FILE.npz" in said
    assert "weighbridge convert" not in said


TIED = """
import pathlib
import numpy as np, torch
import mlx.nn as layers
from safetensors.torch import save_model

class TorchSide(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.emb, self.mid = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.emb.weight

    def forward(self, ids):
        return self.head(torch.nn.functional.gelu(self.mid(self.emb(ids))))

class Port(layers.Module):
    def __init__(self):
        super().__init__()
        self.table, self.inner = layers.Embedding(20, 8), layers.Linear(8, 8)

    def __call__(self, ids):
        return self.table.as_linear(layers.gelu(self.inner(self.table(ids))))

def build():
    return TorchSide()

def bare():
    return Port()

pathlib.Path("torch").mkdir(exist_ok=True)
save_model(build(), "torch/model.safetensors")
np.savez("ids.npz", ids=np.arange(20).reshape(2, 10))
"""


@pytest.mark.parametrize(("name", "kind"), [("encoder", "bert"), ("causal", "qwen3")])
def test_a_model_of_transformers_that_a_factory_returns_says_what_it_takes(name, kind):
    own = f"weighbridge.tests.support.transformers_models:{name}"
    source = Path(__file__).parents[2] / "fixtures" / kind / "model"
    asked = ["parity", "check", str(source), own, "--quick", "--json"]
    result = CliRunner().invoke(main, asked)
    assert json.loads(result.stdout)["status"] == "PASS", result.output[-400:]


def test_a_model_of_transformers_without_its_head_gives_hidden_states():
    found = models.open("weighbridge.tests.support.transformers_models:headless").signature
    assert [it.name for it in found.outputs] == ["last_hidden_state"]


def test_a_directory_goes_back_by_the_map_that_it_was_checked_with(own):
    weights = import_module("own_code").build().state_dict()
    Path("source").mkdir()
    save_file(weights, "source/model.safetensors")
    Path("source/config.json").write_text("{}")
    code = ("--trust-code", "own_code:build", "--inputs", "one.npz")
    invoke("map", "infer", "own_code:build", "own_code:bare", "m.wmap", *code[2:])
    asked = (*code, "--map", "m.wmap")
    there = ("convert", "torch-to-mlx", "source", "there", "--candidate-code", "own_code:bare")
    invoke(*there, *asked)
    assert (
        "native MLX module Port"
        in invoke("convert", "mlx-to-torch", "there", "back", *asked).stdout
    )
    other = Path("m.wmap").read_text().replace("q.weight", "?").replace("k.weight", "q.weight")
    Path("other.wmap").write_text(other.replace("?", "k.weight"))
    words = ("convert", "mlx-to-torch", "there", "other", *code, "--map", "other.wmap")
    assert "only its own map" in " ".join(invoke(*words, code=4).stdout.split())
