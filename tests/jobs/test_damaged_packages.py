"""Core ML packages that Core ML would not load: refused in one line by every verb that reads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.messages import Model_pb2
from weighbridge.tests.support.shallow import shallow

PACKAGE = "m.mlpackage"
SPECIFICATION = f"{PACKAGE}/Data/com.apple.CoreML/model.mlmodel"
MANIFEST = f"{PACKAGE}/Manifest.json"
VERBS = (
    ("inspect", PACKAGE),
    ("parity", "check", "bert", PACKAGE, "--quick"),
    ("convert", "coreml-to-torch", PACKAGE, "out", "--like", "bert", "--check", "none"),
    ("convert", "coreml-to-mlx", PACKAGE, "out", "--like", "bert", "--check", "none"),
)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Return a folder with a model and its package."""
    folder = tmp_path_factory.mktemp("good")
    shallow("bert", folder)
    words = ("export", "coreml", folder / "bert", folder / PACKAGE, "--check", "none")
    assert not CliRunner().invoke(main, [*map(str, words)]).exit_code
    return folder


@pytest.fixture(autouse=True)
def place(good, tmp_path, monkeypatch):
    """Return a folder with both, in which the verbs run."""
    for name in ("bert", PACKAGE):
        shutil.copytree(good / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(place, said):
    """Run every verb, each of which refuses in one line that has what is SAID and leaves nothing."""
    before = sorted(place.rglob("*"))
    for verb in VERBS:
        result = CliRunner().invoke(main, [*verb])
        assert result.exit_code == 3, (verb, result.output)
        (line,) = [line for line in result.stderr.splitlines() if line.strip()]
        assert line.startswith(f"Error: {PACKAGE}: ")
        assert said in line
    assert sorted(place.rglob("*")) == before


def function(spec):
    return spec.mlProgram.functions["main"]


def block(spec):
    return function(spec).block_specializations[function(spec).opset]


def turn(spec):
    del spec.description.input[0].type.multiArrayType.shape[:]


SPECIFICATIONS = {
    "no function": (lambda it: it.mlProgram.functions.clear(), "holds no function"),
    "another system": (
        lambda it: setattr(function(it), "opset", "CoreML99"),
        "main has no program for 'CoreML99'",
    ),
    "no inputs": (
        lambda it: it.description.ClearField("input"),
        "main takes attention_mask, which is not described",
    ),
    "an input renamed": (
        lambda it: setattr(it.description.input[0], "name", "words"),
        "main takes input_ids, which is not described",
    ),
    "one input more": (
        lambda it: setattr(it.description.input.add(), "name", "words"),
        "main does not take words, which is described",
    ),
    "an input of text": (
        lambda it: it.description.input[0].type.stringType.SetInParent(),
        "main takes input_ids in another shape than described",
    ),
    "an input of one number": (turn, "main takes input_ids in another shape than described"),
    "an output renamed": (
        lambda it: setattr(it.description.output[0], "name", "words"),
        "main does not give words, which is described",
    ),
    "no outputs": (
        lambda it: block(it).ClearField("outputs"),
        "main does not give last_hidden_state, which is described",
    ),
}


@pytest.mark.parametrize("case", SPECIFICATIONS)
def test_a_program_that_is_not_as_described_is_refused_by_name(case, place):
    """Core ML loads a package by its description: outputs of the program alone prove nothing."""
    change, said = SPECIFICATIONS[case]
    spec = Model_pb2.Model()
    spec.ParseFromString(Path(SPECIFICATION).read_bytes())
    change(spec)
    Path(SPECIFICATION).write_bytes(spec.SerializeToString())
    refused(place, said)


def test_weights_that_the_manifest_does_not_name_are_refused(place):
    """By the manifest alone coremltools finds them."""
    told = json.loads(Path(MANIFEST).read_text())
    root = told["rootModelIdentifier"]
    told["itemInfoEntries"] = {root: told["itemInfoEntries"][root]}
    Path(MANIFEST).write_text(json.dumps(told))
    refused(place, "Manifest.json does not name its weights")
