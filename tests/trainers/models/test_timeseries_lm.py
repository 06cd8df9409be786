"""The forecaster around a 4-bit decoder: what is around it learns, the codes stay, MLX computes with them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.trainers import bundled
from weighbridge.trainers.bundles import timeseries
from weighbridge.trainers.config import load_config
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.tasks import build_task

TRAINED = {
    f"{part}.{kind}" for part in ("encoder", "projector", "head") for kind in ("weight", "bias")
}
SETTINGS = ["batch_size=16", "validate_every=10", "checkpoint_every=20"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Let a few series be bundled, once for this module."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WEIGHBRIDGE_CACHE", str(folder))
        patch.setattr(timeseries, "EXAMPLES", {"train": 160, "validation": 48, "test": 16})
        yield folder


@pytest.fixture(scope="module")
def task(cache):
    config = load_config("timeseries-lm", SETTINGS)
    bundled.provide(config.sources())
    return config, build_task(config)


@pytest.fixture(scope="module")
def run(cache, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "run"
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    result = CliRunner().invoke(main, ["train", str(out), "--recipe", "timeseries-lm", *words])
    assert result.exit_code == 0, result.output
    return out


def test_validation_loss_falls_over_each_of_two_epochs(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["validation"]["loss"] for row in rows if "validation" in row]
    assert len(losses) == 3
    assert losses[0] > losses[1] > losses[2]


def test_what_is_trained_has_gradients_and_what_is_frozen_none(run):
    rows = json.loads((run / "preflight.json").read_text())["parameters"]
    trained = {
        row["name"].removeprefix("model."): row["largest"] for row in rows if row["trainable"]
    }
    assert trained.keys() == TRAINED
    assert all(min(largest.values()) > 0 for largest in trained.values())
    frozen = [row["largest"] for row in rows if not row["trainable"]]
    assert len(frozen) == 19
    assert all(set(largest.values()) == {None} for largest in frozen)


def test_mlx_computes_with_the_codes_what_pytorch_does_with_their_values(task):
    config, task = task
    mlx, torch = (make_step(backend, task, config) for backend in ("mlx", "torch"))
    assert len(mlx.model.blocks()) == 14  # every matrix of two layers
    inputs = task.splits["train"].batch(range(16)).inputs
    assert mlx.loss(inputs) == pytest.approx(torch.loss(inputs), rel=1e-5)


def test_a_run_leaves_the_decoder_as_it_was(run, task):
    _, task = task
    written = load_file(run / "model.safetensors")
    for name, tensor in task.module.state_dict().items():
        same = np.array_equal(written[name], tensor.numpy())
        assert same == (name not in TRAINED), name
