"""Checkpoints: whole or not there, as many as are kept."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from weighbridge.errors import BadInputError
from weighbridge.trainers.runs import checkpoint as module
from weighbridge.trainers.runs.checkpoint import Checkpoint, Checkpoints

ARRAYS = {
    "scalar": np.array(7, np.uint64),
    "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "half": np.array([1.5], ml_dtypes.bfloat16),
    "empty": np.zeros((0, 3), np.float32),
}


def point(step, **facts):
    return Checkpoint(step, {"x": np.full(2, step, np.float32)}, facts)


def test_what_is_written_is_read(tmp_path):
    Checkpoints(tmp_path, 2).write(Checkpoint(3, ARRAYS, {"loss": 0.1}))
    found = Checkpoints(tmp_path, 2).latest()
    assert (found.step, found.facts["loss"]) == (3, 0.1)
    for name, array in ARRAYS.items():
        assert found.arrays[name].dtype == array.dtype
        assert np.array_equal(found.arrays[name], array)
        assert found.arrays[name].shape == array.shape


def test_the_last_ones_are_kept_and_the_best_ones_they_speak_of(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2)
    for step, best in {10: 5, 20: 15, 30: 15, 40: 35}.items():
        checkpoints.write_best(best, {}, {})
        checkpoints.write(point(step, best_step=best))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["best-00000015", "best-00000035", "step-00000030", "step-00000040"]
    assert checkpoints.best(35).step == 35


def test_what_a_killed_run_did_not_come_to_remove_is_removed_by_the_next(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 1)
    for step in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "_prune", lambda self: None)
            checkpoints.write_best(step, {}, {})
            checkpoints.write(point(step, best_step=2))
    (tmp_path / "best-00000001" / "state.json").unlink()
    assert Checkpoints(tmp_path, 1).latest().step == 2
    Checkpoints(tmp_path, 1).tidy()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-00000002", "step-00000002"]


@pytest.mark.parametrize("removed", ["state.json", "state.safetensors"])
def test_one_that_a_killed_run_was_removing_hinders_no_other(removed, tmp_path, monkeypatch):
    """Files of a folder are removed in any order, and a kill may come between two."""
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.write(point(1))

    def killed(path):
        (path / removed).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.write(point(2))
    again = Checkpoints(tmp_path, 1)
    assert again.latest().step == 2
    again.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_one_that_an_older_version_left_half_removed_hinders_no_other(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (1, 2):
        checkpoints.write(point(step))
    (tmp_path / "step-00000001" / "state.json").unlink()
    assert Checkpoints(tmp_path, 2).latest().step == 2


@pytest.mark.parametrize("moment", ["save_tensors", "_flush"])
def test_a_crash_while_writing_leaves_the_one_before(moment, tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 2)
    checkpoints.write(point(1))

    def crash(*_):
        raise OSError("disk full")

    monkeypatch.setattr(module, moment, crash)
    with pytest.raises(OSError, match="disk full"):
        checkpoints.write(point(2))
    monkeypatch.undo()
    assert Checkpoints(tmp_path, 2).latest().step == 1
    Checkpoints(tmp_path, 2).tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_there_may_be_none(tmp_path):
    assert Checkpoints(tmp_path / "nothing", 1).latest() is None


def test_a_damaged_one_is_named(tmp_path):
    path = Checkpoints(tmp_path, 1).write(point(4))
    (path / "state.safetensors").write_bytes(b"12345678")
    with pytest.raises(BadInputError, match="step-00000004"):
        Checkpoints(tmp_path, 1).latest()


def test_one_whose_tensors_are_a_pipe_or_a_device_is_named(tmp_path):
    tensors = Checkpoints(tmp_path, 1).write(point(4)) / "state.safetensors"
    for replace in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        tensors.unlink()
        replace(tensors)
        with pytest.raises(BadInputError, match="step-00000004"):
            Checkpoints(tmp_path, 1).latest()
