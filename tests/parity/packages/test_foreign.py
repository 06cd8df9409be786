"""Packages of other people's scripts, without a record: judged by the command line."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.foreign import compressed, converted

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
@pytest.mark.parametrize("name", ["lstm", "gru", "joined"])
def test_compressed_gates_and_joined_tensors_are_explained(name, tmp_path):
    package = compressed(package_of(name, tmp_path), "palette", tmp_path / "c.mlpackage")
    code, verdict = judged(package, name)
    assert (code, verdict["status"]) == (0, "PASS-REFERENCE"), verdict["stages"]
