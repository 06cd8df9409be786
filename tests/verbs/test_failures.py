"""A failed command says one thing once: lines on stderr, or one JSON document on stdout."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.checkpoints import Writer
from weighbridge.converters.common.exits import Exit
from weighbridge.verbs.failures import kinds

ROOT = Path(__file__).parents[2]


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def error_of(result) -> dict:
    """Return the error in RESULT; its standard output is one JSON document and nothing else."""
    document = json.loads(result.stdout)
    assert list(document) == ["error"]
    error = document["error"]
    assert set(error) == {"kind", "message", "problems", "exit_code"}
    assert result.exit_code == error["exit_code"]
    return error


def convert(*arguments):
    return run("convert", "torch-to-mlx", *arguments, "--check", "none", "--json")


def raising(error):
    def fail(*_, **__):
        raise error

    return fail


def test_bad_input_is_a_json_document_and_nothing_on_stderr(tmp_path):
    result = convert(tmp_path / "nowhere", tmp_path / "out")
    error = error_of(result)
    assert (error["kind"], error["exit_code"], error["problems"]) == ("bad-input", 3, [])
    assert "nowhere" in error["message"]
    assert result.stderr == ""


def test_the_problems_of_a_job_are_listed_apart():
    error = error_of(run("preflight", "--recipe", "minilm-lora", "--set", "stepz=2", "--json"))
    assert error["kind"] == "mismatch"
    assert error["message"] == "the training configuration is not valid"
    assert any("did you mean steps?" in problem for problem in error["problems"])


@pytest.mark.parametrize(
    "words",
    [
        ["--no-such-option", "--json"],
        ["no-such-verb", "--json"],
        ["convert", "no-such-verb", "--json"],
        ["inspect", "--json"],
        ["inspect", "a", "b", "--json"],
        ["export", "coreml", "a", "b", "--upper", "sequence=none", "--json"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_a_json_document_too(words):
    error = error_of(run(*words))
    assert (error["kind"], error["exit_code"]) == ("usage", 2)
    assert error["message"]


def test_words_after_a_double_dash_ask_for_nothing():
    result = run("inspect", "--", "a", "--json")
    assert (result.exit_code, result.stdout) == (2, "")


def test_an_interrupt_is_a_json_document_too(tiny_bert_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(Writer, "write", raising(KeyboardInterrupt()))
    error = error_of(convert(tiny_bert_dir, tmp_path / "out"))
    assert (error["kind"], error["exit_code"]) == ("interrupted", 130)


def test_a_bug_is_a_json_document_with_its_traceback_on_stderr(
    tiny_bert_dir, tmp_path, monkeypatch
):
    monkeypatch.setattr(Writer, "write", raising(ZeroDivisionError("planted")))
    result = convert(tiny_bert_dir, tmp_path / "out")
    error = error_of(result)
    assert (error["kind"], error["exit_code"]) == ("bug", 70)
    assert "ZeroDivisionError: planted" in error["message"]
    assert "Traceback" in result.stderr


def test_a_full_disk_is_a_json_document_too(tiny_bert_dir, tmp_path, monkeypatch):
    full = OSError(28, "No space left on device", str(tmp_path / "out"))
    monkeypatch.setattr(Writer, "write", raising(full))
    error = error_of(convert(tiny_bert_dir, tmp_path / "out"))
    assert error["exit_code"] == 3
    assert str(tmp_path / "out") in error["message"]


def test_a_missing_package_is_a_json_document_too(tiny_bert_dir, tmp_path, monkeypatch):
    missing = ModuleNotFoundError("No module named 'mlx'", name="mlx")
    monkeypatch.setattr(Writer, "write", raising(missing))
    error = error_of(convert(tiny_bert_dir, tmp_path / "out"))
    assert (error["kind"], error["exit_code"]) == ("missing-package", 3)


def test_a_missing_package_is_no_reason_to_speak_of_a_check_where_the_verb_has_none(
    tiny_bert_dir, tmp_path, monkeypatch
):
    missing = ModuleNotFoundError("No module named 'mlx'", name="mlx")
    monkeypatch.setattr(Writer, "write", raising(missing))
    assert "--check none" in convert(tiny_bert_dir, tmp_path / "out").stdout
    monkeypatch.setattr("weighbridge.jobs.inspecting.tensor_facts", raising(missing))
    refused = run("inspect", tiny_bert_dir).stderr
    assert "pip install 'weighbridge[mlx]'" in refused
    assert "--check" not in refused


def test_a_missing_option_is_told_with_what_it_is():
    refused = run("export", "gguf", "model", "model.gguf")
    assert refused.exit_code == 2
    assert "Missing option '--like'. BASE.gguf: The base model's file, " in refused.stderr
    told = error_of(run("convert", "gguf-to-mlx", "model.gguf", "model", "--json"))
    assert "DIR: The model's directory, with config.json" in told["message"]


def test_without_json_an_error_is_on_stderr_alone(tmp_path):
    result = run("inspect", tmp_path / "nowhere")
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")


def test_every_kind_of_error_is_documented():
    page = (ROOT / "docs" / "cli.md").read_text()
    assert [row.kind for row in kinds() if f"| `{row.kind}` |" not in page] == []


# The table of exit codes


def test_every_exit_code_used_in_the_code_has_a_row():
    """No module exits with a number of its own."""
    folders = (ROOT / name for name in ("jobs", "parity", "verbs"))
    sources = [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    bare = re.compile(r"(?:ctx\.exit|sys\.exit|exit_code =|EXIT\w* =)\W*\d")
    assert [path.name for path in sources if bare.search(path.read_text())] == []


def test_the_page_that_lists_exit_codes_lists_all_of_them():
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [code.value for code in Exit if not re.search(rf"\b{code.value}\b", text)] == []


def test_help_lists_every_exit_code():
    text = " ".join(run("--help").stdout.split())
    assert all(f"{code.value} {code.short}" in text for code in Exit)


def leaves(command: click.Command = main, path: tuple[str, ...] = ()):
    for name, child in getattr(command, "commands", {}).items():
        yield from leaves(child, (*path, name))
    if not isinstance(command, click.Group):
        yield path, command


@pytest.mark.parametrize("path", [p for p, _ in leaves()], ids=" ".join)
def test_the_help_of_a_verb_promises_only_codes_of_the_table(path):
    text = " ".join(run(*path, "--help").stdout.split())
    for promised in re.findall(r"Exit codes: (.*?\.)(?: |$)", text):
        codes = {int(code) for code in re.findall(r"(?:^|, )(\d+) ", promised)}
        assert codes <= {code.value for code in Exit}


def test_no_check_asked_for_is_success_and_says_unverified(tiny_bert_dir, tmp_path):
    result = run("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--check", "none")
    assert result.exit_code == Exit.DONE
    assert "UNVERIFIED" in result.stdout
    assert "--check none" in Exit.DONE.means


def test_a_process_ended_by_a_signal_exits_as_the_table_says(tmp_path):
    code = f"""
import os, signal
from weighbridge.cli import main
from weighbridge.jobs import converting
converting.convert = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT) or signal.pause()
main(["convert", "torch-to-mlx", "a", {str(tmp_path / "out")!r}, "--check", "none", "--json"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + signal.SIGINT == Exit.INTERRUPTED
    assert json.loads(done.stdout)["error"]["kind"] == "interrupted"
