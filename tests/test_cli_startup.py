"""Help is free of frameworks, and wrong usage is told apart from failure."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import weighbridge
from weighbridge import fixtures
from weighbridge.cli import main

LLAMA = Path(fixtures.__file__).parent / "llama" / "model"
HEAVY = {
    "coreai",
    "coreai_torch",
    "coremltools",
    "matplotlib",
    "mlx",
    "numpy",
    "onnx",
    "pydantic",
    "torch",
    "transformers",
}
USAGE = 2


def verbs(command: click.Command = main, path: tuple[str, ...] = ()):
    """Yield every command with the words that reach it."""
    yield list(path), command
    for name, child in getattr(command, "commands", {}).items():
        yield from verbs(child, (*path, name))


VERBS = {" ".join(path) or "weighbridge": (path, command) for path, command in verbs()}
GROUPS = [name for name, (_, command) in VERBS.items() if isinstance(command, click.Group)]
LEAVES = [name for name in VERBS if name not in GROUPS]


def in_fresh_process(code: str):
    """Run CODE in a new interpreter and return the JSON that it prints last."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_no_help_imports_a_framework():
    code = f"""
import json, sys
from click.testing import CliRunner
from weighbridge.cli import main
codes = [CliRunner().invoke(main, [*path, "--help"]).exit_code for path in {[p for p, _ in VERBS.values()]}]
print(json.dumps([codes, sorted({HEAVY} & set(sys.modules))]))
"""
    assert in_fresh_process(code) == [[0] * len(VERBS), []]


@pytest.mark.parametrize("verb", ["inspect", "doctor"])
def test_a_verb_that_only_looks_imports_neither_torch_nor_transformers(verb):
    words = [verb, str(LLAMA)] if verb == "inspect" else [verb]
    code = f"""
import json, sys
from click.testing import CliRunner
from weighbridge.cli import main
answer = CliRunner().invoke(main, {words}).output
print(json.dumps([bool(answer), sorted({{"torch", "transformers"}} & set(sys.modules))]))
"""
    assert in_fresh_process(code) == [True, []]


def test_importing_the_package_imports_no_framework_and_changes_nothing():
    code = f"""
import json, os, signal, sys, warnings
def state():
    return [dict(os.environ), list(warnings.filters), signal.getsignal(signal.SIGINT), sys.path]
before = repr(state())
import weighbridge
print(json.dumps([repr(state()) == before, sorted({HEAVY} & set(sys.modules))]))
"""
    assert in_fresh_process(code) == [True, []]


@pytest.mark.parametrize("name", weighbridge.__all__)
def test_every_public_name_resolves(name):
    assert getattr(weighbridge, name).__doc__


def test_the_module_runs_as_a_command():
    command = [sys.executable, "-m", "weighbridge", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"weighbridge, version {weighbridge.__version__}\n")


def test_ctrl_c_while_the_command_starts_shows_no_traceback(tmp_path):
    early = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "click.py").write_text(early)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import weighbridge.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_once_it_has_started_ctrl_c_is_handled_as_before():
    code = """
import json, signal
import weighbridge.cli
print(json.dumps(signal.getsignal(signal.SIGINT) is signal.default_int_handler))
"""
    assert in_fresh_process(code) is True


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_explains_itself_in_one_short_sentence(name):
    _, command = VERBS[name]
    summary = command.get_short_help_str(limit=100)
    assert summary.endswith(".")
    assert not summary.endswith("...")
    assert all(option.help for option in command.params if isinstance(option, click.Option))


@pytest.mark.parametrize("name", VERBS)
def test_help_answers_short_and_long(name):
    path, _ = VERBS[name]
    outputs = {CliRunner().invoke(main, [*path, flag]).output for flag in ("-h", "--help")}
    assert len(outputs) == 1


@pytest.mark.parametrize("name", LEAVES)
def test_an_unknown_option_is_wrong_usage(name):
    path, _ = VERBS[name]
    assert CliRunner().invoke(main, [*path, "--no-such-option"]).exit_code == USAGE


@pytest.mark.parametrize(
    "name", [name for name in LEAVES if "preflight doctor train".find(name) < 0]
)
def test_a_missing_argument_is_wrong_usage(name):
    path, _ = VERBS[name]
    answer = CliRunner().invoke(main, path)
    assert answer.exit_code == USAGE
    assert "Missing argument" in answer.output


@pytest.mark.parametrize("name", GROUPS)
def test_an_unknown_verb_is_wrong_usage(name):
    path, _ = VERBS[name]
    assert CliRunner().invoke(main, [*path, "no-such-verb"]).exit_code == USAGE
