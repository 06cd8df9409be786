"""Bad input gets one clear error and exit 3, and leaves nothing behind."""

import json
import pickle
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.checkpoints import Writer
from weighbridge.converters.values import LowRank

QUERY = "encoder.layer.{}.attention.self.query.weight"
VALUE = "encoder.layer.{}.attention.self.value.weight"


@pytest.fixture
def source(tiny_bert_dir, tmp_path) -> Path:
    """Return a copy of a good torch directory, to be spoiled."""
    return Path(shutil.copytree(tiny_bert_dir, tmp_path / "source"))


@pytest.fixture
def mlx_source(source, tmp_path) -> Path:
    run("convert", "torch-to-mlx", source, tmp_path / "mlx", "--check", "none", code=0)
    return tmp_path / "mlx"


def run(*arguments, code=3):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    return result.output


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in load_file(folder / "model.safetensors").items()}


def updates(folder: Path, names, rank=2) -> dict[str, LowRank]:
    generator = np.random.default_rng(0)
    made = {}
    for name in names:
        out, into = shapes(folder)[name]
        a, b = generator.normal(size=(rank, into)), generator.normal(size=(out, rank))
        made[name] = LowRank(a.astype(np.float32), b.astype(np.float32), 2.0)
    return made


def adapter_config(keys) -> dict:
    return {
        "fine_tune_type": "lora",
        "num_layers": -1,
        "lora_parameters": {"rank": 2, "scale": 2.0, "dropout": 0.0, "keys": sorted(keys)},
    }


def truncate(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def lie_about_offsets(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    name = next(name for name in header if name != "__metadata__")
    header[name]["data_offsets"][1] += 4
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + data[8 + size :]
    )


def lose_a_shard(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    half = {name: tensors[name] for name in names[: len(names) // 2]}
    save_file(half, folder / "model-00001-of-00002.safetensors")
    shards = {name: f"model-0000{1 if name in half else 2}-of-00002.safetensors" for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (folder / "model.safetensors").unlink()


def misshape(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = QUERY.format(0)
    tensors[name] = np.ascontiguousarray(tensors[name][:, :-1])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class Exploit:
    """Runs code when unpickled."""

    def __reduce__(self):
        return (print, ("code ran",))


def want_code(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"weight": torch.zeros(2), "exploit": Exploit()}, folder / "pytorch_model.bin")


def bare_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Exploit()))


SPOILED = {
    truncate: "model.safetensors",
    lie_about_offsets: "model.safetensors",
    lose_a_shard: "model-00002-of-00002.safetensors",
    misshape: QUERY.format(0),
    want_code: "print",
    bare_pickle: "pytorch_model.bin",
}


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
@pytest.mark.parametrize("check", ["none", "quick"])
def test_a_spoiled_checkpoint_is_refused_by_name(source, tmp_path, spoil, check):
    spoil(source)
    output = run("convert", "torch-to-mlx", source, tmp_path / "out", "--check", check)
    assert SPOILED[spoil] in output
    assert "code ran" not in output
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_partial_adapter_is_refused_with_every_missing_name(mlx_source, tmp_path):
    names = [form.format(n) for form in (QUERY, VALUE) for n in range(2)]
    config = adapter_config(["attention.self.query", "attention.self.value"])
    write_adapter(tmp_path / "adapter", updates(mlx_source, names), config=config)
    lost = [VALUE.format(n).removesuffix(".weight") for n in range(2)]
    file = tmp_path / "adapter" / "adapters.safetensors"
    kept = {k: v for k, v in load_file(file).items() if not k.startswith(tuple(lost))}
    save_file(kept, file)
    before = sorted(path.name for path in tmp_path.iterdir())
    output = run("convert", "mlx-to-torch", mlx_source, tmp_path / "out", "--adapter", file.parent)
    assert all(name in output for name in lost)
    assert "4 updates expected, 2 found" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_half_a_pair_is_refused(mlx_source, tmp_path):
    names = [form.format(n) for form in (QUERY, VALUE) for n in range(2)]
    keys = ["attention.self.query", "attention.self.value"]
    write_adapter(tmp_path / "adapter", updates(mlx_source, names), config=adapter_config(keys))
    tensors = load_file(tmp_path / "adapter" / "adapters.safetensors")
    lost = QUERY.format(1).replace(".weight", ".lora_b")
    del tensors[lost]
    save_file(tensors, tmp_path / "adapter" / "adapters.safetensors")
    output = run(
        "convert", "mlx-to-torch", mlx_source, tmp_path / "out", "--adapter", tmp_path / "adapter"
    )
    assert lost in output
    assert not (tmp_path / "out").exists()


def test_an_adapter_for_another_model_is_refused(mlx_source, tmp_path):
    other = {
        "model.layers.0.self_attn.q_proj.weight": LowRank(np.ones((2, 5)), np.ones((7, 2)), 1.0)
    }
    write_adapter(tmp_path / "adapter", other, config=adapter_config(["self_attn.q_proj"]))
    output = run(
        "convert", "mlx-to-torch", mlx_source, tmp_path / "out", "--adapter", tmp_path / "adapter"
    )
    assert "model.layers.0.self_attn.q_proj" in output
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing(source, tmp_path):
    limited = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
    limited += "from weighbridge.cli import main; main(sys.argv[1:])"
    arguments = ["convert", "torch-to-mlx", str(source), str(tmp_path / "out"), "--check", "none"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.count("\n") == 1
    assert "out" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_ctrl_c_in_mid_write_leaves_nothing(source, tmp_path, monkeypatch):
    write, calls = Writer.write, []

    def interrupted(self, name, data):
        calls.append(name)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return write(self, name, data)

    monkeypatch.setattr(Writer, "write", interrupted)
    run("convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none", code=130)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_wrong_direction_is_answered_with_the_right_command(mlx_source, tmp_path):
    output = run("convert", "torch-to-mlx", mlx_source, tmp_path / "out")
    assert "convert mlx-to-torch" in output


def test_an_adapter_given_as_a_model_is_answered_with_the_right_command(mlx_source, tmp_path):
    names = [form.format(n) for form in (QUERY, VALUE) for n in range(2)]
    keys = ["attention.self.query", "attention.self.value"]
    write_adapter(tmp_path / "adapter", updates(mlx_source, names), config=adapter_config(keys))
    output = run("convert", "mlx-to-torch", tmp_path / "adapter", tmp_path / "out")
    assert "--adapter" in output


def test_an_existing_target_is_kept(source, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("keep me")
    output = run("convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none")
    assert "--force" in output
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep me"


@pytest.mark.parametrize("spec", ["nowhere", "nowhere+adapter", "no.such:thing", "x" * 300])
def test_a_spec_that_names_nothing_is_refused(spec, tmp_path):
    run("convert", "torch-to-mlx", spec, tmp_path / "out")


def test_code_named_in_a_config_never_runs_without_consent(source, tmp_path):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"weighbridge_factory": "evil:build"}))
    output = run("convert", "torch-to-mlx", source, tmp_path / "out")
    assert "--trust-code" in output


SPOILED_SIDE_FILES = {
    "config.json": "{",
    "modules.json": "{",
    "tokenizer.json": "{",
    "generation_config.json": "[1]",
    "tokenizer_config.json": "[",
}


@pytest.mark.parametrize("name", SPOILED_SIDE_FILES)
def test_a_spoiled_side_file_is_refused_by_name(source, tmp_path, name):
    (source / name).write_text(SPOILED_SIDE_FILES[name])
    output = run("convert", "torch-to-mlx", source, tmp_path / "out")
    assert name.split("_")[0].removesuffix(".json") in output
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_config_without_its_sizes_is_refused(source, tmp_path):
    config = json.loads((source / "config.json").read_text())
    del config["vocab_size"]
    (source / "config.json").write_text(json.dumps(config))
    assert "vocab_size" in run("inspect", source, code=0)
    assert "vocab_size" in run("parity", "check", source, source)


@pytest.mark.parametrize("verb", [("parity", "record"), ("convert", "torch-to-mlx")])
def test_no_verb_replaces_its_own_source(source, verb):
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    assert "is not replaced" in run(*verb, source, source, "--force")
    assert {path: path.read_bytes() for path in source.rglob("*") if path.is_file()} == before


def test_a_link_out_of_the_model_is_not_followed(source, tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    (source / "notes.txt").symlink_to(tmp_path / "secret.txt")
    output = run("convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none", code=0)
    assert "left out: notes.txt" in output
    assert not (tmp_path / "out" / "notes.txt").exists()


def test_a_partial_adapter_is_refused_wherever_it_is_live(mlx_source, tmp_path):
    names = [form.format(n) for form in (QUERY, VALUE) for n in range(2)]
    config = adapter_config(["attention.self.query", "attention.self.value"])
    write_adapter(tmp_path / "adapter", updates(mlx_source, names), config=config)
    file = tmp_path / "adapter" / "adapters.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "layer.1" not in k}, file)
    live = f"{mlx_source}+{file.parent}"
    for verb in (
        ("parity", "check", live, live),
        ("export", "coreml", live, tmp_path / "m.mlpackage"),
    ):
        assert "4 updates expected, 2 found" in run(*verb)
