"""What a user's own code does wrong is told as theirs, by their file and line, with exit 3."""

from __future__ import annotations

import json
import sys
from itertools import count
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.common import users_code
from weighbridge.converters.runtimes.torch import TorchRunner

NUMBER = count()
GOOD = """
    import torch
    from weighbridge.converters.models import Port, Signature

    SIGNATURE = Signature(
        (Port("series", "float32", ("batch", 3), "series", (("batch", 4),)),),
        (Port("out", "float32", ("batch", 2), "series"),),
    )

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)

        def forward(self, series):
            {forward}
            return self.linear(series)

    def build():
        torch.manual_seed(0)
        return Net(), SIGNATURE
"""
FINE = "pass"


@pytest.fixture
def factory(tmp_path, monkeypatch):
    """Return a function that writes a module of the user's and returns its MODULE:build."""
    monkeypatch.chdir(tmp_path)

    def write(code: str) -> str:
        name = f"users_module_{next(NUMBER)}"
        (tmp_path / f"{name}.py").write_text(dedent(code).strip() + "\n")
        return f"{name}:build"

    path = [*sys.path]
    yield write
    sys.path[:] = path


def run(*arguments, code=3):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result


RAISING = {
    "an exception": ("raise ValueError('no such size')", "ValueError: no such size"),
    "an exception without a message": ("raise KeyError", "KeyError"),
    "a message of many lines": ("raise RuntimeError('one\\ntwo')", "RuntimeError: one two"),
    "sys.exit": ("import sys; sys.exit(0)", "SystemExit: 0"),
    "a BaseException": ("raise BaseException('odd')", "BaseException: odd"),
    "a failing import": ("import no_such_package_here", "ModuleNotFoundError: No module named"),
    "a missing file": ("open('nowhere.json')", "FileNotFoundError"),
    "an operating system's error": ("import os; os.listdir('/no/such')", "FileNotFoundError"),
}


@pytest.mark.parametrize(("line", "said"), RAISING.values(), ids=list(RAISING))
def test_what_a_factory_raises_is_told_with_its_own_line(factory, line, said):
    spec = factory(f"def build():\n    {line}\n")
    output = run("inspect", spec).output
    assert f"{spec.partition(':')[0]}.py:2: {said}" in output
    assert output.count("\n") == 1


def test_an_endless_recursion_is_told_with_its_own_line(factory):
    spec = factory("def build():\n    return build()\n")
    assert ".py:2: RecursionError" in run("inspect", spec).output


def test_what_raises_while_it_is_imported_is_told_with_its_own_line(factory):
    spec = factory("import os\n\nSIZE = int('many')\n")
    assert ".py:3: ValueError" in run("inspect", spec).output


def test_the_deepest_of_their_own_frames_is_told(factory):
    helper = factory("import json\n\n\ndef deep():\n    return json.loads('{')\n")
    name = helper.partition(":")[0]
    spec = factory(f"import {name}\n\ndef build():\n    return {name}.deep()\n")
    assert f"{name}.py:5: JSONDecodeError" in run("inspect", spec).output


def test_a_syntax_error_is_told_with_its_line(factory):
    spec = factory("def build():\n    return (\n")
    assert ".py:2: SyntaxError" in run("inspect", spec).output


RETURNED = {
    "nothing": ("None", "returned None"),
    "a class": ("torch.nn.Linear", "the class Linear, not an instance"),
    "a number": ("3", "type int"),
    "a tensor": ("torch.ones(2)", "type Tensor"),
    "one in a tuple": ("(torch.nn.Linear(1, 1),)", "a tuple of Linear"),
    "three": ("(torch.nn.Linear(1, 1), None, None)", "a tuple of Linear, NoneType, NoneType"),
    "a dictionary for a signature": ("(torch.nn.Linear(1, 1), {'inputs': 1})", "Linear, dict"),
    "a generator": ("(item for item in [1])", "type generator"),
    "a signature of texts": (
        "(torch.nn.Linear(1, 1), Signature('series', None))",
        "inputs should be a tuple of at least one Port",
    ),
    "a port of nonsense": (
        "(torch.nn.Linear(1, 1), Signature((Port(1, 'floaty', 3, None, 7),), (Port('y', 'f4', (1,), ''),)))",
        "floaty",
    ),
}


@pytest.mark.parametrize(("value", "said"), RETURNED.values(), ids=list(RETURNED))
def test_a_wrong_return_value_is_told(factory, value, said):
    code = "import torch\nfrom weighbridge.converters.models import Port, Signature\n"
    spec = factory(f"{code}\ndef build():\n    return {value}\n")
    output = run("inspect", spec).output
    assert spec in output
    assert said in output


def test_an_async_factory_is_refused(factory, recwarn):
    assert "coroutine" in run("inspect", factory("async def build():\n    pass\n")).output
    assert not [it for it in recwarn if "never awaited" in str(it.message)]


def test_a_factory_that_wants_arguments_is_told(factory):
    output = run("inspect", factory("def build(size):\n    return size\n")).output
    assert "TypeError: build() missing 1 required positional argument" in output


@pytest.mark.parametrize("option", ["--trust-code", "--candidate-code"])
def test_code_to_be_trusted_is_named_as_module_and_function(tiny_bert_dir, tmp_path, option):
    source, target = tiny_bert_dir, tmp_path / "out"
    output = run("convert", "torch-to-mlx", source, target, option, "not a spec").output
    assert "MODULE:FUNCTION" in output


FAILING = {
    "raises": "raise ValueError('forward refuses')",
    "exits": "raise SystemExit(0)",
    "adds what does not fit": "series = series + torch.ones(7)",
    "opens a file": "open('nowhere.json')",
}


@pytest.mark.parametrize("line", FAILING.values(), ids=list(FAILING))
@pytest.mark.parametrize("verb", ["record", "check"])
def test_a_forward_that_fails_is_told_with_its_own_line(factory, tmp_path, verb, line):
    spec = factory(GOOD.format(forward=line))
    target = tmp_path / "golden" if verb == "record" else spec
    output = run("parity", verb, spec, target).output
    where = GOOD[: GOOD.index("{forward}")].lstrip().count("\n") + 1
    assert f"{spec.partition(':')[0]}.py:{where}: " in output
    assert not (tmp_path / "golden").exists()


def test_a_candidate_whose_forward_fails_is_told_with_its_own_line(factory):
    good, bad = factory(GOOD.format(forward=FINE)), factory(GOOD.format(forward="series.no_such"))
    assert f"{bad.partition(':')[0]}.py:" in run("parity", "check", good, bad).output


def test_what_ends_a_verb_is_no_fault_of_libraries_that_lie_beside_the_users_code(
    factory, monkeypatch
):
    plain = users_code.is_users  # as after `pip install --target` into the working directory
    monkeypatch.setattr(
        users_code, "is_users", lambda file: "click" in Path(file).parts or plain(file)
    )
    spec = factory(GOOD.format(forward=FINE))
    assert "PASS" in run("parity", "check", spec, spec, code=0).output


def test_an_export_of_a_forward_that_fails_leaves_nothing(factory, tmp_path):
    pytest.importorskip("coremltools")
    spec = factory(GOOD.format(forward="raise ValueError('forward refuses')"))
    output = run("export", "coreml", spec, tmp_path / "net.mlpackage").output
    assert f"{spec.partition(':')[0]}.py:" in output
    assert "forward refuses" in output
    assert not [path for path in tmp_path.iterdir() if "mlpackage" in path.name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("def forward(self, series)", "def forward(self, other)"), "series"),
        (("return self.linear(series)", "return None"), "out (NoneType)"),
        (("return self.linear(series)", "return {'other': series}"), "out (missing)"),
    ],
    ids=["takes other inputs", "returns nothing", "returns other names"],
)
def test_a_module_that_its_signature_does_not_describe_is_told(factory, tmp_path, change, said):
    spec = factory(GOOD.format(forward=FINE).replace(*change))
    output = run("parity", "record", spec, tmp_path / "golden").output
    assert "Net" in output
    assert said in output


def test_a_module_that_cannot_be_copied_is_told(factory, tmp_path):
    lock = "self.linear = torch.nn.Linear(3, 2); import threading; self.lock = threading.Lock()"
    code = GOOD.format(forward=FINE).replace("self.linear = torch.nn.Linear(3, 2)", lock)
    output = run("parity", "record", factory(code), tmp_path / "golden").output
    assert "Net cannot be copied" in output


def test_what_users_code_prints_leaves_the_document_alone(factory, tmp_path):
    code = GOOD.format(forward="print('in forward')").replace(
        "def build():", "print('top')\n\n    def build():"
    )
    result = run("parity", "check", factory(code), factory(code), "--quick", "--json", code=0)
    assert json.loads(result.stdout)["status"] == "PASS"
    assert "top" in result.stderr
    assert "in forward" in result.stderr


def test_a_factory_that_changes_the_working_directory_moves_nothing(factory, tmp_path):
    spec = factory(
        GOOD.format(forward=FINE).replace("return Net()", "import os; os.chdir('/'); return Net()")
    )
    run("parity", "record", spec, "golden", code=0)
    assert (tmp_path / "golden" / "golden.json").is_file()
    assert Path.cwd() == tmp_path


def test_a_bug_of_ours_stays_one(factory, tmp_path, monkeypatch):
    def broken(*_):
        exec(compile("raise RuntimeError", "ours.py", "exec"), {"__name__": TorchRunner.__module__})

    monkeypatch.setattr(TorchRunner, "run", broken)
    spec = factory(GOOD.format(forward=FINE))
    result = CliRunner().invoke(main, ["parity", "check", spec, spec])
    assert result.exit_code == 70, result.output


def test_a_bug_of_ours_that_their_code_runs_into_stays_one(factory, monkeypatch):
    from weighbridge.converters import documents

    def broken(*_):
        exec(compile("raise RuntimeError", "ours.py", "exec"), {"__name__": documents.__name__})

    monkeypatch.setattr(documents, "read_json", broken)
    spec = factory(
        "from weighbridge.converters import documents\ndef build():\n    documents.read_json(1)\n"
    )
    assert CliRunner().invoke(main, ["inspect", spec]).exit_code == 70


def test_ctrl_c_in_a_factory_is_an_interrupt(factory):
    run("inspect", factory("def build():\n    raise KeyboardInterrupt\n"), code=130)
