"""Recurrent layers of any length in ONNX compute what torch does."""

import numpy as np
import pytest
import torch

from weighbridge.converters.onnx_export.export import export_onnx
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
