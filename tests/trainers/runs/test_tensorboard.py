"""The figures of a run for TensorBoard, read back from what was written."""

from __future__ import annotations

import pytest

from weighbridge.tests.trainers.runs.test_loop import Killed, kill_after, records
from weighbridge.trainers.runs.loop import train


def scalars(folder):
    """Return what TensorBoard would show: group and name -> step -> the value that was written last."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in sorted(folder.glob("events*"), key=lambda path: path.stat().st_mtime_ns):
        data = file.read_bytes()
        while data:
            size = int.from_bytes(data[:8], "little")
            event = Event.FromString(data[12 : 12 + size])
            for value in event.summary.value:
                found.setdefault(value.tag, {})[event.step] = value.simple_value
            data = data[16 + size :]
    return found


def test_tensorboard_gets_the_figures_of_every_update(series_config, series_task, tmp_path):
    config, out = series_config(tensorboard=True), tmp_path / "run"
    with pytest.raises(Killed):
        train(config, out, backend="torch", task=series_task(config), progress=kill_after(3))
    train(config, out, backend="torch", task=series_task(config), resume=True)
    found = scalars(out / "tensorboard")
    losses = {row["step"]: row["loss"] for row in records(out) if "loss" in row}
    assert found["train/loss"] == pytest.approx(
        {step: losses[step] for step in found["train/loss"]}
    )
    assert found["train/loss"].keys() >= {3, 4, 5, 6}  # a kill may lose what was not validated yet
    assert found["validation/loss"].keys() == {0, 3, 6}
    assert {"train/learning_rate", "train/peak_memory_mb"} <= found.keys()
