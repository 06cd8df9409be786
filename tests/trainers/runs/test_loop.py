"""Whole runs: what they leave, that they repeat, go on, and refuse."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal

import numpy as np
import pytest
import yaml

from weighbridge.converters.adapters import read_adapter
from weighbridge.converters.checkpoints import locked
from weighbridge.errors import (
    BadInputError,
    DivergedError,
    MismatchError,
    TargetExistsError,
    Terminated,
    WeighbridgeError,
)
from weighbridge.trainers.runs.events import TIMES, Started, Updated, Validated
from weighbridge.trainers.runs.interrupts import STOPPING, TrainingInterrupted, TrainingTerminated
from weighbridge.trainers.runs.journal import Journal, read_records
from weighbridge.trainers.runs.loop import train
from weighbridge.trainers.runs.run import Run

BACKENDS = ["mlx", "torch"]


class Killed(Exception):  # noqa: N818 - not an error
    """Stands for a kill between two instructions."""


def kill_after(step):
    """Return a progress callback that ends the run once the loss of STEP was read."""

    def progress(event):
        if isinstance(event, Updated) and event.step == step:
            raise Killed

    return progress


def records(out):
    rows = read_records(out / "metrics.jsonl")
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows]


def weights(out):
    from safetensors.numpy import load_file

    [file] = [
        out / name
        for name in ("adapters.safetensors", "model.safetensors")
        if (out / name).exists()
    ]
    return load_file(file)


def same_run(one, other):
    """Assert that two runs are equal bit for bit."""
    assert records(one) == records(other)
    ours, theirs = weights(one), weights(other)
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.pictures
@pytest.mark.parametrize("backend", [pytest.param("mlx", marks=pytest.mark.heavy), "torch"])
def test_a_run_leaves_an_adapter_its_configuration_and_its_record(
    backend, pairs_config, pairs_task, tmp_path
):
    events = []
    out, config = tmp_path / "run", pairs_config()
    result = train(config, out, backend=backend, progress=events.append, task=pairs_task(config))
    adapter = read_adapter(out)
    assert len(adapter.updates) == 4  # query and value of two layers
    assert {update.rank for update in adapter.updates.values()} == {2}
    assert yaml.safe_load((out / "config.yaml").read_text()) == config.model_dump(mode="json")
    assert json.loads((out / "result.json").read_text()) == json.loads(
        json.dumps(result.document())
    )
    assert (out / "loss.png").stat().st_size > 10_000
    assert [event.step for event in events if isinstance(event, Updated)] == [1, 2, 3, 4, 5, 6]
    assert [event.step for event in events if isinstance(event, Validated)] == [0, 3, 6]
    assert result.best["mrr"] == max(e.metrics["mrr"] for e in events if isinstance(e, Validated))


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_reduces_the_loss(backend, series_config, series_task, tmp_path):
    config = series_config(steps=40, validate_every=40, optimizer={"learning_rate": 0.01})
    result = train(config, tmp_path / "run", backend=backend, task=series_task(config))
    assert result.best["loss"] < result.before["loss"] / 3


def test_both_backends_learn_the_same(series_config, series_task, tmp_path):
    config = series_config(steps=12, accumulation=2)
    outs = [tmp_path / backend for backend in BACKENDS]
    for out in outs:
        train(config, out, backend=out.name, task=series_task(config))
    losses = [[row["loss"] for row in records(out) if "loss" in row] for out in outs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    ours, theirs = map(weights, outs)
    assert all(np.allclose(ours[name], theirs[name], atol=1e-5) for name in theirs)


@pytest.mark.parametrize(("backend", "killed"), [("torch", 1), ("torch", 3), ("mlx", 5)])
def test_a_killed_run_ends_as_if_it_had_not_been(
    backend, killed, series_config, series_task, tmp_path
):
    config = series_config(accumulation=2)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(config, straight, backend=backend, task=series_task(config))
    with pytest.raises(Killed):
        train(
            config, broken, backend=backend, progress=kill_after(killed), task=series_task(config)
        )
    train(None, broken, backend=backend, resume=True, task=series_task(config))
    same_run(straight, broken)


def test_batches_made_ahead_by_any_number_of_threads_are_the_same(
    series_config, series_task, tmp_path
):
    ways = {"none": {"workers": 0}, "one": {}, "many": {"workers": 3, "depth": 7}}
    for name, prefetch in ways.items():
        config = series_config(prefetch=prefetch, accumulation=2)
        train(config, tmp_path / name, backend="torch", task=series_task(config))
    same_run(tmp_path / "none", tmp_path / "one")
    same_run(tmp_path / "none", tmp_path / "many")


def test_a_run_repeats_and_the_validations_do_not_matter(series_config, series_task, tmp_path):
    often = series_config(validate_every=1)
    for name, config in {"one": series_config(), "two": series_config(), "often": often}.items():
        train(config, tmp_path / name, task=series_task(config))
    same_run(tmp_path / "one", tmp_path / "two")
    losses = [
        [row["loss"] for row in records(tmp_path / name) if "loss" in row]
        for name in ("one", "often")
    ]
    assert losses[0] == losses[1]


def test_an_interrupt_writes_a_checkpoint_and_says_how_to_go_on(
    series_config, series_task, tmp_path
):
    before = signal.getsignal(signal.SIGINT)
    config = series_config(checkpoint_every=6)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(config, straight, task=series_task(config))

    def press(event):
        if isinstance(event, Updated) and event.step == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingInterrupted, match=f"train {stopped} --resume"):
        train(config, stopped, progress=press, task=series_task(config))
    assert (stopped / "checkpoints" / "step-00000002").is_dir()
    assert signal.getsignal(signal.SIGINT) is before
    train(config, stopped, resume=True, task=series_task(config))
    same_run(straight, stopped)


def test_resuming_a_finished_run_changes_nothing(series_config, series_task, tmp_path):
    config, out = series_config(), tmp_path / "run"
    train(config, out, task=series_task(config))
    before = records(out), weights(out)
    train(config, out, resume=True, task=series_task(config))
    assert records(out) == before[0]
    assert all(np.array_equal(weights(out)[name], value) for name, value in before[1].items())


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_that_is_not_finite_is_skipped_and_counted(
    backend, series_config, series_task, tmp_path
):
    config = series_config(nonfinite_limit=3)
    task = series_task(config)
    train_set = task.splits["train"]
    poisoned = task.order(config)[2]  # the batch of the third update

    def poison(event):  # preflight has seen the largest values by then
        if isinstance(event, Started):
            train_set.arrays["target"][poisoned[0]] = np.inf

    result = train(config, tmp_path / "run", backend=backend, progress=poison, task=task)
    rows = [row for row in records(tmp_path / "run") if "loss" in row]
    assert [row["step"] for row in rows if row["skipped"]] == [3]
    assert result.skipped == 1
    assert all(np.isfinite(value).all() for value in weights(tmp_path / "run").values())


def poison_after_first(task, config):
    """Return what spoils all batches of TASK but the first once a run has started."""
    first = set(task.order(config)[0])

    def poison(event):  # preflight has seen the largest values by then
        if isinstance(event, Started):
            for row in set(range(50)) - first:
                task.splits["train"].arrays["target"][row] = np.nan

    return poison


@pytest.mark.parametrize("backend", BACKENDS)
def test_too_many_in_a_row_stop_the_run_with_the_batch_saved(
    backend, series_config, series_task, tmp_path
):
    config = series_config(nonfinite_limit=2)
    task = series_task(config)
    with pytest.raises(DivergedError, match="2 updates in a row up to step 3") as caught:
        train(
            config,
            tmp_path / "run",
            backend=backend,
            progress=poison_after_first(task, config),
            task=task,
        )
    saved = tmp_path / "run" / "nonfinite-step-3.npz"
    assert str(saved) in str(caught.value)
    assert np.isnan(np.load(saved)["0.target"]).any()


@pytest.mark.parametrize("backend", BACKENDS)
def test_weights_that_no_update_can_mend_end_the_run_and_the_best_are_kept(
    backend, series_config, series_task, tmp_path
):
    config = series_config(optimizer={"learning_rate": 1e30}, nonfinite_limit=9)
    with pytest.raises(DivergedError, match=r"weights have diverged: the last .* of step 0,"):
        train(config, tmp_path / "run", backend=backend, task=series_task(config))
    [validated] = [row for row in records(tmp_path / "run") if row.get("step") == 0]
    assert np.isfinite(validated["validation"]["loss"])


def test_a_run_that_ends_without_finite_updates_and_never_was_better_does_not_end_well(
    series_config, series_task, tmp_path
):
    """Its weights are finite, and so is what they find: too large a rate made them useless."""
    config = series_config(optimizer={"learning_rate": 1e4}, nonfinite_limit=9, steps=3)
    task = series_task(config)
    with pytest.raises(DivergedError, match=r"last 2 updates .* no validation was any better"):
        train(
            config,
            tmp_path / "run",
            backend="torch",
            progress=poison_after_first(task, config),
            task=task,
        )


def test_a_run_does_not_overwrite(series_config, series_task, tmp_path):
    with pytest.raises(TargetExistsError, match="--resume"):
        train(series_config(), tmp_path, task=series_task())


def test_only_a_run_can_be_resumed(series_config, series_task, tmp_path):
    with pytest.raises(BadInputError, match="no run to resume"):
        train(series_config(), tmp_path, resume=True, task=series_task())
    with pytest.raises(BadInputError, match="needs a configuration"):
        train(None, tmp_path / "new", task=series_task())


def test_another_configuration_data_or_backend_cannot_go_on(series_config, series_task, tmp_path):
    config, out = series_config(), tmp_path / "run"
    train(config, out, task=series_task(config))
    with pytest.raises(MismatchError, match="steps: 6 in the run, 7 asked for"):
        train(series_config(steps=7), out, resume=True, task=series_task())
    with pytest.raises(MismatchError, match="backend: mlx in the checkpoint, torch now"):
        train(config, out, backend="torch", resume=True, task=series_task(config))
    task = series_task(config)
    other = type(task.splits["train"])({k: v[:-1] for k, v in task.splits["train"].arrays.items()})
    task.splits["train"] = other
    with pytest.raises(MismatchError, match="data: "):
        train(config, out, resume=True, task=task)


def test_an_unknown_backend_is_refused_and_leaves_nothing(series_config, series_task, tmp_path):
    with pytest.raises(BadInputError, match="choose from mlx, torch"):
        train(series_config(), tmp_path / "run", backend="jax", task=series_task())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_writes_a_checkpoint_too(number, series_config, series_task, tmp_path):
    old = signal.signal(number, signal.SIG_DFL)  # whoever runs the tests may ignore it
    before = [signal.getsignal(one) for one in STOPPING]
    config = series_config(checkpoint_every=6)

    def end(event):
        if isinstance(event, Updated) and event.step == 2:
            signal.raise_signal(number)

    with pytest.raises(TrainingTerminated, match="--resume"):
        train(config, tmp_path / "run", progress=end, task=series_task(config))
    assert (tmp_path / "run" / "checkpoints" / "step-00000002").is_dir()
    assert [signal.getsignal(one) for one in STOPPING] == before
    signal.signal(number, old)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Terminated])
def test_a_signal_while_the_result_is_written_says_how_to_go_on(
    kind, series_config, series_task, tmp_path, monkeypatch
):
    def end(_):
        raise kind("nothing was left behind")

    config, out = series_config(steps=2), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(Run, "plot", end)
        with pytest.raises(kind, match="--resume"):
            train(config, out, task=series_task(config))
    assert train(config, out, resume=True, task=series_task(config)).best_step == 2


def test_a_run_that_another_process_writes_is_not_touched(series_config, series_task, tmp_path):
    config, out = series_config(), tmp_path / "run"
    train(config, out, task=series_task(config))
    with locked(out), pytest.raises(WeighbridgeError, match="another run is writing"):
        train(config, out, resume=True, task=series_task(config))


def test_a_disk_without_room_is_noticed_before_the_first_step(
    series_config, series_task, tmp_path, monkeypatch
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    config, seen = series_config(), []
    with pytest.raises(WeighbridgeError, match=r"it needs [\d,]+ bytes, 0 are free"):
        train(config, tmp_path / "run", progress=seen.append, task=series_task(config))
    assert not [event for event in seen if isinstance(event, Updated)]
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_during_a_run_leaves_one_that_goes_on(
    series_config, series_task, tmp_path, monkeypatch
):
    config = series_config(checkpoint_every=2)
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    train(config, straight, task=series_task(config))
    append, calls = Journal.append, []

    def full(self, record):
        calls.append(record)
        if len(calls) == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, record)

    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", full)
        with pytest.raises(WeighbridgeError, match=f"No space left.*train {stopped} --resume"):
            train(config, stopped, task=series_task(config))
    train(config, stopped, resume=True, task=series_task(config))
    same_run(straight, stopped)


def test_a_run_does_not_go_on_with_other_frozen_weights(series_config, series_task, tmp_path):
    config, out = series_config(steps=2, freeze=["convolution"]), tmp_path / "run"
    train(config, out, backend="torch", task=series_task(config))
    task = series_task(config)
    next(it for it in task.module.parameters() if not it.requires_grad).data[0, 0] += 1
    with pytest.raises(MismatchError, match=r"model: \w+ in the checkpoint, \w+ now"):
        train(config, out, backend="torch", resume=True, task=task)


def test_a_model_that_changes_during_the_run_is_not_recorded_as_the_base(
    series_config, series_task, tmp_path
):
    base, out = tmp_path / "base", tmp_path / "run"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"old")
    config = series_config(model=str(base))

    def change(event):
        if isinstance(event, Updated) and event.step == 2:
            (base / "model.safetensors").write_bytes(b"new one")

    with pytest.raises(BadInputError, match=r"model\.safetensors changed during the run.*--resume"):
        train(config, out, progress=change, task=series_task(config))
    assert not (out / "model.safetensors").exists()
    train(config, out, resume=True, task=series_task(config))
    assert (out / "model.safetensors").exists()


def test_data_that_changes_during_the_run_is_told_and_the_run_goes_on_with_the_old(
    series_config, series_task, tmp_path
):
    config, out = series_config(), tmp_path / "run"
    data = config.data.train
    old, stat = data.read_bytes(), data.stat()

    def change(event):
        if isinstance(event, Updated) and event.step == 2:
            data.write_bytes(b"other data")

    try:
        with pytest.raises(BadInputError, match=r"train\.npz changed during the run.*--resume"):
            train(config, out, progress=change, task=series_task(config))
    finally:
        data.write_bytes(old)
        os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not (out / "model.safetensors").exists()
    train(config, out, resume=True, task=series_task(config))
    assert (out / "model.safetensors").exists()
