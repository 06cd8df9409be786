"""Recurrent layers of any length become operations of Core ML; which of them coremltools translates."""

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.coreml.translations import any_length
from weighbridge.tests.support.coreml import modules

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("name", ["long_lstm", "long_gru", "long_rnn"])
def test_a_package_computes_what_torch_does_at_every_length(name, tmp_path):
    module, signature = getattr(modules, name)()
    export_coreml(module, signature, tmp_path / "m.mlpackage", compute="float32")
    program = load_program(tmp_path / "m.mlpackage")
    for batch, time in ((1, 1), (3, 7), (2, 24)):
        series = np.random.default_rng(time).normal(size=(batch, time, 3)).astype(np.float32)
        with torch.no_grad():
            wanted = module(torch.from_numpy(series)).numpy()
        np.testing.assert_allclose(program.run({"series": series})["y"], wanted, 1e-5, 1e-5)


def test_layers_that_coremltools_does_not_translate_are_told():
    assert any_length(nn.LSTM(3, 4, bidirectional=True))
    assert not any_length(nn.LSTM(3, 4, proj_size=2))
    assert not any_length(nn.RNN(3, 4, bidirectional=True))
    assert not any_length(nn.Linear(3, 4))
