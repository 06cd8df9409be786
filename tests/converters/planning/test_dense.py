"""A checkpoint of fp8 blocks that was trained goes back dense, and an untrained one as it was."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from weighbridge import jobs
from weighbridge.converters.sidefiles import SIDECAR
from weighbridge.tests.support.atlas import row, tiny


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Make a tiny DeepSeek-V3 in fp8 blocks, as it is published."""
    return tiny.make("deepseek_v3", tmp_path_factory.mktemp("source") / "hub", "hub").folder


@pytest.fixture(scope="module")
def mlx(source):
    return convert(source, source.with_name("mlx"), "mlx")


@pytest.fixture
def trained(mlx, tmp_path):
    shutil.copytree(mlx, tmp_path / "trained")
    row.change(tmp_path / "trained")
    return tmp_path / "trained"


def convert(source, target, to):
    return jobs.convert(str(source), target, to, options=jobs.Options(check="none")).target


def home(source, target, **chosen):
    options = jobs.Options(check="none", **chosen)
    return jobs.convert(str(source), target, "torch", options=options).facts


def packing(folder):
    return json.loads((folder / "config.json").read_text()).get("quantization_config")


def test_untrained_blocks_come_home_as_they_were(source, mlx, tmp_path):
    home(mlx, tmp_path / "home")
    assert row.read(tmp_path / "home") == row.read(source)
    assert packing(tmp_path / "home") == packing(source)


def test_trained_blocks_come_home_dense_and_lead_to_the_same_weights(trained, tmp_path):
    facts = home(trained, tmp_path / "home")
    assert facts["notes"] == [
        "41 weights were fp8 blocks; 41 of them trained since, so all of them go back as BF16"
    ]
    assert packing(tmp_path / "home") is None
    assert {v.dtype for v in row.read(tmp_path / "home").values()} == {"BF16", "F32"}
    convert(tmp_path / "home", tmp_path / "again", "mlx")
    assert row.read(tmp_path / "again") == row.read(trained)


def test_one_trained_weight_makes_the_whole_checkpoint_dense(source, mlx, tmp_path):
    import mlx.core as mx

    one = shutil.copytree(mlx, tmp_path / "one")
    tensors = dict(mx.load(str(one / "model.safetensors")))
    tensors["model.layers.0.mlp.up_proj.weight"] *= 2
    mx.save_safetensors(str(one / "model.safetensors"), tensors, {"format": "mlx"})
    facts = home(one, tmp_path / "home", original=str(source))
    assert "41 weights were fp8 blocks; 1 of them trained since" in facts["notes"][0]
    assert not [name for name in row.read(tmp_path / "home") if name.endswith("_scale_inv")]


def test_blocks_that_are_nowhere_are_no_reason_to_refuse(source, mlx, tmp_path):
    bare = shutil.copytree(mlx, tmp_path / "bare")
    (bare / SIDECAR).unlink()
    facts = home(bare, tmp_path / "home")
    assert "some are nowhere (--original DIR has them)" in facts["notes"][0]
    home(bare, tmp_path / "whole", original=str(source))
    assert row.read(tmp_path / "whole") == row.read(source)


def test_a_directory_without_a_record_comes_home_without_a_false_configuration(trained, tmp_path):
    (trained / "weighbridge.json").unlink()
    (trained / SIDECAR).unlink()
    home(trained, tmp_path / "home")
    assert packing(tmp_path / "home") is None
    assert "model.layers.0.mlp.up_proj.weight" in row.read(tmp_path / "home")


def test_without_a_record_the_original_brings_the_blocks_back(source, mlx, trained, tmp_path):
    for folder in (bare := shutil.copytree(mlx, tmp_path / "bare"), trained):
        (folder / "weighbridge.json").unlink()
        (folder / SIDECAR).unlink()
    home(bare, tmp_path / "home", original=str(source))
    assert row.read(tmp_path / "home") == row.read(source)
    assert packing(tmp_path / "home") == packing(source)
    facts = home(trained, tmp_path / "dense", original=str(source))
    assert "41 of them trained since" in facts["notes"][0]
    assert packing(tmp_path / "dense") is None


def test_what_the_class_drops_is_left_out_and_listed(source, tmp_path):
    """Layers that predict further tokens are packed too: dense weights cannot stand beside them."""
    more = shutil.copytree(source, tmp_path / "more")
    tensors = load_file(more / "model.safetensors")
    name = "model.layers.61.eh_proj.weight"
    tensors[name] = tensors["model.layers.3.mlp.gate.weight"].clone()
    save_file(tensors, more / "model.safetensors", metadata={"format": "pt"})
    mlx = convert(more, tmp_path / "mlx", "mlx")
    home(mlx, tmp_path / "home")
    assert row.read(tmp_path / "home") == row.read(more)
    row.change(mlx)
    facts = home(mlx, tmp_path / "dense")
    assert {"name": name, "policy": "left out", "of": ""} in facts["dropped"]
    assert name not in row.read(tmp_path / "dense")
