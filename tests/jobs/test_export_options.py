"""Options of packages, given on the command line and read back from the file."""

import json
import sys

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.features import flexible
from weighbridge.converters.captures.mlprogram.package import read_package
from weighbridge.tests.support.coreml.families import HERE
from weighbridge.tests.support.coreml.models import make
from weighbridge.tests.support.coreml.usage import run_lines

SOURCE = f"{HERE}.modules:heads8"
FOUND = "PASS" if sys.platform == "darwin" else "PASS-REFERENCE"
VERSIONS = {"iOS15": 6, "iOS16": 7, "iOS17": 8, "iOS18": 9, "iOS26": 10}  # of the specification
pytestmark = pytest.mark.filterwarnings("ignore")


def export(target, *options, source=SOURCE):
    """Export SOURCE to TARGET; return the exit code, the status and all that was said."""
    arguments = ["export", "coreml", source, target, *options, "--json"]
    result = CliRunner().invoke(main, [*map(str, arguments)])
    told = json.loads(result.stdout)
    return result.exit_code, (told.get("verdict") or told).get("status"), result.stdout


def described(target):
    """Return the description in the specification of the package at TARGET."""
    return read_package(target).spec.description


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Return a package with other names, and with all that it can say of itself."""
    target = tmp_path_factory.mktemp("named") / "m.mlpackage"
    options = (
        *("--name", "ids=tokens", "--name", "y=features", "--target", "iOS15"),
        *("--author", "A. Author", "--description", "Features of ids.", "--license", "MIT"),
        *("--release", "1.2", "--compute-units", "ane", "--upper", "sequence=16"),
        *("--precision", "fp16"),
    )
    code, status, told = export(target, *options)
    assert (code, status) == (0, FOUND), told
    return target


def test_inputs_and_outputs_have_the_names_that_were_asked_for(named):
    found = described(named)
    assert [port.name for port in found.input] == ["tokens"]
    assert [port.name for port in found.output] == ["features"]


def test_a_package_says_who_made_it_and_what_it_is(named):
    about = described(named).metadata
    assert (about.author, about.shortDescription) == ("A. Author", "Features of ids.")
    assert (about.license, about.versionString) == ("MIT", "1.2")


def test_compute_units_are_a_note_in_swifts_words(named):
    assert described(named).metadata.userDefined["computeUnits"] == "cpuAndNeuralEngine"


def test_inspect_shows_what_a_caller_gives_and_gets_and_lines_that_run_it(named, capsys):
    result = CliRunner().invoke(main, ["inspect", str(named), "--json"])
    facts = json.loads(result.stdout)
    assert facts["inputs"] == ["tokens: int32 [batch 1..32, sequence 1..16]"]
    assert facts["outputs"] == ["features: float32 [batch, sequence, 16]"]
    assert facts["about"]["author"] == "A. Author"
    assert facts["compute units"] == "cpuAndNeuralEngine"
    run_lines(facts)
    assert "features" in capsys.readouterr().out


@pytest.mark.heavy
@pytest.mark.parametrize("system", VERSIONS)
def test_a_package_is_for_the_system_that_was_asked_for(system, tmp_path):
    target = tmp_path / "m.mlpackage"
    assert export(target, "--target", system)[:2] == (0, FOUND)
    assert read_package(target).spec.specificationVersion == VERSIONS[system]


@pytest.mark.heavy
@pytest.mark.parametrize("family", ["BERT", "RoBERTa"])
@pytest.mark.parametrize(
    ("sizes", "wanted", "version"),
    [
        (("batch=1", "sequence=16,32,64"), (1, "16|32|64"), 9),
        (("sequence=16",), ("1..32", 16), 8),
        (("batch=2", "sequence=16"), (2, 16), 8),
    ],
)
def test_sizes_are_those_of_the_list_and_no_others(family, sizes, wanted, version, tmp_path):
    target, source = tmp_path / "m.mlpackage", make(family, tmp_path / "source")
    options = [word for size in sizes for word in ("--sizes", size)]
    assert export(target, *options, source=source)[:2] == (0, FOUND)
    for port in described(target).input:
        array = port.type.multiArrayType
        assert flexible(array, tuple(map(int, array.shape))) == wanted
    assert read_package(target).spec.specificationVersion == version


@pytest.mark.heavy
def test_one_row_is_checked_in_a_package_that_takes_one(tmp_path):
    source = make("BERT", tmp_path / "source")
    assert export(tmp_path / "m.mlpackage", "--upper", "batch=1", source=source)[:2] == (0, FOUND)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--name", "no_such=x"), "no input or output no_such; there are ids, y"),
        (("--name", "ids=y"), "y would be the name of two"),
        (("--name", "ids=1st"), "1st is no name for an input or output"),
        (("--sizes", "sequence=8,16"), "all need one: --sizes batch=1"),
        (("--sizes", "sequence=8,8"), "sizes of sequence should be positive and differ"),
        (("--sizes", "sequence=8", "--upper", "sequence=16"), "sequence has --sizes"),
        (("--sizes", "no_such=8"), "no dimension no_such"),
        (("--stateful", "--target", "iOS17"), "iOS17 has no states"),
        (("--stateful", "--sizes", "sequence=8"), "leave --sizes out"),
        (("--multifunction",), "--multifunction goes with --stateful"),
        (
            ("--stateful", "--multifunction", "--quantize", "int8"),
            "coremltools compresses no package of two functions: leave out --multifunction, or int8",
        ),
        (
            ("--quantize", "int8", "--target", "iOS15"),
            "int8: runs on iOS16 and later, not on iOS15",
        ),
        (
            ("--quantize", "int4", "--target", "iOS17"),
            "int4 in blocks of 32: runs on iOS18 and later",
        ),
        (("--prune", "0.4", "--palettize", "4"), "no weight has 2,048 numbers"),
        (("--sizes", "sequence=8,9", "--sizes", "batch=1", "--target", "iOS17"), None),
    ],
)
def test_options_that_cannot_be_are_refused_in_words(options, message, tmp_path):
    target = tmp_path / "m.mlpackage"
    if message is None:  # one input may have a list of sizes on every system
        assert export(target, *options, "--check", "none")[0] == 0
        return
    code, _, told = export(target, *options)
    assert code == 3
    assert message in json.loads(told)["error"]["message"]
    assert not target.exists()


@pytest.mark.parametrize(
    ("option", "text"), [("--name", "ids"), ("--sizes", "=3"), ("--sizes", "a=b")]
)
def test_malformed_options_are_usage_errors(option, text, tmp_path):
    result = CliRunner().invoke(
        main, ["export", "coreml", SOURCE, str(tmp_path / "m.mlpackage"), option, text]
    )
    assert result.exit_code == 2


@pytest.mark.parametrize("kind", ["coreml", "onnx", "coreai"])
def test_an_operation_that_a_format_lacks_is_named_in_one_line(kind, tmp_path):
    if kind == "coreai":
        pytest.importorskip("coreai", reason="Core AI has no package for this machine")
    file = tmp_path / f"m.{ {'coreml': 'mlpackage', 'coreai': 'aimodel'}.get(kind, kind) }"
    result = CliRunner().invoke(main, ["export", kind, f"{HERE}.modules:strange", str(file)])
    assert result.exit_code == 3, result.output
    (line,) = (it for it in result.output.splitlines() if it.startswith("Error:"))
    assert "polygamma" in line
    assert "rewrite the model without" in line
    assert not [*tmp_path.iterdir()]
