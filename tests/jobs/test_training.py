"""Training as a user runs it: a directory in, a directory out that every loader opens."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from weighbridge import jobs, trainers
from weighbridge.cli import main
from weighbridge.errors import BadInputError
from weighbridge.jobs.training import default_run, require_folder_name
from weighbridge.jobs.training.compare import Comparison

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
    jobs.train(series / "run", "mlx", "examples/timeseries.yaml", settings(series))
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


def test_a_profiled_run_leaves_its_memory_in_its_folder(series, tmp_path):
    overrides = [word for setting in settings(series) for word in ("--set", setting)]
    words = [
        "train",
        str(tmp_path / "run"),
        "--recipe",
        "examples/timeseries.yaml",
        "--profile",
        *overrides,
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert re.search("memory: (too short|steady)", result.stderr)  # by the seconds that it took
    document = json.loads((tmp_path / "run" / "memory.json").read_text())
    assert [row["step"] for row in document["samples"] if row["step"]] == [1, 2, 3, 4]
    assert document["peak_mb"].keys() >= {"process", "mlx_active", "mlx_peak"}
    assert (tmp_path / "run" / "memory.png").is_file()


def test_a_misspelt_setting_is_answered_with_the_nearest(series):
    arguments = ["--config", "examples/timeseries.yaml", "--set", "optimizer.learning_rat=1"]
    result = CliRunner().invoke(main, ["preflight", *arguments])
    assert result.exit_code == 3
    assert "optimizer.learning_rate" in result.output


def test_a_new_run_in_python_needs_a_configuration(tmp_path):
    with pytest.raises(BadInputError, match="load_config"):
        trainers.train(None, tmp_path / "run")


@pytest.mark.parametrize(
    ("taken", "new", "resumed"),
    [([], "run", None), (["run"], "run-2", "run"), (["run", "run-2"], "run-3", "run-2")],
)
def test_a_run_without_a_name_gets_the_next_free_one(taken, new, resumed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in taken:
        (tmp_path / name).mkdir()
    assert default_run(resume=False) == Path(new)
    if resumed:
        assert default_run(resume=True) == Path(resumed)
    else:
        with pytest.raises(BadInputError, match="name the one to go on with before --resume"):
            default_run(resume=True)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("docstrings", "train --recipe docstrings"),
        ("minilm-lroa", "train --recipe minilm-lora"),
        ("mine.yaml", "train --recipe mine.yaml"),
        ("steps=5", "train --set steps=5"),
        ("--recipe docstring", "did you mean docstrings?"),
        ("--recipe mine.yaml", "no such file"),
        ("--set stepz=5", "did you mean steps?"),
        ("new --set optimizer.lr=1", "did you mean optimizer.learning_rate?"),
        ("--resume", "name the one to go on with before --resume"),
    ],
)
def test_a_slip_of_the_pen_makes_no_folder(words, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    result = CliRunner().invoke(main, ["train", *words.split()])
    assert result.exit_code == 3
    assert answer in result.output
    assert [*tmp_path.iterdir()] == []


def test_a_run_may_be_called_almost_as_its_recipe():
    require_folder_name(Path("docstrings-2"))
    require_folder_name(Path("minilm-mlx"))


def test_a_run_says_what_to_type_next(run):
    told = json.loads((run / "result.json").read_text())["next"]
    assert told == f"weighbridge convert mlx-to-torch {run} run-torch --trust-code {SOURCE}"


def test_a_checkpoint_of_a_run_that_goes_on_is_a_model_too(series, run, tmp_path):
    options = jobs.Options(check="full", trust_code=SOURCE)
    home = jobs.convert(
        str(run / "checkpoints" / "step-00000002"), tmp_path / "home", "torch", options=options
    )
    assert home.status == "PASS"
    last = jobs.check(str(run), str(run / "checkpoints" / "step-00000004"), options=options)
    assert last.status == "PASS"  # the last step was the best one


@pytest.mark.parametrize(
    ("apart", "mode", "named"),
    [(1e-2, "train", True), (1e-6, "train", False), (1e-2, "eval", False)],
)
def test_losses_that_dropout_parts_are_called_so(apart, mode, named):
    found = dict.fromkeys(("mlx", "torch"), 1.0)
    losses = {"mlx": [1.0], "torch": [1.0 + apart]}
    said = Comparison(Path("both"), losses, found, found, mode).summary()
    assert ("--set mode=eval compares without" in said) == named


@pytest.mark.heavy
def test_both_backends_are_compared(series, tmp_path):
    overrides = [word for setting in settings(series) for word in ("--set", setting)]
    words = [
        "train",
        str(tmp_path / "both"),
        "--recipe",
        "examples/timeseries.yaml",
        "--compare",
        "3",
        *overrides,
    ]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    assert "losses of 3 updates differ by" in result.stdout
    document = json.loads((tmp_path / "both" / "compare.json").read_text())
    assert document["largest_difference"] <= 1e-5
    assert document["losses"].keys() == document["samples_per_second"].keys() == {"mlx", "torch"}
    assert (tmp_path / "both" / "compare.png").is_file()
    assert min(document["peak_memory_mb"].values()) > 1  # each had a process of its own
    again = CliRunner().invoke(main, words)
    assert again.exit_code == 3
    assert "both" in again.output
