"""A small task of each kind, quick enough for every test."""

from __future__ import annotations

import json
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from weighbridge.trainers.config import validate
from weighbridge.trainers.runs import run
from weighbridge.trainers.tasks import build_task

WORDS = [
    "sum",
    "list",
    "sort",
    "text",
    "file",
    "path",
    "number",
    "mean",
    "open",
    "close",
    "read",
    "write",
    "name",
    "value",
    "key",
    "tree",
]


@pytest.fixture(autouse=True)
def _runs_are_drawn_only_where_marked(request, monkeypatch):
    """Draw the pictures of a run in tests marked ``pictures``: elsewhere they would be a tenth of its time."""
    if request.node.get_closest_marker("pictures") is None:
        for name in ("plot_run", "plot_speed"):
            monkeypatch.setattr(run, name, lambda *_, **__: None)


class Forecaster(torch.nn.Module):
    """A convolution and two linear layers: the forecast of the next three values of two series."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv1d(2, 5, 3)
        self.hidden = torch.nn.Linear(5 * 6, 7)
        self.head = torch.nn.Linear(7, 3)

    def forward(self, series):
        features = torch.tanh(self.convolution(series)).flatten(1)
        return self.head(torch.tanh(self.hidden(features)))


def make_forecaster():
    torch.manual_seed(3)
    return Forecaster().eval()


@pytest.fixture(scope="session")
def pairs_folder(tmp_path_factory):
    """Return a folder of train, validation and test pairs: documents repeat words of the query."""
    folder = tmp_path_factory.mktemp("pairs")
    generator = np.random.default_rng(5)
    for split, count in {"train": 40, "validation": 13, "test": 11}.items():
        rows = []
        for number in range(count):
            words = generator.choice(WORDS, 4, replace=False).tolist()
            query, document = " ".join(words), f"{split} {number} " + " ".join(words[::-1])
            rows.append(json.dumps({"query": query, "document": document}))
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="session")
def series_folder(tmp_path_factory):
    """Return a folder of train and validation series: phase-shifted waves and their next values."""
    folder = tmp_path_factory.mktemp("series")
    generator = np.random.default_rng(6)
    for split, count in {"train": 50, "validation": 12}.items():
        phase = generator.uniform(0, 6, (count, 2, 1))
        waves = np.sin(phase + np.arange(11) / 2).astype(np.float32)
        np.savez(folder / f"{split}.npz", series=waves[:, :, :8], target=waves[:, 0, 8:])
    return folder


@pytest.fixture
def pairs_config(pairs_folder):
    """Return a function that makes the configuration of a short adapter run."""

    def make(**changes):
        data = {"kind": "pairs", "lengths": {"query": [8, 12], "document": [16, 24]}}
        data |= {name: str(pairs_folder / f"{name}.jsonl") for name in ("train", "validation")}
        settings = {"model": "tiny", "data": data, "objective": {"name": "contrastive"}}
        settings |= {"adapter": {"rank": 2, "targets": ["query", "value"]}, "batch_size": 4}
        settings |= {"steps": 6, "validate_every": 3, "checkpoint_every": 2, "tolerance": 1e-3}
        return validate(settings | changes)

    return make


@pytest.fixture
def series_config(series_folder):
    """Return a function that makes the configuration of a short full fine-tuning run."""

    def make(**changes):
        data = {"kind": "series"} | {
            name: str(series_folder / f"{name}.npz") for name in ("train", "validation")
        }
        settings = {"model": "tiny", "data": data, "objective": {"name": "regression"}}
        settings |= {"batch_size": 8, "steps": 6, "validate_every": 3, "checkpoint_every": 2}
        return validate(settings | changes)

    return make


@pytest.fixture
def series_task(series_config):
    """Return a function that makes the task of a configuration, from the same initial weights."""
    return lambda config=None: build_task(config or series_config(), make_forecaster())


@pytest.fixture
def pairs_task(pairs_config, tiny_bert_dir):
    """Return a function that makes the task of a configuration, from the same initial weights."""
    from transformers import BertModel

    def make(config=None):
        model = BertModel.from_pretrained(tiny_bert_dir, add_pooling_layer=False)
        return build_task(config or pairs_config(), model, tiny_bert_dir)

    return make


class Ids:
    """Tokens that follow from the one before them, to go on with."""

    def __init__(self, split):
        first = np.random.default_rng(len(split)).integers(0, 59, (20, 1))
        self._ids = 1 + first * 7 ** np.arange(9) % 59

    def __len__(self):
        return len(self._ids)

    def batch(self, rows):
        ids = self._ids[rows]
        return {"ids": ids, "mask": np.ones_like(ids), "labels": ids}


@pytest.fixture(scope="session")
def decoder(tmp_path_factory):
    """Return the directory of a small decoder in 4 bits, as mlx-lm writes it; ``base`` beside it is not quantized."""
    from mlx_lm import utils
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("decoder")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
    torch.manual_seed(1)
    config = LlamaConfig(**sizes, **heads, initializer_range=0.2)
    LlamaForCausalLM(config).save_pretrained(folder / "base")
    model, config = utils.load_model(folder / "base")
    model, config = utils.quantize_model(model, config, group_size=32, bits=4)
    utils.save_model(folder / "small", model)
    utils.save_config(config, config_path=folder / "small" / "config.json")
    return folder / "small"


@pytest.fixture
def decoder_config(decoder, monkeypatch):
    """Return a function that makes the configuration of a run on it."""
    module = ModuleType("own_tokens")
    module.Ids = Ids
    monkeypatch.setitem(sys.modules, "own_tokens", module)

    def make(**changes):
        settings = {"model": str(decoder), "data": "own_tokens:Ids", "objective": "causal_lm"}
        settings |= {"adapter": {"rank": 2, "targets": ["q_proj", "down_proj"]}, "batch_size": 4}
        every = {"steps": 3, "validate_every": 3, "checkpoint_every": 3}
        return validate(settings | every | changes)

    return make
