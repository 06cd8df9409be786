"""Architectures beyond BERT, exported with both paddings and compared with torch."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn

from weighbridge.converters.captures.mlprogram import load_program
from weighbridge.converters.coreml.export import export_coreml
from weighbridge.converters.models.signature import Port, Signature

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import transformers

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48}  # fmt: skip
TEXT = {**SIZES, "vocab_size": 67, "max_position_embeddings": 64, "use_cache": False}
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
SHAPE, UPPER = ("batch", "sequence"), (("sequence", 64),)
HIDDEN = (Port("last_hidden_state", "float32", (*SHAPE, 32), "hidden"),)
TOKENS = Signature(
    (
        Port("input_ids", "int64", SHAPE, "token_ids", UPPER),
        Port("attention_mask", "int64", SHAPE, "attention_mask", UPPER),
    ),
    HIDDEN,
)
PIXELS = Signature((Port("pixel_values", "float32", ("batch", 3, 32, 32), "pixels"),), HIDDEN)
SERIES = Signature((Port("series", "float32", ("batch", 12, 3), "series"),), HIDDEN)


class Recurrent(nn.Module):
    """An LSTM and a GRU, which the exporter writes out step by step."""

    def __init__(self):
        super().__init__()
        self.lstm, self.gru = nn.LSTM(3, 8, 2, batch_first=True), nn.GRU(8, 6, batch_first=True)

    def forward(self, series):
        return self.gru(self.lstm(series)[0])[0]


def auto(config, **sizes):
    return lambda: transformers.AutoModel.from_config(getattr(transformers, config)(**sizes))


FAMILIES = {
    "Gemma": (auto("GemmaConfig", **GROUPED), TOKENS),
    "Llama": (auto("LlamaConfig", **GROUPED), TOKENS),
    "Qwen3": (auto("Qwen3Config", **GROUPED), TOKENS),
    "RoBERTa": (auto("RobertaConfig", **TEXT), TOKENS),
    "ViT": (auto("ViTConfig", **SIZES, image_size=32, patch_size=8), PIXELS),
    "recurrent": (Recurrent, SERIES),
}


def probe(signature, batch, length):
    """Return random inputs; the first example is padded left, the second right."""
    random, sizes = np.random.default_rng(length), {"batch": batch, "sequence": length}
    found = {}
    for port in signature.inputs:
        shape = [sizes.get(size, size) for size in port.shape]
        found[port.name] = (
            np.ones(shape, np.int64)
            if port.role == "attention_mask"
            else random.integers(3, 60, shape)
            if port.role == "token_ids"
            else random.standard_normal(shape).astype(np.float32)
        )
    if "attention_mask" in found and batch > 1:
        found["attention_mask"][0, :2] = 0
        found["attention_mask"][1, -3:] = 0
    return found


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("compute", "bound"), [("float32", 1e-5), ("float16", 5e-3)])
def test_a_family_computes_what_torch_computes(family, compute, bound, tmp_path):
    build, signature = FAMILIES[family]
    torch.manual_seed(0)
    module, path = build().eval(), tmp_path / "model.mlpackage"
    export_coreml(module, signature, path, compute=compute, upper={"batch": 4})
    program = load_program(path)
    for batch, length in ((1, 5), (3, 20)):
        inputs = probe(signature, batch, length)
        with torch.no_grad():
            outputs = module(**{name: torch.from_numpy(x) for name, x in inputs.items()})
        expected = (outputs if isinstance(outputs, torch.Tensor) else outputs[0]).numpy()
        (got,) = program.run(inputs).values()
        seen = inputs.get("attention_mask", np.ones(expected.shape[:2])).astype(bool)
        error = np.linalg.norm((got - expected)[seen]) / np.linalg.norm(expected[seen])
        assert error < bound
        assert np.isfinite(got).all()
