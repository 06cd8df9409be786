"""What a user may write for a model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from weighbridge.converters.models import open as open_model
from weighbridge.converters.models.specs import framework_of, split_adapter
from weighbridge.errors import BadInputError, UntrustedError


def save(folder, framework):
    folder.mkdir()
    save_file(
        {"w": np.ones((2, 3), np.float32)},
        folder / "model.safetensors",
        metadata={"format": framework},
    )
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(("said", "framework"), [("pt", "torch"), ("mlx", "mlx")])
def test_the_files_say_whose_layout_they_have(tmp_path, said, framework):
    assert open_model(save(tmp_path / "model", said)).framework == framework


def test_the_manifest_outranks_the_files(tmp_path):
    folder = save(tmp_path / "model", "pt")
    (folder / "weighbridge.json").write_text(json.dumps({"framework": "mlx"}))
    assert open_model(folder).framework == "mlx"


def test_the_only_tensor_file_of_a_directory_stands_for_it(tmp_path):
    folder = save(tmp_path / "model", "mlx")
    assert open_model(folder / "model.safetensors").folder == folder
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    (folder / "model.safetensors").rename(folder / "one.safetensors")
    assert open_model(folder / "one.safetensors").folder is None


def test_what_checked_a_layout_is_read_from_the_manifest(tmp_path):
    folder = save(tmp_path / "model", "mlx")
    manifest = {"framework": "mlx", "layout_check": "a native module"}
    (folder / "weighbridge.json").write_text(json.dumps(manifest))
    assert open_model(folder).layout_check == "a native module"


@pytest.mark.parametrize(
    "manifest",
    [
        {"sizes": [1]},
        {"source": "x"},
        {"config": [1]},
        {"config": {"added": [1]}},
        {"config": {"changed": {"a": 1}}},
        {"framework": True},
        {"map": ["a <-> b"]},
        {"source": {"spec": 1}},
        {"sizes": {"n": -1}},
    ],
)
def test_a_damaged_manifest_is_one_line(tmp_path, manifest):
    folder = save(tmp_path / "model", "mlx")
    (folder / "weighbridge.json").write_text(json.dumps({"framework": "mlx", **manifest}))
    with pytest.raises(
        BadInputError, match=r"weighbridge\.json: .*; it is damaged, convert the model again"
    ):
        open_model(folder)


def test_a_directory_with_a_plus_in_its_name_is_a_directory(tmp_path):
    folder = save(tmp_path / "a+b", "pt")
    assert split_adapter(str(folder)) == (folder, None)


@pytest.mark.parametrize("to", ["nowhere", "model"], ids=["broken", "loop"])
def test_a_link_that_leads_nowhere_is_called_one(tmp_path, monkeypatch, to):
    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(to)
    with pytest.raises(BadInputError, match=f"model is a symbolic link to {to}, which leads no"):
        open_model("model")


def test_an_unknown_model_type_says_which_are_known(tmp_path):
    with pytest.raises(BadInputError, match="known are bert"):
        _ = open_model(save(tmp_path / "model", "pt")).signature


def test_a_factory_in_the_config_needs_consent(tmp_path):
    folder = save(tmp_path / "model", "pt")
    (folder / "config.json").write_text(
        json.dumps({"weighbridge_factory": "examples.timeseries:build"})
    )
    with pytest.raises(UntrustedError, match="trust-code"):
        open_model(folder)


@pytest.mark.parametrize("content", ["[1]", "{", "\ufffe"])
def test_a_config_that_is_no_object_is_refused(tmp_path, content):
    folder = save(tmp_path / "model", "pt")
    (folder / "config.json").write_text(content)
    with pytest.raises(BadInputError, match=r"config\.json"):
        open_model(folder)


def test_a_map_that_does_not_exist_is_refused_with_the_known_tables(tmp_path):
    with pytest.raises(BadInputError, match="bert"):
        open_model(save(tmp_path / "model", "pt"), map="nowhere.wmap")


def test_a_live_module_knows_its_framework():
    import mlx.nn
    import torch.nn

    assert framework_of(torch.nn.Linear(1, 1)) == "torch"
    assert framework_of(mlx.nn.Linear(1, 1)) == "mlx"
    with pytest.raises(BadInputError):
        framework_of(object())
