"""What a verdict says of the smallest fault that it would have caught is true: such faults are planted."""

from __future__ import annotations

import json
import re
from textwrap import dedent

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from weighbridge.cli import main
from weighbridge.converters.models import Model, Port, Signature
from weighbridge.parity.check.check import check
from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.sketches.sketch import ArrayWeights, sketches
from weighbridge.parity.weights.smallest import smallest_change
from weighbridge.tests.support.atlas.tiny import make

PORTS = [Port(name, "float32", ("batch", 8, 6), "hidden", (("batch", 4),)) for name in "xy"]
SIGNATURE = Signature((PORTS[0],), (PORTS[1],))


class Layer(nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.line, self.off = nn.Linear(6, 6), 0.0
        generator = torch.Generator().manual_seed(seed)
        for weight in self.line.parameters():
            weight.data = torch.randn(weight.shape, generator=generator) * 0.6

    def forward(self, x):
        return (x + self.line(x).tanh()) * (1 + self.off)


def stack(off=0.0):
    """Return a model of four layers, the one in the middle off by OFF."""
    module = nn.Sequential(*(Layer(seed) for seed in range(4))).eval()
    module[2].off = off

    class Stack(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = module

        def forward(self, x):
            return self.layers(x)

    return Model("a stack", "torch", None, {}, factory=Stack(), declared=SIGNATURE)


def structure(off):
    return check(stack(), stack(off), runtime="torch").stage("structure")


def test_structure_catches_twice_the_fault_that_it_states_and_may_pass_a_tenth():
    stated = structure(0.0)
    assert stated.status == "pass"
    assert "smallest fault that this stage would have caught" in stated.detail
    smallest = stated.figures["smallest_fault"]
    assert smallest["what"] == "the output of layers.2"
    assert 1e-8 < smallest["size"] < 1e-4
    assert structure(2 * smallest["size"]).status == "fail"
    assert structure(smallest["size"] / 10).status == "pass"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_smallest_change_of_a_weight_is_its_last_bit(dtype):
    arrays = {"w": np.linspace(-2, 3, 12).astype(dtype).reshape(3, 4), "b": np.ones(5, dtype)}
    weights = ArrayWeights(arrays)
    reference = sketches(weights)
    found = explain(reference, weights, reference_arrays=weights.read)
    change = smallest_change(reference, weights, found, weights.read)
    changed = {**arrays, change.name: arrays[change.name].copy()}
    element = np.unravel_index(np.argmax(np.abs(changed[change.name])), changed[change.name].shape)
    changed[change.name][element] *= dtype(1 + change.size)
    again = explain(reference, ArrayWeights(changed), reference_arrays=weights.read)
    assert change.size <= 2 * np.finfo(dtype).eps
    assert not next(it.ok for it in again if it.name == change.name)


MODULE = """
    import torch
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.runtimes.torch import build_module

    def built(folder, site, size):
        model = open_model(folder)
        module = build_module(model)
        def off(_, __, out):
            first = out if isinstance(out, torch.Tensor) else out[0]
            moved = (first.double() * (1 + size)).to(first.dtype)
            return moved if isinstance(out, torch.Tensor) else (moved, *out[1:])
        if size:
            module.get_submodule(site).register_forward_hook(off)
        return module, model.signature
"""


def stage(reference, candidate, name="structure"):
    arguments = ["parity", "check", str(reference), str(candidate), "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return next(it for it in json.loads(result.stdout)["stages"] if it["name"] == name)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3_text"])
def test_the_verb_states_a_fault_of_which_it_catches_twice_as_much(kind, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = tmp_path / "source"
    make(kind, source)

    def candidate(site="", size=0.0):
        made = f"def build():\n    return built({str(source)!r}, {site!r}, {size!r})\n"
        name = re.sub(r"\W", "_", f"off_{tmp_path.name}_{size}")
        (tmp_path / f"{name}.py").write_text(dedent(MODULE) + made)
        return f"{name}:build"

    found = stage(source, candidate())
    smallest = found["figures"]["smallest_fault"]
    assert found["status"] == "pass"
    site = smallest["what"].removeprefix("the output of ")
    assert 1e-7 < smallest["size"] < 1e-2
    assert stage(source, candidate(site, 2 * smallest["size"]))["status"] == "fail"
    assert stage(source, candidate(site, smallest["size"] / 10))["status"] == "pass"
