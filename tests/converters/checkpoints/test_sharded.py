"""An index is obeyed, and what it promises is there."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.checkpoints.formats.safetensors import SafetensorsFile
from weighbridge.converters.checkpoints.sharded import ShardedCheckpoint
from weighbridge.errors import BadInputError, MismatchError

SHARDS = {
    "model-00001-of-00002.safetensors": {"b": np.arange(3.0), "a": np.arange(4.0)},
    "model-00002-of-00002.safetensors": {"c": np.arange(5.0)},
}
HOMES = {name: file for file, tensors in SHARDS.items() for name in tensors}
BAD_INDEXES = {
    "not JSON": b"{",
    "no weight_map": b"{}",
    "a list": b"[]",
    "weight_map of numbers": b'{"weight_map": {"a": 1}}',
    "weight_map as a list": b'{"weight_map": ["a"]}',
    "not UTF-8": b"\xff",
}
OUTSIDE = [
    "../model.safetensors",
    "/etc/passwd",
    "sub/model.safetensors",
    "..",
    "",
    "c:\\a",
    "..\\a",
]


def save(folder, homes=HOMES, shards=SHARDS):
    for file, tensors in shards.items():
        safetensors.numpy.save_file(tensors, folder / file, metadata={"format": "pt"})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 96}, "weight_map": homes}))
    return index


def test_tensors_of_all_shards_are_one_checkpoint(tmp_path):
    found = open_checkpoint(save(tmp_path).parent)
    assert list(found.headers) == ["a", "b", "c"]  # by file, then by bytes
    assert found.metadata == {"format": "pt"}
    assert [path.name for path in found.files] == list(SHARDS)
    for tensors in SHARDS.values():
        for name, array in tensors.items():
            assert (found.read(name) == array).all()
            assert b"".join(map(bytes, found.stream(name))) == array.tobytes()


def test_a_stray_file_is_ignored_and_listed(tmp_path):
    save(tmp_path)
    stray = tmp_path / "model_old.safetensors"
    safetensors.numpy.save_file({"c": np.zeros(5)}, stray)
    found = open_checkpoint(tmp_path)
    assert found.ignored == (stray,)
    assert found.read("c")[1] == 1.0


def test_a_tensor_in_two_shards_is_refused_with_both_file_names(tmp_path):
    one, other = SHARDS
    shards = {one: {"a": np.ones(4), "b": np.ones(3), "c": np.zeros(5)}, other: SHARDS[other]}
    with pytest.raises(MismatchError) as caught:
        open_checkpoint(save(tmp_path, HOMES, shards).parent)
    assert caught.value.problems == (
        f"c is stored twice, in {one} and in {other}; nothing tells which one is meant",
    )


def test_a_tensor_that_the_index_names_twice_is_refused_with_both_file_names(tmp_path):
    index = save(tmp_path)
    one, other = SHARDS
    index.write_text(index.read_text().replace('"a":', f'"c": "{one}", "a":'))
    with pytest.raises(BadInputError, match=f"c is named twice, for {one} and {other}"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["x" * 256, "\N{EURO SIGN}" * 90, "a\0b"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    index = save(tmp_path)
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(MismatchError, match="cannot be the name of a file"):
        open_checkpoint(tmp_path)


def test_all_shards_that_cannot_be_read_are_told_together(tmp_path):
    save(tmp_path)
    for file in SHARDS:
        (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:-1])
    with pytest.raises(MismatchError) as caught:
        open_checkpoint(tmp_path)
    assert len(caught.value.problems) == 2
    for file, problem in zip(SHARDS, caught.value.problems, strict=True):
        assert f"{file}: truncated: tensor " in problem


@pytest.mark.parametrize("case", BAD_INDEXES)
def test_what_is_no_index_is_told(case, tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(BAD_INDEXES[case])
    with pytest.raises(BadInputError, match=r"index\.json: .*; download or save it again"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("file", OUTSIDE)
def test_an_index_cannot_point_outside_its_folder(file, tmp_path):
    index = save(tmp_path, HOMES | {"d": file})
    with pytest.raises(MismatchError, match="outside the folder of the index"):
        ShardedCheckpoint(index, SafetensorsFile)


def test_shards_may_be_links_as_in_the_hubs_cache(tmp_path):
    (blobs := tmp_path / "blobs").mkdir()
    (snapshot := tmp_path / "snapshot").mkdir()
    index = save(blobs)
    for file in (*SHARDS, index.name):
        (snapshot / file).symlink_to(f"../blobs/{file}")
    assert set(open_checkpoint(snapshot).headers) == set(HOMES)


def test_a_link_out_of_the_folder_is_refused(tmp_path):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (folder := tmp_path / "model").mkdir()
    index = save(elsewhere)
    index.rename(folder / index.name)
    one, other = SHARDS
    (elsewhere / one).rename(folder / one)
    (folder / other).symlink_to(elsewhere / other)
    with pytest.raises(MismatchError) as caught:
        open_checkpoint(folder)
    [problem] = caught.value.problems
    assert problem.startswith(f"{other} is a link out of the folder, to {elsewhere / other}")


def test_a_folder_may_itself_be_a_link(tmp_path):
    (real := tmp_path / "real").mkdir()
    save(real)
    (tmp_path / "link").symlink_to(real)
    assert set(open_checkpoint(tmp_path / "link").headers) == set(HOMES)


def test_all_missing_shards_are_told_together(tmp_path):
    index = save(tmp_path)
    for file in SHARDS:
        (tmp_path / file).unlink()
    with pytest.raises(MismatchError) as caught:
        ShardedCheckpoint(index, SafetensorsFile)
    assert caught.value.problems == tuple(f"{f} is missing; download it again" for f in SHARDS)


def test_tensors_missing_on_either_side_are_told_together(tmp_path):
    homes = {name: file for name, file in HOMES.items() if name != "b"}
    save(tmp_path, homes | {"x": "model-00002-of-00002.safetensors"})
    with pytest.raises(MismatchError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.problems == (
        "x is not in model-00002-of-00002.safetensors, where the index has it",
        "b is in a shard, but not in the index",
    )
