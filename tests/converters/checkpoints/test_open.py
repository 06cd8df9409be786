"""In a directory of many files the right ones are opened, or nothing is."""

from __future__ import annotations

import json
from contextlib import nullcontext

import numpy as np
import pytest
import safetensors.numpy
import torch

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.errors import BadInputError

# From the file that wins over all others to the one that wins only alone.
PRECEDENCE = [
    "model.safetensors.index.json",
    "model.safetensors",
    "other.safetensors",
    "weights.npz",
    "other.npz",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "other.pt",
]


def save(folder, name):
    """Save a checkpoint with one tensor that is called like its file."""
    if name.endswith(".index.json"):
        stem, _, suffix = name.removesuffix(".index.json").partition(".")
        save(folder, shard := f"{stem}-00001-of-00001.{suffix}")
        (folder / name).write_text(json.dumps({"weight_map": {shard: shard}}))
    elif name.endswith(".safetensors"):
        safetensors.numpy.save_file({name: np.zeros(1)}, folder / name)
    elif name.endswith(".npz"):
        np.savez(folder / name, **{name: np.zeros(1)})
    else:
        torch.save({name: torch.zeros(1)}, folder / name)


@pytest.mark.parametrize("place", range(len(PRECEDENCE)))
def test_the_first_of_the_precedence_that_is_there_wins(place, tmp_path):
    for name in PRECEDENCE[place:]:
        if name != PRECEDENCE[place].replace(".index.json", ""):
            save(tmp_path, name)
    save(tmp_path, PRECEDENCE[place])
    everything = {path for path in tmp_path.iterdir() if not path.name.endswith(".index.json")}
    found = open_checkpoint(tmp_path)
    stem = PRECEDENCE[place].partition(".")[0]
    assert [
        path.name.partition(".")[0].removesuffix("-00001-of-00001") for path in found.files
    ] == [stem]
    assert len(found.headers) == 1
    ignored = {path for path in found.ignored if not path.name.endswith(".index.json")}
    assert ignored == everything - set(found.files)


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_a_whole_file_beside_an_index_of_others_is_refused(file, tmp_path):
    for name in (file, f"{file}.index.json"):
        save(tmp_path, name)
    with pytest.raises(BadInputError, match=f"{file} and the shards of {file}.index.json are two"):
        open_checkpoint(tmp_path)


def test_one_file_is_opened_by_its_suffix(tmp_path):
    for name in PRECEDENCE:
        save(tmp_path, name)
        assert len(open_checkpoint(tmp_path / name).headers) == 1


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", ".hidden.safetensors"])
def test_what_is_no_model_is_not_looked_at(name, tmp_path):
    (tmp_path / name).write_bytes(b"x")
    save(tmp_path, "a.bin")
    found = open_checkpoint(tmp_path)
    assert [path.name for path in found.files] == ["a.bin"]
    assert found.ignored == ()


REFUSED = {
    "missing": (lambda folder: folder / "none", "none: no such file or directory"),
    "empty": (lambda folder: folder, "no tensor files in it"),
    "cache": (
        lambda folder: ((folder / "snapshots" / "abc").mkdir(parents=True), folder)[1],
        "name a snapshot: .*snapshots/abc",
    ),
    "suffix": (lambda folder: touch(folder / "a.gguf"), "a.gguf is empty; expected a tensor file"),
    "two": (
        lambda folder: (touch(folder / "a.safetensors"), touch(folder / "b.safetensors"), folder)[
            2
        ],
        "no index says which of these files belong together: a.safetensors, b.safetensors",
    ),
}


def touch(path):
    path.touch()
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_opened_is_told(case, tmp_path):
    make, message = REFUSED[case]
    with pytest.raises(BadInputError, match=message):
        open_checkpoint(make(tmp_path))


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (("model.safetensors", "model_old.safetensors"), True),
        (("model.safetensors", "model-00001-of-00002.safetensors"), True),
        (("model.safetensors", "weights.safetensors"), False),  # mlx-lm does not read it
    ],
)
def test_a_file_from_which_mlx_reads_the_same_tensors_too_is_refused(names, refused, tmp_path):
    for value, name in enumerate(names):
        arrays = {"layer.weight": np.full(2, value, np.float32)}
        safetensors.numpy.save_file(arrays, tmp_path / name, metadata={"format": "mlx"})
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    model = open_model(tmp_path)
    assert model.framework == "mlx"
    with (
        pytest.raises(BadInputError, match=f"{names[1]} has 1 of the tensors")
        if refused
        else nullcontext()
    ):
        model.checkpoint.read("layer.weight")


def test_a_file_beside_that_has_other_tensors_is_left_alone(tmp_path):
    for name in ("model", "model_more"):
        arrays = {f"{name}.weight": np.ones(2, np.float32)}
        safetensors.numpy.save_file(
            arrays, tmp_path / f"{name}.safetensors", metadata={"format": "mlx"}
        )
    assert open_model(tmp_path).checkpoint.headers.keys() == {"model.weight"}
