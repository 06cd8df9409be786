"""Training as a user runs it: a directory in, a directory out that every loader opens."""

import json

import pytest
from click.testing import CliRunner

from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.errors import BadInputError

SOURCE, NATIVE = "examples.timeseries:build", "examples.timeseries:build_mlx"


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    from examples.timeseries import write_data, write_model

    folder = tmp_path_factory.mktemp("series")
    write_data(folder / "data")
    options = jobs.Options(
        check="quick", map="examples/timeseries.wmap", trust_code=SOURCE, candidate_code=NATIVE
    )
    jobs.convert(str(write_model(folder / "torch")), folder / "mlx", "mlx", options=options)
    return folder


def settings(series, **changed):
    chosen = {
        "model": series / "mlx",
        "trust_code": SOURCE,
        "data.train": series / "data" / "train.npz",
        "data.validation": series / "data" / "validation.npz",
        "steps": 4,
        "validate_every": 2,
        "checkpoint_every": 2,
    } | changed
    return [f"{key}={value}" for key, value in chosen.items()]


@pytest.fixture(scope="module")
def run(series):
    jobs.train(series / "run", "mlx", "timeseries", settings(series))
    return series / "run"


def test_a_full_run_is_a_directory_that_goes_home(series, run, tmp_path):
    options = jobs.Options(check="full", trust_code=SOURCE)
    outcome = jobs.convert(str(run), tmp_path / "home", "torch", options=options)
    assert outcome.status == "PASS"


def test_what_was_trained_is_not_what_it_was(series, run):
    options = jobs.Options(check="full", trust_code=SOURCE)
    assert jobs.check(str(series / "mlx"), str(run), options=options).status == "DIFFERS"


def test_a_run_leaves_its_configuration_its_journal_and_a_plot(run):
    assert {"config.yaml", "metrics.jsonl", "loss.png", "checkpoints", "result.json"} <= {
        path.name for path in run.iterdir()
    }
    assert [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_misspelt_setting_is_answered_with_the_nearest(series):
    arguments = ["--config", "timeseries", "--set", "optimizer.learning_rat=1"]
    result = CliRunner().invoke(main, ["preflight", *arguments])
    assert result.exit_code == 3
    assert "optimizer.learning_rate" in result.output


def test_a_new_run_needs_a_configuration(tmp_path):
    with pytest.raises(BadInputError, match="--config"):
        jobs.train(tmp_path / "run", "mlx", None)
