"""Whatever takes its time says on stderr what it is doing; stdout is for results."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import threading

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.common.steps import LOGGER, each, step
from weighbridge.verbs import progress


def invoke(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


class Now:
    """A timer that does not wait: every step counts as a long one."""

    def __init__(self, _seconds, function, arguments, options) -> None:
        self.start = lambda: function(*arguments, **options)

    def cancel(self) -> None:
        """Do nothing: the line is written already."""


@pytest.fixture
def told(monkeypatch):
    """Switch progress on, a line for every step."""
    monkeypatch.setenv(progress.SWITCH, "on")
    monkeypatch.setattr(threading, "Timer", Now)


def lines(result) -> list[str]:
    return [line for line in result.stderr.splitlines() if line.endswith(" ...")]


def in_order(wanted, found) -> bool:
    rest = iter(found)
    return all(any(text in line for line in rest) for text in wanted)


def test_a_conversion_says_its_steps(told, tiny_bert_dir, tmp_path):
    words = ("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--check", "none")
    assert in_order(["reading", "writing the weights"], lines(invoke(*words)))


def test_a_check_says_its_steps_and_its_json_is_pure(told, tiny_bert_dir):
    result = invoke("parity", "check", tiny_bert_dir, tiny_bert_dir, "--quick", "--json")
    steps = [
        "reading",
        "checking: float64 reference",
        "checking: weights",
        "checking: probe",
    ]
    assert in_order(steps, lines(result))
    assert json.loads(result.stdout)["status"] == "PASS"


def test_a_golden_says_of_which_probe_it_is_made(told, tiny_bert_dir, tmp_path):
    result = invoke("parity", "record", tiny_bert_dir, tmp_path / "golden")
    assert in_order([f"reference, probe {n} of 5 ..." for n in range(1, 6)], lines(result))


@pytest.mark.heavy
def test_an_export_says_its_steps(told, tiny_bert_dir, tmp_path):
    result = invoke("export", "coreml", tiny_bert_dir, tmp_path / "x.mlpackage", "--json")
    steps = ["recording in torch.export", "converting with coremltools", "checking: probe"]
    assert in_order(["reading", *steps], lines(result))
    assert json.loads(result.stdout)["status"].startswith("PASS")


@pytest.mark.heavy
def test_a_preflight_says_its_steps(told, tiny_bert_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    pairs = "\n".join(json.dumps({"query": f"of {n}", "document": f"one {n}"}) for n in range(40))
    (tmp_path / "pairs").mkdir()
    for part in ("train", "validation", "test"):
        (tmp_path / "pairs" / f"{part}.jsonl").write_text(pairs)
    words = ("preflight", "--recipe", "minilm-lora", "--set", f"model={tiny_bert_dir}")
    assert in_order(["gradients in mlx", "gradients in torch"], lines(invoke(*words)))


def test_what_is_quick_writes_nothing(monkeypatch, tiny_bert_dir, tmp_path):
    monkeypatch.setenv(progress.SWITCH, "on")
    monkeypatch.setattr(progress, "PATIENCE", 1000.0)
    words = ("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--check", "none")
    assert lines(invoke(*words)) == []


def test_nothing_listens_once_the_verb_has_ended(told, tmp_path):
    before = (LOGGER.handlers[:], LOGGER.level)
    invoke("inspect", tmp_path / "nowhere", code=3)
    assert (LOGGER.handlers, LOGGER.level) == before


def test_a_terminal_shows_the_step_that_runs_and_how_far_it_is(monkeypatch):
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    display = progress.Display()
    display.step("reading bert")
    assert [task.description for task in display.progress.tasks] == ["reading bert"]
    display.task("writing the weights", 100)(40)
    (task,) = display.progress.tasks
    assert (task.description, task.completed, task.total) == ("writing the weights", 40, 100)
    display.stop()
    assert not display.progress.tasks


def test_a_step_is_said_while_a_library_is_kept_quiet(told, capsys):
    display = progress.Display()
    with contextlib.redirect_stderr(io.StringIO()):
        display.step("converting with coremltools")
    assert capsys.readouterr().err == "converting with coremltools ...\n"


def test_a_program_that_calls_us_can_listen(logged, monkeypatch):
    monkeypatch.setattr(LOGGER, "isEnabledFor", lambda level: level >= logging.INFO)
    step("reading")
    assert list(each("probe", "ab")) == ["a", "b"]
    assert logged == ["reading", "probe 1 of 2", "probe 2 of 2"]
