"""Packages with states and without a record of ours: checked, brought back, or refused in one line."""

import json

import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.package import read_package
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.models import make
from weighbridge.tests.support.coreml.records import without_record
from weighbridge.tests.support.coreml.states import decoder

SOURCE = f"{modules.__name__}:gated"
pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments):
    """Run the command line; return the exit code and all that was said."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    return result.exit_code, result.output


def judged(package, source=SOURCE):
    """Check PACKAGE; return the exit code, the verdict and the status of each stage."""
    code, told = run("parity", "check", source, package, "--json")
    verdict = json.loads(told[told.index("{") :])
    return code, verdict["status"], {it["name"]: it["status"] for it in verdict["stages"]}


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return a decoder made by Apple's recipe."""
    return decoder(modules.gated()[0], tmp_path_factory.mktemp("states") / "m.mlpackage")


def test_a_decoder_of_apples_recipe_is_read_at_once_and_piece_by_piece(package):
    code, status, stages = judged(package)
    assert (code, status) == (0, "PASS-REFERENCE"), stages
    assert [stages[name] for name in ("structure", "decoding", "precision")] == ["pass"] * 3


def test_a_decoder_that_writes_a_place_too_far_differs(tmp_path):
    code, status, _ = judged(decoder(modules.gated()[0], tmp_path / "m.mlpackage", behind=1))
    assert (code, status) == (1, "DIFFERS")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("family", "options"),
    [("GPT-2", ()), ("Llama", ("--upper", "sequence=64")), ("Llama", ("--multifunction",))],
)
def test_a_package_of_ours_whose_record_is_lost_is_checked_and_comes_back(
    family, options, tmp_path
):
    source, package = make(family, tmp_path / "source"), tmp_path / "m.mlpackage"
    run("export", "coreml", source, package, "--stateful", "--check", "none", *options)
    code, status, stages = judged(without_record(package), source)
    assert (code, status, stages["decoding"]) == (0, "PASS-REFERENCE", "pass"), stages
    words = ("convert", "coreml-to-torch", package, tmp_path / "back", "--like", source)
    code, told = run(*words)
    assert code == 0, told
    was, now = (load_file(tmp_path / it / "model.safetensors") for it in ("source", "back"))
    assert was.keys() == now.keys()
    assert all((now[name] == was[name].astype(now[name].dtype)).all() for name in was)


def test_states_of_no_known_use_are_refused_in_one_line(package, tmp_path):
    opened = read_package(package)
    (mask,) = (it for it in opened.spec.description.input if it.name == "causalMask")
    mask.type.multiArrayType.shapeRange.sizeRanges.add(lowerBound=1, upperBound=1)
    (model,) = package.rglob("*.mlmodel")
    before = model.read_bytes()
    model.write_bytes(opened.spec.SerializeToString())
    try:
        code, told = run("parity", "check", SOURCE, package)
    finally:
        model.write_bytes(before)
    assert code == 3
    assert "it keeps states (keyCache, valueCache)" in told
    assert "export coreml --stateful" in told
