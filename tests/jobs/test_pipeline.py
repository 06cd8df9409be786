"""What a killed run leaves is taken up only as far as the next run would make the same."""

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from weighbridge import jobs
from weighbridge.converters.checkpoints import Staging
from weighbridge.converters.sidefiles import SIDECAR

MAP = "weighbridge map 1\nnorm.{n}.weight <-> same + 1\nlinear.weight <-> same\n"


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    numbers = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32)
    tensors = {f"norm.{n}.weight": numbers[n] for n in range(3)} | {"linear.weight": numbers}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text("{}")
    (folder / "own.wmap").write_text(MAP)
    return folder


def convert(source, **chosen):
    options = jobs.Options(check="none", map=str(source / "own.wmap"), **chosen)
    return jobs.convert(str(source), source.parent / "mlx", "mlx", options=options).target


def killed(source, monkeypatch, **chosen):
    """Convert SOURCE and be killed just before the result is published."""

    def die(*_):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "__exit__", lambda self, *_: os.close(self._lock))
        patched.setattr(Staging, "publish", die)
        with pytest.raises(Killed):
            convert(source, **chosen)
    assert (source.parent / ".mlx.staging").exists()


def test_a_run_with_other_sizes_of_files_leaves_none_of_them(source, monkeypatch):
    killed(source, monkeypatch, max_shard_size=64)
    target = convert(source)
    assert [path.name for path in target.glob("*.safetensors*")] == ["model.safetensors"]
    assert len(load_file(target / "model.safetensors")) == 4


def test_a_run_that_kept_a_sidecar_leaves_it_to_none_that_does_not(source, monkeypatch):
    killed(source, monkeypatch)
    assert not (convert(source, sidecar="none") / SIDECAR).exists()


def test_a_file_that_the_source_lost_since_is_not_in_the_result(source, monkeypatch):
    (source / "inner").mkdir()
    for name in ("gone.txt", "inner/gone.txt"):
        (source / name).write_text("x")
    killed(source, monkeypatch)
    for name in ("gone.txt", "inner/gone.txt"):
        (source / name).unlink()
    target = convert(source)
    assert not (target / "gone.txt").exists()
    assert not (target / "inner").exists()


def test_a_run_like_the_one_before_ends_as_if_it_had_not_been_killed(source, monkeypatch):
    whole = {path.name: path.read_bytes() for path in convert(source).iterdir()}
    killed(source, monkeypatch, force=True)
    resumed = convert(source, force=True)
    assert {path.name: path.read_bytes() for path in resumed.iterdir()} == whole
