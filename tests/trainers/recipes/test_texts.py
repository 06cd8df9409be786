"""Recipes of language models and classifiers, by the commands that their pages show."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from tests.conftest import save_tokenizer, tiny_vocabulary
from weighbridge.cli import main
from weighbridge.trainers.bundles import docstrings, library
from weighbridge.trainers.data.stdlib_pairs import Pair


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Let few texts stand for those of the whole library."""
    kinds = ("read the file", "sort the list", "open a path", "sum of keys")

    def extract_pairs():
        return [
            Pair(f"{kinds[number % 4]} number {number}", "", f"package{number % 4}/m{number}.py")
            for number in range(120)
        ]

    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(docstrings, "extract_pairs", extract_pairs)
    monkeypatch.setattr(docstrings, "ENCODER", docstrings.ENCODER | {"num_hidden_layers": 1})
    monkeypatch.setattr(library, "CHARACTERS", {"test": 3000, "validation": 3000, "train": 9000})
    monkeypatch.setattr(library, "VOCABULARY", 300)
    monkeypatch.setattr(library, "LARGEST", 5000)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Return the directory of a small decoder with a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("decoder") / "model"
    words = tiny_vocabulary()
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "vocab_size": len(words), "max_position_embeddings": 64}
    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.2)).save_pretrained(folder)
    save_tokenizer(words, folder)
    return folder


def run(*words):
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result


def train(out, recipe, *settings):
    run("train", out, "--recipe", recipe, *(it for one in settings for it in ("--set", one)))
    return json.loads((out / "result.json").read_text())


def test_text_classification_learns_to_tell_packages_apart(cache, tmp_path):
    how = ["steps=12", "batch_size=16", "validate_every=12", "checkpoint_every=12"]
    found = train(tmp_path / "run", "text-classification", *how)
    assert found["metric"] == "accuracy"
    assert found["best"]["accuracy"] > found["before"]["accuracy"]
    assert found["test"]["after"].keys() >= {"balanced_accuracy", "macro_f1", "matthews"}


SHORT = ["steps=3", "batch_size=2", "data.length=[32]", "validate_every=3", "checkpoint_every=3"]


@pytest.mark.heavy
def test_causal_lora_trains_any_decoder_and_is_merged(cache, decoder, tmp_path):
    how = [f"model={decoder}", "optimizer.learning_rate=0.01", *SHORT]
    found = train(tmp_path / "run", "causal-lora", *how)
    assert found["best"]["perplexity"] < found["before"]["perplexity"]
    assert found["best"]["perplexity"] == pytest.approx(np.exp(found["best"]["loss"]))
    run("merge", decoder, tmp_path / "run", tmp_path / "tuned")
    assert len(json.loads((tmp_path / "tuned" / "weighbridge.json").read_text())["merged"]) == 8


@pytest.mark.heavy
def test_causal_qlora_trains_beside_codes_as_they_lie(cache, decoder, tmp_path):
    base = tmp_path / "base"
    run("convert", "torch-to-mlx", decoder, base, "--quantize", "4")
    before = (base / "model.safetensors").read_bytes()
    how = [f"model={base}", f"tokenizer={decoder}", "optimizer.learning_rate=0.01", *SHORT]
    found = train(tmp_path / "run", "causal-qlora", *how)
    assert found["best"]["loss"] < found["before"]["loss"]
    assert (base / "model.safetensors").read_bytes() == before
