"""Families and faults exported to Core ML by the command line, as a user does."""

import json
import sys

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram.package import MANIFEST, read_package
from weighbridge.converters.coreml.writing import write_metadata
from weighbridge.tests.support.coreml.families import ALL, HERE, source

FOUND = "PASS" if sys.platform == "darwin" else "PASS-REFERENCE"
pytestmark = [pytest.mark.heavy, pytest.mark.filterwarnings("ignore")]


def run(*arguments):
    """Run the command line; return the exit code, the status and all that was said."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    told = json.loads(result.stdout)
    verdict = told.get("verdict", told)
    return result.exit_code, verdict.get("status"), result.stdout


@pytest.mark.parametrize("family", ALL)
def test_a_family_is_kept_at_the_defaults(family, tmp_path):
    target = tmp_path / "m.mlpackage"
    code, status, told = run("export", "coreml", source(family, tmp_path), target)
    assert (code, status) == (0, FOUND), told
    assert target.is_dir()


@pytest.fixture(scope="module")
def gated(tmp_path_factory):
    """Return a package whose source has gates: numbers without axes."""
    target = tmp_path_factory.mktemp("gated") / "m.mlpackage"
    assert run("export", "coreml", f"{HERE}.modules:gated", target)[0] == 0
    return target


def test_a_gate_that_is_missing_differs_and_is_named(gated, tmp_path):
    other = tmp_path / "m.mlpackage"
    assert run("export", "coreml", f"{HERE}.modules:ungated", other)[0] == 0
    code, status, told = run("parity", "check", f"{HERE}.modules:gated", other)
    assert (code, status) == (1, "DIFFERS")
    assert "blocks.0.alpha: missing" in told


@pytest.mark.parametrize("lie", ["weights", "made", "exact", "compute"])
def test_a_manifest_that_is_not_true_is_refused(lie, gated, tmp_path):
    import shutil

    package = read_package(shutil.copytree(gated, tmp_path / "m.mlpackage"))
    manifest = json.loads(package.spec.description.metadata.userDefined[MANIFEST])
    if lie == "weights":
        entries = manifest[lie]
        one, other = (f"p_module_blocks_{i}_up_weight_to_fp16" for i in (0, 1))
        entries[one], entries[other] = entries[other], entries[one]
    elif lie == "made":
        name = next(iter(manifest[lie]))
        manifest[lie][name] = {"fill": 1.0}
    elif lie == "exact":
        manifest["exact"]["p_module_blocks_0_alpha_to_fp16"] = 2.0
    else:
        manifest["compute"] = "float32"
    write_metadata(package, {MANIFEST: json.dumps(manifest)})
    code, _, told = run("parity", "check", f"{HERE}.modules:gated", package.path)
    assert code == 3
    assert "its record of the export is not true of it" in told


def test_what_overflows_in_half_precision_differs_and_is_named(tmp_path):
    target = tmp_path / "m.mlpackage"
    found = run("export", "coreml", f"{HERE}.modules:loud", target, "--precision", "float16")
    assert found[:2] == (1, "DIFFERS")
    assert "infinities, where float32 has none" in found[2]
    assert not target.exists()


def test_what_overflows_in_half_precision_stays_in_float32_at_the_defaults(tmp_path):
    target = tmp_path / "m.mlpackage"
    assert run("export", "coreml", f"{HERE}.modules:loud", target)[:2] == (0, FOUND)
