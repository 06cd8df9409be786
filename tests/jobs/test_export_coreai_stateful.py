"""Causal language models as Core AI assets whose keys and values are states, in the vendor's runtime."""

import json
from itertools import count

import pytest
import transformers
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.checkpoints.formats.coreai.asset import Asset
from weighbridge.tests.support.coreml.assets import exchanged
from weighbridge.tests.support.coreml.greedy import require_same_text
from weighbridge.tests.support.coreml.models import MODELS, make

pytest.importorskip("coreai", reason="Core AI has no package for this machine")
pytestmark = pytest.mark.filterwarnings("ignore")
CASES = ("Llama", "GPT-2", "Gemma 3", "Qwen3")


def run(*arguments, code=0):
    """Run the command line and return what it printed."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module", params=[pytest.param(it, marks=pytest.mark.heavy) for it in CASES])
def exported(request, tmp_path_factory):
    """Return a family's name, its directory, its asset, and the verdict of the export."""
    folder = tmp_path_factory.mktemp("states")
    source, target = make(request.param, folder / "source"), folder / "m.aimodel"
    found = run("export", "coreai", source, target, "--stateful")
    return request.param, source, target, found["verdict"]


def test_it_passes_at_once_and_piece_by_piece_and_goes_back(exported, tmp_path):
    _, source, target, verdict = exported
    stages = {stage["name"]: stage["status"] for stage in verdict["stages"]}
    assert verdict["status"] == "PASS"
    assert [stages["structure"], stages["decoding"]] == ["pass", "pass"]
    assert run("inspect", target)["states"][:2] == ["keys_0", "values_0"]
    back = run("convert", "coreai-to-torch", target, tmp_path / "back", "--like", source)
    assert back["verdict"]["status"] == "PASS"


def test_64_greedy_tokens_are_those_of_transformers(exported):
    family, source, target, _ = exported
    process, calls = Asset(target).process, count()
    kind = getattr(transformers, MODELS[family].model)
    require_same_text(kind, source, lambda part: process.ask("run", part, on=next(calls) > 0))


@pytest.mark.heavy
def test_a_fault_inside_one_with_states_is_named(tmp_path):
    source, target = make("Llama", tmp_path / "source"), tmp_path / "m.aimodel"
    run("export", "coreai", source, target, "--stateful")
    names = (f"model.layers.1.mlp.{it}_proj.weight" for it in ("gate", "up"))
    found = run(
        "parity", "check", source, exchanged(target, tmp_path / "x.aimodel", *names), code=1
    )
    assert {it["kind"] for it in found["faults"]} == {"exchanged"}


@pytest.mark.heavy
def test_in_half_precision_the_states_are_too(tmp_path):
    source = make("Llama", tmp_path / "source")
    options = ("--stateful", "--precision", "fp16")
    found = run("export", "coreai", source, tmp_path / "m.aimodel", *options)
    assert found["verdict"]["status"] == "PASS"


def test_what_continues_no_text_is_refused(tmp_path):
    source = make("ViT", tmp_path / "source")
    found = run("export", "coreai", source, tmp_path / "m.aimodel", "--stateful", code=3)
    assert "its one input is token ids, not pixel_values" in found["error"]["message"]
    assert not (tmp_path / "m.aimodel").exists()
