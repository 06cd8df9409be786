"""Merged models written in shards, and resumed where a merge was killed."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import mlx.core as mx
import pytest

from weighbridge.converters.checkpoints import Staging, Writer
from weighbridge.jobs.merging.check import BAR
from weighbridge.tests.support.quantized_bases import (
    DOWN,
    QUERY,
    QUIET,
    merged,
    off,
    stored,
)


def test_shards_are_as_large_as_asked(base, small, tmp_path):
    options = replace(QUIET, max_shard_size=20_000)
    target = merged(base, small, tmp_path / "merged", options, promote=True).target
    whole = merged(base, small, tmp_path / "whole", promote=True).target
    assert len(list(target.glob("model-*.safetensors"))) > 2
    assert stored(target) == stored(whole)
    assert off(target, base, small) < BAR


class Killed(BaseException):
    """Stands for SIGKILL."""


def killed(monkeypatch, *arguments, **how):
    """Merge until half of a tensor of the second layer is on disk; nothing is tidied up."""
    write = Writer.write

    def die(self, name, data):
        if name != f"model.layers.1.{DOWN}.weight":
            return write(self, name, data)
        bytes_ = memoryview(data.tobytes())

        def pieces():
            yield bytes_[: len(bytes_) // 2]
            raise Killed

        return write(self, name, pieces())

    with monkeypatch.context() as patched:
        patched.setattr(Staging, "__exit__", lambda self, *_: os.close(self._lock))
        patched.setattr(Writer, "write", die)
        with pytest.raises(Killed):
            merged(*arguments, **how)


def test_a_killed_merge_is_resumed_to_the_same_bytes(base, small, tmp_path, monkeypatch):
    whole = merged(base, small, tmp_path / "whole", promote=True).target
    killed(monkeypatch, base, small, tmp_path / "merged", promote=True)
    assert (tmp_path / ".merged.staging").exists()
    written, write = set(), Writer.write
    monkeypatch.setattr(
        Writer, "write", lambda self, name, data: written.add(name) or write(self, name, data)
    )
    assert stored(merged(base, small, tmp_path / "merged", promote=True).target) == stored(whole)
    assert f"model.layers.1.{DOWN}.weight" in written
    assert f"model.layers.0.{QUERY}.weight" not in written


def test_what_a_killed_merge_of_another_adapter_left_is_not_taken_up(
    base, small, large, tmp_path, monkeypatch
):
    whole = merged(base, large, tmp_path / "whole", promote=True, force=True).target
    adapter = shutil.copytree(large, tmp_path / "adapter")
    file = adapter / "adapters.safetensors"
    halved = {name: array * 0.9 for name, array in mx.load(str(file)).items()}
    mx.save_safetensors(str(file), halved)
    killed(monkeypatch, base, adapter, tmp_path / "merged", promote=True, force=True)
    shutil.copy(large / file.name, file)
    target = merged(base, adapter, tmp_path / "merged", promote=True, force=True).target
    assert stored(target) == stored(whole)


def test_a_merge_into_codes_that_were_made_here_goes_back_to_pytorch(base, large, tmp_path):
    from weighbridge.converters.maps.sources.choose import known_map
    from weighbridge.converters.models import open as open_model
    from weighbridge.converters.planning.transcoding import goes_back_packed
    from weighbridge.converters.planning.view import dense_view

    made = tmp_path / "made"
    shutil.copytree(base, made)
    text = str(known_map(dense_view(open_model(str(base)))))
    record = {"framework": "mlx", "map": text, "quantized": {"weights": {}}}
    (made / "weighbridge.json").write_text(json.dumps(record))
    merged(made, large, tmp_path / "merged")
    assert not goes_back_packed(open_model(str(made)))
    assert not goes_back_packed(open_model(str(tmp_path / "merged")))
