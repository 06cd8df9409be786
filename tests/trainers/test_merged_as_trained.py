"""An adapter trained by rounded weights is merged into exactly those: by the verbs, from training to merge."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.captures.torch_to_mlx.adapters.forms import summed
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.view import dense_view
from weighbridge.trainers.objectives.own import PREFIX
from weighbridge.trainers.runs.checkpoint import Checkpoints
from weighbridge.trainers.runs.loop import make_step
from weighbridge.trainers.tasks import build_task

RATE = 0.05


def run(*words):
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.output


def trained(folder, config):
    """Train CONFIG by the verb; return what it reports."""
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(config.model_dump(mode="json", exclude={"epochs"})))
    run("train", folder / "run", "--recipe", recipe)
    return json.loads((folder / "run" / "result.json").read_text())


def computed_with(config, run):
    """Return the weights, by torch name, that the best parameters of RUN are computed with."""
    task = build_task(config)
    step = make_step("mlx", task, config)
    result = json.loads((run / "result.json").read_text())
    step.assign(Checkpoints(run / "checkpoints", 1).best(result["best_step"]).arrays)
    wiring = step.model._wiring
    found = {}
    for name in task.grids.blocks:
        slot = wiring.slots[PREFIX + name]
        values = {key: wiring.location(key).get() for key in slot.parameters}
        found[name] = np.array(summed(slot.rounding.weight(), values, slot))
    return found


def loss_of(config, model):
    """Return the validation loss of the directory MODEL alone."""
    settings = config.model_copy(update={"model": str(model), "adapter": plain(config)})
    task = build_task(settings)
    step = make_step("mlx", task, settings)
    return task.objective.measure(step, task.splits["validation"], 4).metrics["loss"]


def plain(config):
    return config.adapter.model_copy(update={"quantize_aware": False, "dora": False})


@pytest.fixture(params=["codes", "original"])
def way(request, decoder):
    """Return what updates are added to, and options of the merge."""
    if request.param == "codes":
        return True, []
    base = decoder.parent / "base"
    return str(base), ["--original", base]


@pytest.mark.heavy
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_what_was_trained_is_what_is_merged(way, dora, decoder, decoder_config, tmp_path):
    wanted, options = way
    adapter = {
        "rank": 2,
        "targets": ["q_proj", "down_proj"],
        "quantize_aware": wanted,
        "dora": dora,
    }
    every = {"steps": 8, "validate_every": 4, "checkpoint_every": 4}
    config = decoder_config(adapter=adapter, optimizer={"learning_rate": RATE}, **every)
    result = trained(tmp_path, config)
    assert result["best"]["loss"] < result["before"]["loss"]
    assert result["next"].split()[1:4] == ["merge", str(decoder), str(tmp_path / "run")]
    run("merge", decoder, tmp_path / "run", tmp_path / "merged", *options)
    record = json.loads((tmp_path / "merged" / "weighbridge.json").read_text())
    assert any("2 layers were trained by sums rounded" in it for it in record["notes"])
    assert {it["verdict"] for it in record["merged"].values()} == {"pass"}
    assert record["verdict"]["status"] == "PASS", record["verdict"]
    assert record["figures"]["merge"] < 1e-6 < record["figures"]["effect"]
    merged = dense_view(open_model(str(tmp_path / "merged"))).checkpoint
    base = dense_view(open_model(str(decoder))).checkpoint
    for name, weight in computed_with(config, tmp_path / "run").items():
        assert np.allclose(merged.read(name), weight, rtol=1e-6, atol=1e-7)
        assert not np.array_equal(merged.read(name), base.read(name))
    assert loss_of(config, tmp_path / "merged") == pytest.approx(result["best"]["loss"], rel=1e-5)


@pytest.mark.heavy
def test_beside_a_base_in_gptq_a_run_says_the_conversion_and_then_the_merge(
    decoder, decoder_config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    how = ["--quant-method", "gptq", "--allow-lossy", "--check", "none"]
    run("convert", "mlx-to-torch", decoder, "gptq", *how)
    result = trained(tmp_path, decoder_config(model="gptq", optimizer={"learning_rate": RATE}))
    assert result["note"].startswith("then: weighbridge merge ")
    for line in (result["next"], result["note"].removeprefix("then: ")):
        run(*shlex.split(line)[1:], "--check", "none")
    merged = json.loads((tmp_path / "run-merged" / "weighbridge.json").read_text())["merged"]
    assert len(merged) == 2
