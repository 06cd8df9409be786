"""Files of other tools whose inputs and outputs are called otherwise than the model's: checked, brought back."""

import json

import pytest
import torch
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.models import Signature
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.foreign import Positional, converted

FOUND = {"mlpackage": "PASS-REFERENCE", "onnx": "PASS"}
SOURCE = f"{modules.__name__}:siglip"  # one input, two outputs
pytestmark = pytest.mark.filterwarnings("ignore")


def run(*arguments):
    """Run the command line; return the exit code and all that was said."""
    result = CliRunner().invoke(main, [*map(str, arguments)])
    return result.exit_code, result.output


def made(kind, folder, *, fault=False):
    """Return a file of KIND in FOLDER that another tool made: its input is x, its outputs have drawn names."""
    module, signature = modules.siglip()
    if fault:
        module.post_layernorm.weight.data[3] *= 1.5
    target = folder / f"m.{kind}"
    if kind == "mlpackage":
        module.config._attn_implementation = "eager"
        return converted(module, signature, target, "float32", called=("x",))
    torch.onnx.export(
        Positional(module, signature),
        (torch.zeros(1, 3, 12, 12),),
        target,
        input_names=["x"],
        output_names=["one", "two"],
        dynamo=False,
    )
    return target


@pytest.mark.parametrize("kind", FOUND)
def test_a_file_with_other_names_is_checked_and_the_names_are_said(kind, tmp_path):
    code, told = run("parity", "check", SOURCE, made(kind, tmp_path), "--json")
    verdict = json.loads(told[told.index("{") :])
    assert (code, verdict["status"]) == (0, FOUND[kind]), told
    (names,) = (it["detail"] for it in verdict["stages"] if it["name"] == "auxiliary")
    assert "pixel_values is x" in names
    assert "pooler_output is " in names


def test_a_fault_is_found_and_named_where_names_are_others(tmp_path):
    code, told = run("parity", "check", SOURCE, made("onnx", tmp_path, fault=True), "--json")
    verdict = json.loads(told[told.index("{") :])
    assert (code, verdict["status"]) == (1, "DIFFERS"), told
    assert [(it["site"], it["kind"]) for it in verdict["faults"]] == [("post_layernorm", "weight")]


def without_last_output(source, folder):
    """Return what a check says of a package of the module SOURCE that gives its first output alone."""
    module, signature = getattr(modules, source)()
    module.config._attn_implementation = "eager"
    narrow = Signature(signature.inputs, signature.outputs[:1])
    package = converted(module, narrow, folder / "m.mlpackage", "float32", called=("x",))
    code, told = run("parity", "check", f"{modules.__name__}:{source}", package, "--json")
    verdict = json.loads(told[told.index("{") :])
    assert (
        "pooler_output, which the candidate does not give" in verdict["provenance"]["not_checked"]
    )
    return code, verdict


def test_a_file_without_an_output_that_alone_needs_weights_is_unverified(tmp_path):
    code, verdict = without_last_output("siglip", tmp_path)
    assert (code, verdict["status"]) == (4, "UNVERIFIED"), verdict
    (outputs,) = (it["detail"] for it in verdict["stages"] if it["status"] == "unverified")
    assert "pooler_output is not given, and nothing else needs head." in outputs


def test_a_file_without_an_output_that_the_others_lead_to_passes(tmp_path):
    code, verdict = without_last_output("dinov2_pooled", tmp_path)
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict
