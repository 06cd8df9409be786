"""Recipes that need no download, by the one command that the documentation shows."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.torch import load_file

from weighbridge.cli import main
from weighbridge.converters.common.exits import Exit
from weighbridge.trainers import bundled
from weighbridge.trainers.bundles import library
from weighbridge.trainers.config import load_config
from weighbridge.trainers.models import gated_gpt, indicators

BUILD = {"indicators": indicators.build, "gated-lm": gated_gpt.build}
SMALL = {
    "indicators": ["data.interval=100", "model_options.width=8", "model_options.layers=1"],
    "gated-lm": ["model_options.width=8", "model_options.layers=1", "data.length=[32]"],
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Let bundled data be made once for this module, with few characters of the library."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIGHBRIDGE_CACHE", str(folder))
        patch.setattr(library, "CHARACTERS", {"test": 3000, "validation": 3000, "train": 20_000})
        patch.setattr(library, "VOCABULARY", 300)
        patch.setattr(library, "LARGEST", 5000)
        yield folder


def train(out, recipe, *settings):
    words = [word for setting in settings for word in ("--set", setting)]
    return CliRunner().invoke(main, ["train", str(out), "--recipe", recipe, *words])


@pytest.mark.parametrize("recipe", BUILD)
def test_a_recipe_trains_from_one_command_and_its_weights_load_in_torch(recipe, cache, tmp_path):
    run = tmp_path / "run"
    result = train(run, recipe, "steps=2", "batch_size=4", "npz=true", *SMALL[recipe])
    assert result.exit_code == 0, result.output
    config, weights = load_config(run / "config.yaml"), load_file(run / "model.safetensors")
    BUILD[recipe](**config.model_options).load_state_dict(weights, strict=True)
    with np.load(run / "model.npz") as arrays:
        assert {*arrays} == {*weights}
        assert all(np.array_equal(arrays[name], it.numpy()) for name, it in weights.items())
    assert "Next: weighbridge export coreml" in result.output
    figures = json.loads((run / "result.json").read_text())
    assert figures["metric"] == config.metric
    assert figures["test"]["after"].keys() >= {"loss", config.metric}


@pytest.mark.heavy
def test_what_a_run_says_to_type_next_exports_its_model(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = train("run", "gated-lm", "steps=1", "batch_size=4", *SMALL["gated-lm"])
    refused = CliRunner().invoke(main, ["inspect", "run"])
    assert "run is built by code, weighbridge.trainers.models.gated_gpt:build" in refused.stderr
    _, _, said = trained.output.rpartition("Next: weighbridge ")
    done = CliRunner().invoke(main, shlex.split(said))
    assert done.exit_code == 0, done.output
    assert "PASS" in done.output
    assert (tmp_path / "run.mlpackage").is_dir()


@pytest.mark.parametrize(
    ("recipe", "setting", "says"),
    [
        ("gated-lm", "unit=swigloo", "there is no unit swigloo; choose from gelu"),
        ("gated-lm", "heads=7", "width 96 is no multiple of 7 heads"),
        ("gated-lm", "vocabulary=100", "cannot take an example of the data, ids [1, 128]"),
        ("gated-lm", "positions=64", "cannot take an example of the data, ids [1, 128]"),
    ],
)
def test_an_option_that_does_not_fit_is_answered_in_one_line(
    recipe, setting, says, cache, tmp_path
):
    result = train(tmp_path / "run", recipe, f"model_options.{setting}")
    assert result.exit_code == Exit.FAILED
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "run").exists()


def test_texts_of_the_library_are_in_one_split_each(cache):
    bundled.provide([load_config("gated-lm").data.train])
    splits = {
        name: (bundled.folder("library") / f"{name}.jsonl").read_text()
        for name in library.CHARACTERS
    }
    texts = [line for text in splits.values() for line in text.splitlines()]
    assert len(set(texts)) == len(texts)
    for name, size in library.CHARACTERS.items():
        assert (
            size
            <= sum(len(json.loads(line)["text"]) for line in splits[name].splitlines())
            < size + 5000
        )


def test_the_tokenizer_of_the_library_gives_every_text_back(cache):
    from transformers import AutoTokenizer

    bundled.provide([load_config("gated-lm").tokenizer])
    tokenizer = AutoTokenizer.from_pretrained(bundled.folder("library") / "tokenizer")
    text = 'def f(x):\n\treturn "é" + x  # 日本\n'
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer.eos_token_id == 0
    assert len(tokenizer) == 300


@pytest.mark.heavy
def test_the_recipe_of_indicators_reaches_its_figure(cache, tmp_path):
    assert train(tmp_path / "run", "indicators").exit_code == 0
    test = json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    assert test["after"]["balanced_accuracy"] > 0.45  # chance is a third
    assert test["difference"]["low"] > 0
