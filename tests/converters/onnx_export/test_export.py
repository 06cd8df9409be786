"""Exports to ONNX, run in onnxruntime and compared with torch."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from weighbridge.converters.captures.program_options import ProgramOptions
from weighbridge.converters.models import Port, Signature
from weighbridge.converters.models import open as open_model
from weighbridge.converters.onnx_export import writing
from weighbridge.converters.onnx_export.export import export_onnx
from weighbridge.converters.runtimes import load
from weighbridge.errors import BadInputError, UnsupportedError

SIGNATURE = Signature(
    (Port("series", "float32", ("batch", 3, "time"), "series", (("time", 40),)),),
    (Port("forecast", "float32", ("batch", 2), "hidden"),),
)


class Forecaster(nn.Module):
    """Two convolutions and a head, with a table of its own that is in no state dict."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(3, 6, 3, padding=1)
        self.inner = nn.Conv1d(6, 5, 5, padding=2)
        self.head = nn.Linear(5, 2)
        self.register_buffer("table", torch.linspace(0.5, 2, 6)[:, None], persistent=False)

    def forward(self, series):
        found = torch.tanh(self.convolution(series)) * self.table
        return self.head(torch.nn.functional.gelu(self.inner(found)).mean(-1))


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Return the module and the file that it was exported to."""
    torch.manual_seed(0)
    module = Forecaster().eval()
    path = tmp_path_factory.mktemp("onnx") / "forecaster.onnx"
    export_onnx(module, SIGNATURE, path)
    return module, path


@pytest.mark.parametrize(("batch", "time"), [(1, 1), (2, 3), (5, 17)])
def test_the_file_computes_what_the_module_does_at_every_size(exported, batch, time):
    module, path = exported
    series = np.random.default_rng(batch).standard_normal((batch, 3, time)).astype(np.float32)
    found = load(open_model(str(path))).run({"series": series})["forecast"]
    wanted = module(torch.from_numpy(series)).detach().numpy()
    assert found == pytest.approx(wanted, abs=1e-6)


def test_inputs_weights_and_buffers_keep_the_names_of_the_module(exported):
    module, path = exported
    model = open_model(str(path))
    assert model.signature.inputs[0].shape == ("batch", 3, "time")
    assert np.array_equal(
        model.checkpoint.read("convolution.weight"), module.convolution.weight.detach().numpy()
    )
    assert {*module.state_dict(), "table"} <= model.checkpoint.headers.keys()


def test_the_file_says_nothing_of_the_machine_that_made_it(exported):
    content = exported[1].read_bytes()
    assert b"/" + b"home" not in content
    assert b"test_export.py" not in content
    assert b"stack_trace" not in content


def test_an_export_is_the_same_every_time(exported, tmp_path):
    module, path = exported
    export_onnx(module, SIGNATURE, tmp_path / "forecaster.onnx")
    assert (tmp_path / "forecaster.onnx").read_bytes() == path.read_bytes()


class Undecided(nn.Module):
    def forward(self, series):
        return series if series.sum() > 0 else -series


def test_what_cannot_be_recorded_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(UnsupportedError, match=r"torch\.export cannot record the module"):
        export_onnx(Undecided(), SIGNATURE, tmp_path / "undecided.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("name", "upper", "message"),
    [("a.bin", {}, r"is named \*.onnx"), ("a.onnx", {"width": 3}, "no dimension width")],
)
def test_a_wrong_request_is_refused(tmp_path, name, upper, message):
    with pytest.raises(BadInputError, match=message):
        export_onnx(Forecaster(), SIGNATURE, tmp_path / name, ProgramOptions(upper=upper))


def test_a_file_of_somebody_elses_opens_by_its_graph(tmp_path):
    module, path = nn.Linear(3, 2).eval(), tmp_path / "plain.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.ones(4, 3),),
            path,
            dynamo=True,
            input_names=["x"],
            dynamic_shapes=({0: torch.export.Dim("rows")},),
            verbose=False,
        )
    model = open_model(str(path))
    assert [(port.name, port.shape) for port in model.signature.inputs] == [("x", ("rows", 3))]
    x = np.random.default_rng(0).standard_normal((7, 3)).astype(np.float32)
    (found,) = load(model).run({"x": x}).values()
    assert found == pytest.approx(module(torch.from_numpy(x)).detach().numpy(), abs=1e-6)


def test_data_beside_the_file_is_read_and_its_absence_is_said(exported, tmp_path):
    path = tmp_path / "apart.onnx"
    onnx.save_model(
        onnx.load(exported[1]), path, save_as_external_data=True, location="d", size_threshold=0
    )
    model, whole = open_model(str(path)), open_model(str(exported[1]))
    for name in whole.checkpoint.headers:
        assert np.array_equal(model.checkpoint.read(name), whole.checkpoint.read(name))
    assert {file.name for file in model.checkpoint.files} == {"apart.onnx", "d"}
    (tmp_path / "d").unlink()
    with pytest.raises(
        BadInputError, match=r"tensor convolution\.\w+ is kept in d, which is not there"
    ):
        open_model(str(path))


def test_weights_beside_the_graph_are_the_same_ones_in_the_same_bytes_every_time(
    exported, tmp_path, monkeypatch
):
    monkeypatch.setattr(writing, "LEAST", 100)
    module, path = exported
    for name in ("a", "b"):
        made = export_onnx(module, SIGNATURE, tmp_path / name, ProgramOptions(external_data=True))
        assert made.path == tmp_path / name / "model.onnx"
        assert made.nbytes == sum(it.stat().st_size for it in (tmp_path / name).iterdir())
    first, second = ({it.name: it.read_bytes() for it in (tmp_path / n).iterdir()} for n in "ab")
    assert first == second
    assert first.keys() == {"model.onnx", "model.onnx.data"}
    model, whole = open_model(str(tmp_path / "a")), open_model(str(path))
    for name in whole.checkpoint.headers:
        assert np.array_equal(model.checkpoint.read(name), whole.checkpoint.read(name))


def test_weights_too_large_for_one_file_are_refused_before_anything_is_recorded(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(writing, "LARGEST", 900)  # bytes; the weights are 980, halves fit
    with pytest.raises(UnsupportedError, match=r"larger than 2 GB.*--external-data"):
        export_onnx(Forecaster(), SIGNATURE, tmp_path / "a.onnx")
    module = Forecaster()
    module.register_buffer("table", module.table)  # what it makes itself would stay in float32
    export_onnx(module, SIGNATURE, tmp_path / "b.onnx", ProgramOptions("float16"))
    assert [it.name for it in tmp_path.iterdir()] == ["b.onnx"]
