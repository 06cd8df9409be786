"""Packages of other people's scripts, without a record: judged by the command line."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.toolkit import coremltools
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.foreign import compressed, converted, foreign

pytestmark = pytest.mark.filterwarnings("ignore")


def judged(package, name):
    """Check PACKAGE against the module NAME; return the exit code, and the verdict."""
    source = f"{modules.__name__}:{name}"
    result = CliRunner().invoke(main, ["parity", "check", source, str(package), "--json"])
    return result.exit_code, json.loads(result.stdout)


def package_of(name, folder, precision="float16", change=None):
    """Return a package of the module NAME, first CHANGED."""
    module, signature = getattr(modules, name)()
    if change:
        change(module)
    return converted(module, signature, folder / "m.mlpackage", precision)


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_gates_in_another_order_and_added_biases_pass(precision, tmp_path):
    code, verdict = judged(package_of("lstm", tmp_path, precision), "lstm")
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict["stages"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["two_ways", "gru", "rnn", "gated", "heads8"])
def test_what_coremltools_makes_of_weights_passes(name, tmp_path):
    code, verdict = judged(package_of(name, tmp_path), name)
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict["stages"]


@pytest.mark.parametrize("precision", ["float16", "float32"])
def test_a_number_that_a_converter_computed_from_another_is_explained(precision, tmp_path):
    code, verdict = judged(package_of("tempered", tmp_path, precision), "tempered")
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict["stages"]


def test_a_temperature_that_is_a_ten_thousandth_off_differs_and_is_named(tmp_path):
    def warmer(module):
        module.scale.data *= 1 + 1e-4

    code, verdict = judged(package_of("tempered", tmp_path, "float32", warmer), "tempered")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    failed = {it["name"]: it["detail"] for it in verdict["stages"] if it["status"] == "fail"}
    assert "no constant carries scale" in failed["fingerprints"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["T5", "CLIP"])
def test_what_is_computed_ahead_of_weights_is_explained_whatever_hides_its_scores(name, tmp_path):
    made = foreign(name, tmp_path, "float16")
    result = CliRunner().invoke(main, ["parity", "check", made.source, str(made.package)])
    assert (result.exit_code, "PASS-REFERENCE" in result.stdout) == (0, True), result.stdout


def swap_gates(module):
    weight = module.lstm.weight_hh_l1.data
    weight[:32] = weight[:32].roll(16, 0)


def move_bias(module):
    module.lstm.bias_ih_l0.data[3] += 0.01


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("change", "named"), [(swap_gates, "lstm.weight_hh_l1"), (move_bias, "lstm.bias_ih_l0")]
)
def test_gates_of_other_weights_differ_and_are_named(change, named, tmp_path):
    code, verdict = judged(package_of("lstm", tmp_path, change=change), "lstm")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    (stage,) = (it for it in verdict["stages"] if it["name"] == "fingerprints")
    assert named in stage["detail"]


@pytest.mark.heavy
def test_a_sum_of_biases_is_exact_in_single_precision(tmp_path):
    def step(module):
        bias = module.lstm.bias_ih_l0.data
        at = int(bias.abs().argmax())
        bias[at] += 2 * torch.finfo(bias.dtype).eps * bias[at].abs()

    code, verdict = judged(package_of("lstm", tmp_path, "float32", step), "lstm")
    assert (code, verdict["status"]) == (1, "DIFFERS")
    (stage,) = (it for it in verdict["stages"] if it["name"] == "fingerprints")
    assert "lstm.bias_" in stage["detail"]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["lstm", "gru", "joined"])
def test_compressed_gates_and_joined_tensors_are_explained(name, tmp_path):
    package = compressed(package_of(name, tmp_path), "palette", tmp_path / "c.mlpackage")
    code, verdict = judged(package, name)
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict["stages"]


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["int8", "palette"])
def test_compressed_tables_of_which_a_package_of_one_length_has_some_rows_are_explained(
    way, tmp_path
):
    """Of positions the first rows, and of types of tokens one row for each of them."""
    made = foreign("BERT", tmp_path, "float16")
    package = compressed(made.package, way, tmp_path / "c.mlpackage")
    result = CliRunner().invoke(main, ["parity", "check", made.source, str(package), "--json"])
    assert json.loads(result.stdout)["status"] == "PASS-REFERENCE", result.stdout


def layer():
    """Return a layer, with what it takes."""
    torch.manual_seed(0)
    return torch.nn.Linear(16, 16).eval(), modules.signature({"input": ("float32", "hidden")}, 16)


def test_a_package_of_listed_sizes_is_checked_at_the_largest(tmp_path):
    traced = torch.jit.trace(layer()[0], torch.zeros(1, 8, 16))
    listed = coremltools.EnumeratedShapes([(1, 8, 16), (1, 12, 16)])
    made = coremltools.convert(
        traced,
        inputs=[coremltools.TensorType("input", listed)],
        outputs=[coremltools.TensorType("y")],
        minimum_deployment_target=coremltools.target.iOS17,
        skip_model_load=True,
    )
    made.save(str(tmp_path / "m.mlpackage"))
    words = ["parity", "check", f"{__name__}:layer", str(tmp_path / "m.mlpackage"), "--json"]
    result = CliRunner().invoke(main, words)
    assert json.loads(result.stdout)["status"] == "PASS-REFERENCE", result.stdout
