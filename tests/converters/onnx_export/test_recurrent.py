"""Recurrent layers of any length in ONNX compute what torch does."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from weighbridge.converters.onnx_export.export import export_onnx
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.coreml import modules

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["long_lstm", "long_gru"])
def test_a_file_computes_what_torch_does_at_every_length(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module, signature = getattr(modules, name)()
    export_onnx(module, signature, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for batch, time in ((1, 1), (3, 7), (2, 24)):
        series = np.random.default_rng(time).normal(size=(batch, time, 3)).astype(np.float32)
        with torch.no_grad():
            wanted = module(torch.from_numpy(series)).numpy()
        (found,) = session.run(None, {"series": series})
        np.testing.assert_allclose(found, wanted, 1e-5, 1e-5)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(3, 5, batch_first=True)

    def forward(self, series):
        lengths = torch.full((series.shape[0],), series.shape[1])
        packed = pack_padded_sequence(series, lengths, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0][:, -1]


def test_packed_sequences_are_refused_by_name(tmp_path):
    _, signature = modules.long_lstm()
    with pytest.raises(UnsupportedError, match="ONNX: packed sequences have no form in it"):
        export_onnx(Packed(), signature, tmp_path / "m.onnx")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("both", [False, True])
def test_a_gru_is_exact_where_its_gates_are_saturated(both, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    layer = nn.GRU(3, 8, batch_first=True, bidirectional=both)

    class First(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, series):
            return self.layer(series)[0][..., :5]

    _, signature = modules.long_gru()
    export_onnx(First(), signature, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    series = 200 * np.random.default_rng(0).standard_normal((2, 9, 3)).astype(np.float32)
    (found,) = session.run(None, {"series": series})
    with torch.no_grad():
        wanted = layer.double()(torch.from_numpy(series).double())[0][..., :5].numpy()
    saturated = np.abs(wanted) > 1 - 1e-9
    assert saturated.sum() > 10
    assert np.abs(found - wanted)[saturated].max() < 1e-7
