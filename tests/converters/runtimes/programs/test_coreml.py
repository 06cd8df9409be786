"""The Core ML runtime as far as it goes without a Mac."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest

from weighbridge.converters.captures.mlprogram.texts import Text
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.models.model import Model
from weighbridge.converters.runtimes.programs import coreml
from weighbridge.errors import BadInputError, UnsupportedError

MODEL = Model("m.mlpackage", "mlprogram", Path("m.mlpackage"), {})


@pytest.mark.skipif(platform.system() == "Darwin", reason="Core ML runs here")
def test_elsewhere_the_reference_runtime_is_named():
    with pytest.raises(UnsupportedError, match="needs macOS; the reference runtime"):
        coreml.CoremlRunner(MODEL, Policy())


def test_unknown_devices_and_models_without_a_package_are_refused(monkeypatch):
    monkeypatch.setattr(coreml.platform, "system", lambda: "Darwin")
    for model, device in ((MODEL, "tpu"), (Model("a:b", "torch", None, {}), "cpu")):
        with pytest.raises(BadInputError, match="need a package, and cpu, gpu, ane, all"):
            coreml.CoremlRunner(model, Policy(device=device))


@pytest.fixture
def runner():
    """A runner whose model is a stand-in that answers as ``predict`` does."""

    class Stub:
        def predict(self, inputs):
            assert {name: x.dtype.name for name, x in inputs.items()} == {
                "ids": "int32", "x": "float32",
            }  # fmt: skip
            if inputs["ids"].max() > 9:
                raise RuntimeError("index out of range\nmore")
            return {"y": inputs["x"].astype(np.float16)}

    made = coreml.CoremlRunner.__new__(coreml.CoremlRunner)
    made.model = Stub()
    return made


def feed(highest):
    return {"ids": np.arange(highest), "x": np.ones(3, np.float64)}


def test_inputs_are_given_as_predict_takes_them_and_outputs_widened(runner):
    assert runner.run(feed(3))["y"].dtype == np.float32


def test_a_failure_inside_core_ml_is_one_line(runner):
    with pytest.raises(
        BadInputError, match=r"Core ML cannot run on this input: index out of range$"
    ):
        runner.run(feed(20))


def test_every_row_of_a_text_is_read_with_a_state_of_its_own(runner):
    class Counting:
        """Returns how many tokens the state saw, and checks where the caller says it is."""

        def make_state(self):
            return {"read": 0}

        def predict(self, inputs, state):
            assert inputs["at"].tolist() == [state["read"]]
            state["read"] += inputs["ids"].shape[1]
            return {"y": np.full(inputs["ids"].shape, state["read"], np.float16)}

    runner.model, runner.text = Counting(), Text("ids", "at")
    ids = {"ids": np.ones((2, 5), np.int64)}
    assert runner.run(ids)["y"].tolist() == [[5] * 5] * 2
    assert runner.run_in_pieces(ids, [2, 3])["y"].tolist() == [[2, 2, 5, 5, 5]] * 2


def test_core_ml_shows_no_sites_and_takes_no_corrections(runner):
    assert runner.trace(feed(3)).sites == {}
    with pytest.raises(UnsupportedError, match="cannot be corrected"):
        runner.trace(feed(3), {"a": np.ones(1)})
