"""What is not an adapter is told apart from what is, and from what it is instead."""

from __future__ import annotations

import json

import numpy as np
import pytest
import safetensors.numpy

from weighbridge.converters.adapters import read_adapter, write_adapter
from weighbridge.errors import BadInputError, UnsupportedError

MLX = {"lora_parameters": {"rank": 2, "scale": 1.0}}
PEFT = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}


def config(content):
    def make(folder):
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "adapter_config.json").write_text(text)
        safetensors.numpy.save_file({"w": np.zeros(1)}, folder / "adapters.safetensors")

    return make


def files(*names, **content):
    def make(folder):
        (folder / "adapter_config.json").write_text(json.dumps(content))
        for name in names:
            safetensors.numpy.save_file({"w": np.zeros(1)}, folder / name)

    return make


def junk(name, data, **content):
    def make(folder):
        (folder / "adapter_config.json").write_text(json.dumps(content))
        (folder / name).write_bytes(data)

    return make


def model(folder):
    (folder / "config.json").write_text("{}")
    safetensors.numpy.save_file({"w": np.zeros(1)}, folder / "model.safetensors")


def without_tensors(content):
    return lambda folder: (folder / "adapter_config.json").write_text(json.dumps(content))


REFUSED = {
    "a model": (model, BadInputError, "is a model, not an adapter"),
    "nothing": (lambda _: None, BadInputError, "adapter_config.json is missing"),
    "no MLX tensors": (without_tensors(MLX), BadInputError, "adapters.safetensors is missing"),
    "no PEFT tensors": (without_tensors(PEFT), BadInputError, "adapter_model.safetensors is miss"),
    "not JSON": (config("{"), BadInputError, "not JSON"),
    "a list": (config([]), BadInputError, "expected a JSON object, found a list"),
    "no dialect": (config({}), BadInputError, "neither mlx-lm's"),
    "both dialects": (config(MLX | PEFT), BadInputError, "has both mlx-lm's and PEFT's"),
    "files of two dialects": (
        files("adapters.safetensors", "adapter_model.safetensors", **PEFT),
        BadInputError,
        r"several dialects \(adapters.safetensors, adapter_model.safetensors\); name one file",
    ),
    "an old archive beside": (
        files("adapters.safetensors", "adapters.npz", **MLX),
        BadInputError,
        "several dialects",
    ),
    "another kind": (config({"fine_tune_type": "x"}), UnsupportedError, "x is not lora, dora or"),
    "scale zero": (
        config({"lora_parameters": {"rank": 2, "scale": 0}}),
        BadInputError,
        "scale is 0",
    ),
    "alpha zero": (
        files("adapter_model.safetensors", **(PEFT | {"lora_alpha": 0})),
        BadInputError,
        "lora_alpha is 0, expected a positive number",
    ),
    "no parameters": (config({"fine_tune_type": "lora"}), BadInputError, "lora_parameters is None"),
    "no scale": (config({"lora_parameters": {"rank": 2}}), BadInputError, "scale is None, expect"),
    "rank as text": (
        config({"lora_parameters": {"rank": "2", "scale": 1}}),
        BadInputError,
        "rank is '2', expected a positive number",
    ),
    "scale infinite": (
        config('{"lora_parameters": {"rank": 2, "scale": Infinity}}'),
        BadInputError,
        "scale is inf",
    ),
    "keys as text": (
        config({"lora_parameters": {"rank": 2, "scale": 1, "keys": "q"}}),
        BadInputError,
        "keys is 'q', expected list",
    ),
    "keys of numbers": (
        config({"lora_parameters": {"rank": 2, "scale": 1, "keys": [1]}}),
        BadInputError,
        "keys has 1, expected names",
    ),
    "keys of objects": (
        config({"lora_parameters": {"rank": 2, "scale": 1, "keys": ["q", {}]}}),
        BadInputError,
        "keys has {}, expected names",
    ),
    "half a rank": (
        config({"lora_parameters": {"rank": 2.5, "scale": 1}}),
        BadInputError,
        "rank is 2.5, expected a whole number",
    ),
    "junk for PyTorch": (
        junk("adapter_model.bin", b"junk", **PEFT),
        BadInputError,
        "adapter_model.bin is text; expected a tensor file",
    ),
    "layers as text": (config(MLX | {"num_layers": "6"}), BadInputError, "num_layers is '6'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_adapter_is_told(case, tmp_path):
    make, error, message = REFUSED[case]
    make(tmp_path)
    with pytest.raises(error, match=message) as caught:
        read_adapter(tmp_path)
    assert str(tmp_path) in str(caught.value) or "adapter_config.json" in str(caught.value)


def test_a_path_that_is_not_there_is_told(tmp_path):
    with pytest.raises(BadInputError, match="none: no such adapter directory"):
        read_adapter(tmp_path / "none")


def test_one_of_several_tensor_files_can_be_named(tmp_path, updates):
    write_adapter(tmp_path, updates, config={})
    early = tmp_path / "0000100_adapters.safetensors"
    (tmp_path / "adapters.safetensors").rename(early)
    adapter = read_adapter(early)
    assert len(adapter.updates) == len(updates)
    assert (adapter.path, adapter.file) == (tmp_path, early)


RECORDS = {
    "a base in words": {"base": "org/model"},
    "no base": {"base": None},
    "a list of tensors": {"base": {"tensors": [1]}},
    "a number for a hash": {"base": {"tensors": {"w": 1}, "framework": "torch"}},
    "a number for a framework": {"base": {"framework": 3}},
    "a list for a spec": {"base": {"spec": ["a"]}},
    "a word for a recipe": {"base": {"quantization": "4-bit"}},
}


@pytest.mark.parametrize("case", RECORDS)
def test_a_record_of_the_base_that_is_none_of_ours_is_refused(case, tmp_path, updates):
    write_adapter(tmp_path, updates, config={})
    (tmp_path / "weighbridge.json").write_text(json.dumps(RECORDS[case]))
    with pytest.raises(
        BadInputError, match=r"weighbridge\.json: its record of the base is"
    ) as caught:
        read_adapter(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "base", [{}, {"spec": "org/model", "framework": "mlx", "tensors": {"w": "a"}, "more": 1}]
)
def test_a_record_of_the_base_is_read(base, tmp_path, updates):
    write_adapter(tmp_path, updates, config={})
    (tmp_path / "weighbridge.json").write_text(json.dumps({"weighbridge": "1"} | {"base": base}))
    assert read_adapter(tmp_path).base == base


def test_the_file_that_was_read_is_kept(tmp_path, updates):
    write_adapter(tmp_path, updates, config={})
    assert read_adapter(tmp_path).file == tmp_path / "adapters.safetensors"
