"""Recurrences over time, as in Mamba, in files of sizes that vary: at every length what transformers computes."""

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures.scans import SCAN, doubled, scanned, stepped
from weighbridge.converters.models.signature import Port, Signature
from weighbridge.tests.support.coreml.models import PACKAGED, lively

pytestmark = pytest.mark.filterwarnings("ignore")
LIMIT = 32
SIGNATURE = Signature(
    (Port("input_ids", "int64", ("batch", "sequence"), "token_ids", (("vocabulary", 61),)),),
    (Port("logits", "float32", ("batch", "sequence", 61), "logits"),),
)


class Scanned(nn.Module):
    def forward(self, decay, added):
        return SCAN(decay, added, 1)


@pytest.mark.parametrize("rewrite", [doubled, stepped])
def test_a_recurrence_is_that_of_a_loop_at_every_length(rewrite):
    sizes = {0: torch.export.Dim("batch", max=9), 1: torch.export.Dim("time", max=LIMIT)}
    given = (torch.ones(2, 3, 5), torch.ones(2, 3, 5))
    graph = torch.export.export(Scanned(), given, dynamic_shapes=(sizes, sizes))
    program = graph.run_decompositions({SCAN: rewrite}).module()
    for batch, time in ((1, 1), (2, 2), (3, 7), (1, LIMIT)):
        decay, added = torch.rand(batch, time, 5), torch.randn(batch, time, 5)
        state, wanted = torch.zeros(batch, 5), []
        for step in range(time):
            state = decay[:, step] * state + added[:, step]
            wanted.append(state)
        torch.testing.assert_close(program(decay, added), torch.stack(wanted, 1))


@pytest.fixture(scope="module")
def mamba():
    import transformers

    config = transformers.MambaConfig(**PACKAGED["Mamba"].sizes, use_cache=False)
    torch.manual_seed(0)
    return lively(transformers.MambaForCausalLM(config))


def test_mambas_are_told_from_others(mamba):
    assert scanned(mamba)
    assert not scanned(nn.LSTM(3, 4))


def texts(mamba, *lengths):
    """Yield token ids of several LENGTHS and what MAMBA makes of them."""
    for length in lengths:
        ids = np.random.default_rng(length).integers(0, 61, (1 + length % 2, length))
        with torch.no_grad():
            yield ids, mamba(torch.from_numpy(ids)).logits.numpy()


def test_core_ml_computes_it_up_to_its_limit(mamba, tmp_path):
    from weighbridge.converters.captures.mlprogram import load_program
    from weighbridge.converters.coreml.export import export_coreml

    export_coreml(mamba, SIGNATURE, tmp_path / "m.mlpackage", compute="float32")
    program = load_program(tmp_path / "m.mlpackage")
    for ids, wanted in texts(mamba, 1, 7, LIMIT):
        found = program.run({"input_ids": ids.astype(np.int32)})["logits"]
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@pytest.mark.heavy
def test_onnx_computes_it_beyond_the_sizes_that_it_was_written_for(mamba, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from weighbridge.converters.onnx_export.export import export_onnx

    export_onnx(mamba, SIGNATURE, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for ids, wanted in texts(mamba, 1, 7, 3 * LIMIT):
        (found,) = session.run(None, {"input_ids": ids})
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)


@pytest.mark.heavy
def test_core_ai_computes_it_beyond_the_sizes_that_it_was_written_for(mamba, tmp_path):
    pytest.importorskip("coreai_torch")
    from weighbridge.converters.coreai_export import export_coreai

    target = tmp_path / "m.aimodel"
    export_coreai(mamba, SIGNATURE, target)
    from weighbridge.converters.checkpoints.formats.coreai.asset import Asset

    process = Asset(target).process
    for ids, wanted in texts(mamba, 1, 7, 3 * LIMIT):
        found = process.ask("run", {"input_ids": ids.astype(np.int32)})["logits"]
        np.testing.assert_allclose(found, wanted, 1e-4, 1e-4)
