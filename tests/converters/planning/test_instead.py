"""Every verb of ``convert``, given what another one takes, names that one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import save_file

from weighbridge.cli import main
from weighbridge.verbs.convert import convert

LORA = "model.layers.0.self_attn.q_proj"


def write(folder, tensors, name, config, kind):
    folder.mkdir()
    save_file(tensors, folder / name, {"format": kind})
    file = "config.json" if name == "model.safetensors" else "adapter_config.json"
    (folder / file).write_text(json.dumps(config))


def make_sources(folder):
    """Write one source of every kind to FOLDER; no more of each than tells what it is."""
    weights = {"model.norm.weight": np.ones(4, "f4")}
    for kind in ("mlx", "torch"):
        name = "pt" if kind == "torch" else kind
        write(folder / kind, weights, "model.safetensors", {"model_type": "llama"}, name)
    base = {"model": str(folder / "torch"), "fine_tune_type": "lora", "num_layers": 1}
    base |= {"lora_parameters": {"rank": 2, "scale": 1.0, "dropout": 0.0}}
    pair = {f"{LORA}.lora_a": np.ones((4, 2), "f4"), f"{LORA}.lora_b": np.ones((2, 4), "f4")}
    write(folder / "run", pair, "adapters.safetensors", base, "mlx")
    (folder / "run/metrics.jsonl").touch()
    halves = {"lora_A": np.ones((2, 4), "f4"), "lora_B": np.ones((4, 2), "f4")}
    peft = {f"base_model.model.{LORA}.{half}.weight": it for half, it in halves.items()}
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    write(folder / "peft", peft, "adapter_model.safetensors", config, "pt")
    (folder / "model.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(16))
    (folder / "model.mlpackage").mkdir()
    for name in ("model.onnx", "model.aimodel"):
        (folder / name).write_bytes(b"\x08\x07")


TAKEN = {
    "torch": "torch-to-mlx",
    "mlx": "mlx-to-torch",
    "run": "mlx-to-peft",
    "peft": "peft-to-mlx",
    "model.gguf": "gguf",
    "model.mlpackage": "coreml",
    "model.onnx": "onnx",
    "model.aimodel": "coreai",
}
PROGRAMS = ("coreml", "onnx", "coreai")  # each verb of theirs takes the files of all


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Return a folder with one source of every kind."""
    folder = tmp_path_factory.mktemp("sources")
    make_sources(folder)
    return folder


def wrong_pairs():
    """Yield every verb with every source that is none of its own."""
    for source, right in TAKEN.items():
        own = PROGRAMS if right in PROGRAMS else (right,)
        yield from ((verb, source) for verb in convert.commands if not verb.startswith(own))


@pytest.mark.parametrize(("verb", "source"), [*wrong_pairs()])
def test_a_source_that_another_verb_takes(verb, source, sources, monkeypatch):
    monkeypatch.chdir(sources)
    like = ["--like", "torch"] if verb.startswith(("gguf", *PROGRAMS)) else []
    options = ["--base", "torch"] if "peft" in verb else like
    before = sorted(sources.rglob("*"))
    result = CliRunner().invoke(main, ["convert", verb, source, "out", *options])
    assert result.exit_code == 3, result.output
    (line,) = [it for it in result.output.splitlines() if it.startswith("Error: ")]
    assert f"weighbridge convert {TAKEN[source]}" in line
    assert sorted(sources.rglob("*")) == before


def test_a_directory_is_no_gguf_file(tmp_path):
    (tmp_path / "empty").mkdir()
    words = [
        "convert",
        "gguf-to-mlx",
        str(tmp_path / "empty"),
        str(tmp_path / "out"),
        "--like",
        "x",
    ]
    assert (
        "empty is a directory; name the GGUF file itself" in CliRunner().invoke(main, words).output
    )
