"""Core AI's runtime and our evaluator of ML programs, two implementations by nobody in common, agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from weighbridge.converters.coreai_export import export_coreai
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.tests.converters.onnx_export.test_export import SIGNATURE, Forecaster
from weighbridge.tests.support.coreml.modules import gated

pytest.importorskip("coreai", reason="Core AI has no package for this machine")


def forecaster():
    torch.manual_seed(0)
    return Forecaster().eval(), SIGNATURE


def inputs_of(signature):
    """Return inputs of random ids or numbers for SIGNATURE."""
    random, sizes = np.random.default_rng(0), {"batch": 2, "sequence": 7, "time": 9}
    shapes = {it.name: [sizes.get(n, n) for n in it.shape] for it in signature.inputs}
    return {
        it.name: random.integers(0, 61, shapes[it.name])
        if it.dtype == "int64"
        else random.standard_normal(shapes[it.name]).astype(np.float32)
        for it in signature.inputs
    }


@pytest.mark.parametrize("build", [pytest.param(gated, marks=pytest.mark.heavy), forecaster])
def test_a_model_computes_the_same_as_a_package_and_as_an_asset(build, tmp_path):
    module, signature = build()
    package, asset = tmp_path / "m.mlpackage", tmp_path / "m.aimodel"
    export_coreml(module, signature, package, compute="float32")
    export_coreai(module, signature, asset)
    inputs, name = inputs_of(signature), signature.outputs[0].name
    ours = load(open_model(str(package)), "reference").run(inputs)[name]
    theirs = load(open_model(str(asset)), "coreai").run(inputs)[name]
    wide = {n: torch.from_numpy(it) for n, it in inputs.items()}
    wide = {n: it.double() if it.is_floating_point() else it for n, it in wide.items()}
    with torch.no_grad():
        exact = module.double()(**wide).numpy()
    assert ours == pytest.approx(exact, abs=3e-6)
    assert theirs == pytest.approx(ours, abs=3e-6)
