"""Causal language models exported with their keys and values as states, by the command line."""

import json
import sys
from functools import partial

import pytest
import transformers
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.contents import constants
from weighbridge.converters.captures.mlprogram.package import read_package
from weighbridge.converters.coreml.options import PackageOptions
from weighbridge.tests.support.coreml.greedy import require_same_text
from weighbridge.tests.support.coreml.models import MODELS, make
from weighbridge.tests.support.coreml.usage import run_lines

FOUND = "PASS" if sys.platform == "darwin" else "PASS-REFERENCE"
FAMILIES = ("GPT-2", "Gemma", "Gemma 2", "Gemma 3", "Llama", "Qwen3")
TWO = "--multifunction"
CASES = [*((it,) for it in FAMILIES), ("GPT-2", TWO), ("Gemma 3", TWO), ("Llama", TWO)]
pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments):
    """Run the command line; return the exit code, the verdict and all that was said."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    told = json.loads(result.stdout)
    return result.exit_code, told.get("verdict") or told, result.stdout


@pytest.fixture(
    scope="module",
    params=[pytest.param(it, marks=pytest.mark.heavy, id=" ".join(it)) for it in CASES],
)
def exported(request, tmp_path_factory):
    """Return a family's directory, its stateful package, and what the export said."""
    folder, (family, *options) = tmp_path_factory.mktemp("stateful"), request.param
    source, target = make(family, folder / "source"), folder / "m.mlpackage"
    code, verdict, told = run("export", "coreml", source, target, "--stateful", *options)
    assert code == 0, told
    return getattr(transformers, MODELS[family].model), source, target, verdict


def test_one_reading_and_reading_piece_by_piece_give_what_the_source_gives(exported):
    *_, verdict = exported
    stages = {stage["name"]: stage["status"] for stage in verdict["stages"]}
    assert verdict["status"] == FOUND
    assert [stages[name] for name in ("structure", "decoding", "precision")] == ["pass"] * 3


def test_64_greedy_tokens_are_those_of_transformers(exported):
    kind, source, target, _ = exported
    program = load_program(target)
    require_same_text(kind, source, partial(program.run, state=program.new_state()))


def test_a_stateful_package_is_for_the_first_system_with_states_and_names_them(exported):
    package = read_package(exported[2])
    assert package.spec.specificationVersion == 9  # iOS 18
    for function in package.spec.description.functions or [package.spec.description]:
        names = {
            f"{part}_{layer}"
            for part in ("keys", "values")
            for layer in range(len(function.state) // 2)
        }
        assert {state.name for state in function.state} == names
        assert [port.name for port in function.input] == ["input_ids", "position"]


def test_the_weights_of_a_stateful_package_come_back(exported, tmp_path):
    _, source, target, _ = exported
    code, _, told = run("convert", "coreml-to-torch", target, tmp_path / "back", "--like", source)
    assert code == 0, told


@pytest.mark.heavy
def test_two_functions_hold_weights_once_and_a_check_runs_both(tmp_path):
    source = make("Llama", tmp_path / "source")
    one, two = tmp_path / "one.mlpackage", tmp_path / "two.mlpackage"
    run("export", "coreml", source, one, "--stateful", "--check", "none")
    run("export", "coreml", source, two, "--stateful", TWO, "--check", "none")
    weights = [it / "Data/com.apple.CoreML/weights/weight.bin" for it in (one, two)]
    sizes = [it.stat().st_size for it in weights]
    assert sizes[1] <= sizes[0]
    program = load_program(two)
    assert (program.function, program.single.function) == ("prefill", "decode")
    assert program.single.inputs["input_ids"].shape == (1, 1)
    shown = json.loads(CliRunner().invoke(main, ["inspect", str(two), "--json"]).stdout)
    assert shown["functions"] == ["prefill", "decode"]
    assert "decode: input_ids: int32 [1, 1]" in shown["inputs"]
    stored = sum(it.nbytes for it in constants(read_package(two), "prefill"))
    assert stored < sum(shown["constants"].values()) < 1.1 * stored  # weights are counted once
    run_lines(shown)
    spoil_decode(two)
    code, verdict, told = run("parity", "check", source, two)
    assert code == 1, told
    failed = [it["name"] for it in verdict["stages"] if it["status"] == "fail"]
    assert failed[0] == "decoding"


def spoil_decode(path):
    """Let the function for one token of the package at PATH add where it should multiply."""
    package = read_package(path)
    function = package.spec.mlProgram.functions["decode"]
    block = function.block_specializations[function.opset]
    operation = next(it for it in reversed(block.operations) if it.type == "mul")
    operation.type = "add"
    file = package.weights.parent / "model.mlmodel"
    file.write_bytes(package.spec.SerializeToString())


@pytest.mark.heavy
def test_states_are_half_precision_and_float32_is_refused(tmp_path):
    source = make("Llama", tmp_path / "source")
    options = ("--stateful", "--precision", "float32")
    code, _, told = run("export", "coreml", source, tmp_path / "m.mlpackage", *options)
    assert code == 3
    assert "Core ML keeps states in float16" in told
    assert not (tmp_path / "m.mlpackage").exists()


@pytest.mark.parametrize("family", ["BERT", "ViT", "T5"])
def test_what_continues_no_text_is_refused(family, tmp_path):
    source = make(family, tmp_path / "source")
    code, _, told = run("export", "coreml", source, tmp_path / "m.mlpackage", "--stateful")
    assert code == 3
    assert "its one input is token ids, not" in told


def test_what_keeps_more_than_keys_and_values_is_refused(tmp_path):
    config = transformers.MambaConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4, time_step_rank=2
    )
    transformers.MambaForCausalLM(config).save_pretrained(tmp_path / "source")
    target = tmp_path / "m.mlpackage"
    code, _, told = run("export", "coreml", tmp_path / "source", target, "--stateful")
    assert code == 3
    assert "without --stateful" in told


def test_only_packages_with_states_need_the_system_that_has_them():
    assert PackageOptions().oldest == "iOS17"
    assert PackageOptions(stateful=True).oldest == "iOS18"
