"""Activations in 8 bits by the command line: ranges that are the source's own, a verdict, and faults named."""

from __future__ import annotations

import json
import shutil
import sys
from functools import cache

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from weighbridge.cli import main
from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.captures.mlprogram.package import (
    function_block,
    functions,
    read_package,
)
from weighbridge.converters.models import Port, Signature

pytestmark = pytest.mark.filterwarnings("ignore")
FOUND = "PASS" if sys.platform == "darwin" else "PASS-REFERENCE"
WIDTH = 48


class Layers(nn.Module):
    """Two layers and a sum, of realistic gain."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=1.5 / WIDTH**0.5)

    def hidden(self, x):
        """Return what the second layer reads."""
        return torch.nn.functional.gelu(self.first(x))

    def forward(self, x):
        """Return numbers of each row."""
        return {"y": self.second(self.hidden(x)) + x}


@cache
def layers():
    """Build the module and its signature."""
    ports = (
        (Port("x", "float32", ("rows", WIDTH), "hidden"),),
        (Port("y", "float32", ("rows", WIDTH), "hidden"),),
    )
    return Layers(), Signature(*ports)


SOURCE = f"{__name__}:layers"


def told(*arguments):
    """Return the exit code and what a command said."""
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    return result.exit_code, json.loads(result.stdout)


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Return a package in 8 bits, what was said of it, and the inputs that it was calibrated on."""
    folder = tmp_path_factory.mktemp("activations")
    rows = np.random.default_rng(3).standard_normal((2, 32, WIDTH)).astype(np.float32)
    np.savez(folder / "rows.npz", **{"a/x": rows[0] * 2, "b/x": rows[1]})
    target = folder / "m.mlpackage"
    options = ("--activations", "int8", "--quantize", "int8", "--calibrate", folder / "rows.npz")
    code, said = told("export", "coreml", SOURCE, target, *options, "--accept", "unverified")
    assert code == 0, said
    return target, said, folder / "rows.npz", rows * np.float32([[[2]], [[1]]])


def scales(package):
    """Return the scale of the codes that each kind of operation reads, by the name of what is rounded."""
    body = load_program(package).body
    return {
        op.input.name: float(op.scale.val) for op in body.operations if op.op_type == "quantize"
    }


def test_scales_are_the_ranges_that_the_source_itself_computes_on_all_samples(calibrated):
    package, _, _, rows = calibrated
    module = layers()[0]
    with torch.no_grad():
        hidden = [module.hidden(torch.from_numpy(it)).abs().max() for it in rows]
    found = scales(package)
    wanted = {"x": np.abs(rows).max() / 127, "gelu": float(max(hidden)) / 127}
    for start, scale in wanted.items():
        (own,) = (it for name, it in found.items() if name.startswith(start))
        assert own == pytest.approx(scale, rel=2**-9)  # twice rounded to float16


def test_a_check_on_what_it_was_calibrated_for_says_what_8_bits_cost(calibrated):
    package, _, file, _ = calibrated
    code, said = told("parity", "check", SOURCE, package, "--inputs", file)
    stages = {it["name"]: it for it in said["stages"]}
    assert (code, said["status"]) == (0, FOUND), said
    assert {stages[it]["status"] for it in ("compressed", "structure", "activations")} == {"pass"}
    program = load_program(package)
    rounded, plain = (
        it.run({"x": np.load(file)["a/x"]})["y"] for it in (program, program.unrounded())
    )
    moved = np.linalg.norm(rounded - plain) / np.linalg.norm(plain)
    assert 0 < moved < 2 * stages["activations"]["figures"]["moved"]["y"] < 0.1


def test_at_the_defaults_ranges_are_those_of_a_check(tmp_path):
    target = tmp_path / "m.mlpackage"
    code, said = told("export", "coreml", SOURCE, target, "--activations", "int8")
    assert (code, said["verdict"]["status"]) == (0, FOUND), said
    code, facts = told("inspect", target)
    assert code == 0
    assert facts["operations"]["main"]["quantize"] == 5


def rescaled(package, target, factor, start, ours=True):
    """Copy PACKAGE to TARGET, the steps of what begins with START times FACTOR.

    If not OURS, its record is left out and codes are made with the steps that they had.
    """
    shutil.copytree(package, target)
    read = read_package(target)
    block = function_block(read, functions(read)[0])

    def reading(kind, names):
        return [
            it
            for it in block.operations
            if it.type == kind and it.inputs["input"].arguments[0].name.startswith(names)
        ]

    made = reading("quantize", start)
    changed = reading("dequantize", tuple(it.outputs[0].name for it in made))
    changed += made if ours else []
    if not ours:
        read.spec.description.metadata.userDefined.clear()
    names = {it.inputs["scale"].arguments[0].name for it in changed}
    for it in block.operations:
        if it.type == "const" and it.outputs[0].name in names:
            value = it.attributes["val"].immediateValue.tensor.bytes
            value.values = (np.frombuffer(value.values, np.float16) * np.float16(factor)).tobytes()
    (read.weights.parent / "model.mlmodel").write_bytes(read.spec.SerializeToString())
    return target


@pytest.mark.parametrize(
    ("factor", "start", "words"),
    [
        (
            64,
            "gelu",
            "gelu_cast_fp16: its numbers take 0.016 of its codes, those of the others 0.99",
        ),
        (4, "gelu", "gelu_cast_fp16: its numbers take 0.25 of its codes, those of the others 0.99"),
        (4, "", "half of the values that are rounded take 0.25 of their codes or less"),
        (0.25, "gelu", "gelu_cast_fp16: it cuts off numbers up to 4 times its range"),
    ],
)
def test_steps_that_do_not_fit_are_named(calibrated, tmp_path, factor, start, words):
    package, _, file, _ = calibrated
    other = rescaled(package, tmp_path / "m.mlpackage", factor, start)
    code, said = told("parity", "check", SOURCE, other, "--inputs", file)
    assert (code, said["status"]) == (4, "UNVERIFIED"), said
    (stage,) = (it for it in said["stages"] if it["name"] == "activations")
    assert stage["detail"].startswith(words)


@pytest.mark.parametrize(("factor", "status"), [(1 + 2**-10, "UNVERIFIED"), (1.05, "DIFFERS")])
def test_scales_of_sums_that_other_tools_round_are_no_fault(calibrated, tmp_path, factor, status):
    package, _, file, _ = calibrated
    other = rescaled(package, tmp_path / "m.mlpackage", factor, "gelu", ours=False)
    _, said = told("parity", "check", SOURCE, other, "--inputs", file)
    (stage,) = (it for it in said["stages"] if it["name"] == "structure")
    assert said["status"] == status, said
    rounded = "scales of its 8-bit codes are rounded to float16, which may be why"
    assert stage["detail"].startswith(rounded) == (status == "UNVERIFIED")


def test_another_model_differs_behind_its_codes(calibrated, tmp_path):
    package, _, file, _ = calibrated
    code, said = told("parity", "check", f"{__name__}:others", package, "--inputs", file)
    assert (code, said.get("status")) == (1, "DIFFERS"), said


@cache
def others():
    """Build the same with the last bias moved."""
    module, signature = Layers(), layers()[1]
    module.second.bias.data += 0.01
    return module, signature


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--calibrate", "rows.npz"), "--calibrate is for --activations"),
        (("--activations", "int8", "--precision", "fp32"), "goes with mixed or float16"),
        (("--activations", "int8", "--target", "iOS16"), "runs on iOS17 and later"),
        (("--activations", "int8", "--calibrate", "none.npz"), "none.npz: No such file"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, options, words):
    target = str(tmp_path / "m.mlpackage")
    result = CliRunner().invoke(main, ["export", "coreml", SOURCE, target, *options])
    assert result.exit_code == 3
    assert words in result.stderr
    assert not [*tmp_path.iterdir()]


class Outlier(nn.Module):
    """A layer with one number 300 times as large as the others, as in BERT, and a norm that takes it back."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = (
            nn.Linear(WIDTH, 8 * WIDTH),
            nn.LayerNorm(8 * WIDTH),
            nn.Linear(8 * WIDTH, WIDTH),
        )
        for layer in (self.first, self.second):
            nn.init.normal_(layer.weight, std=1.5 / layer.in_features**0.5)
        self.first.bias.data[3] = 300
        self.norm.weight.data.fill_(10)
        self.norm.weight.data[3] = 0.01

    def forward(self, x):
        """Return numbers of each row."""
        return {"y": self.second(self.norm(self.first(x)))}


@cache
def outlier():
    """Build the module with a large number."""
    return Outlier(), layers()[1]


def test_values_that_8_bits_would_leave_nothing_of_stay_as_they_are(tmp_path):
    target = tmp_path / "m.mlpackage"
    code, said = told(
        "export", "coreml", f"{__name__}:outlier", target, "--activations", "int8", "--force"
    )
    assert code == 0, said
    assert max(scales(target).values()) < 300 / 127
    assert scales(target)  # others are rounded
    assert said["facts"]["outputs"]["y"] < 0.1, said["facts"]


class Rounding(Layers):
    """The same, its activations rounded as the package in SCALES has it."""

    scales: dict[str, float] = {}  # noqa: RUF012  # set by the test

    def coded(self, values, start):
        """Return VALUES at the nearest code of what begins with START."""
        (scale,) = (it for name, it in self.scales.items() if name.startswith(start))
        return (values / scale).round().clamp(-128, 127) * scale

    def forward(self, x):
        """Return numbers of each row."""
        x = self.coded(x, "x_")
        hidden = self.coded(
            torch.nn.functional.gelu(self.coded(self.first(x), "linear_cast")), "gelu"
        )
        return {"y": self.coded(self.coded(self.second(hidden), "linear_1") + x, "y_")}


@cache
def rounding():
    """Build the module that rounds."""
    return Rounding(), layers()[1]


def test_a_source_that_rounds_itself_is_compared_as_it_is(calibrated, monkeypatch):
    package, _, file, _ = calibrated
    monkeypatch.setattr(Rounding, "scales", scales(package))
    _, said = told("parity", "check", f"{__name__}:rounding", package, "--inputs", file)
    stages = {it["name"]: it["status"] for it in said["stages"]}
    assert stages["structure"] == "pass", (list(scales(package)), said)
    assert "activations" not in stages
