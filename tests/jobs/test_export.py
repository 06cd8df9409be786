"""Exports as a user runs them, weighed by the evaluator off the Mac."""

import json
import sys

import pytest
from click.testing import CliRunner

from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.errors import BadInputError

SOURCE = "examples.timeseries:build"
FOUND = "PASS" if sys.platform == "darwin" else "PASS-REFERENCE"


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory):
    from examples.timeseries import write_model

    return write_model(tmp_path_factory.mktemp("series") / "torch")


@pytest.mark.parametrize("compute", ["float32", "float16"])
def test_a_package_is_published_only_after_it_was_weighed(forecaster, tmp_path, compute):
    options = jobs.Options(check="full", trust_code=SOURCE)
    package = tmp_path / "Forecaster.mlpackage"
    outcome = jobs.export_coreml(str(forecaster), package, compute=compute, options=options)
    assert outcome.status == FOUND
    assert outcome.verdict.stage("structure").status == "pass"
    assert (
        outcome.verdict.stage("precision").status
        == {"float32": "skipped", "float16": "pass"}[compute]
    )
    names = ["Forecaster.mlpackage", "Forecaster.mlpackage.weighbridge.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    record = json.loads((tmp_path / names[1]).read_text())
    assert record["verdict"]["status"] == outcome.status
    assert set(record["files"]) == {
        path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()
    }
    assert (package / "Manifest.json").is_file()


def test_a_wrong_suffix_is_refused_before_anything_runs(forecaster, tmp_path):
    with pytest.raises(BadInputError, match="mlpackage"):
        jobs.export_coreml(str(forecaster), tmp_path / "model.mlmodel")


def test_a_dry_run_names_the_inputs_and_writes_nothing(tiny_bert_dir, tmp_path):
    target = tmp_path / "m.mlpackage"
    result = CliRunner().invoke(
        main, ["export", "coreml", str(tiny_bert_dir), str(target), "--dry-run"]
    )
    assert result.exit_code == 0
    assert "input_ids" in result.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("upper", ["sequence", "sequence=0", "sequence=x"])
def test_an_upper_size_that_is_none_is_a_usage_error(tiny_bert_dir, tmp_path, upper):
    arguments = [
        "export",
        "coreml",
        str(tiny_bert_dir),
        str(tmp_path / "m.mlpackage"),
        "--upper",
        upper,
    ]
    assert CliRunner().invoke(main, arguments).exit_code == 2
