"""A repository of the hub works wherever a directory does: from the cache, or downloaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants, errors
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.common import repositories
from weighbridge.converters.values import LowRank

NAME, COMMIT, OLD = "org/tiny-bert", "a" * 40, "b" * 40


def run(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return an empty cache in a folder of its own; the current directory is empty as well."""
    folder = tmp_path / "cache"
    for module in (constants, huggingface_hub._snapshot_download, huggingface_hub.file_download):
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, str(folder))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return folder


def publish(cache: Path, source: Path, name: str = NAME, commit: str = COMMIT, ref: str = "main"):
    """Put SOURCE into the cache as the hub's client does: blobs, and links to them by commit."""
    home = cache / f"models--{name.replace('/', '--')}"
    for path in source.rglob("*"):
        if not path.is_file():
            continue
        relative = path.relative_to(source)
        blob = home / "blobs" / f"{commit[0]}-{relative.as_posix().replace('/', '-')}"
        link = home / "snapshots" / commit / relative
        for parent in (blob.parent, link.parent):
            parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / ref).write_text(commit)
    return home / "snapshots" / commit


@pytest.fixture
def published(cache, tiny_bert_dir):
    return publish(cache, tiny_bert_dir)


def manifest(folder) -> dict:
    return json.loads((Path(folder) / "weighbridge.json").read_text())


def test_a_repository_in_the_cache_is_converted_with_its_side_files(published, tiny_bert_dir):
    run("convert", "torch-to-mlx", NAME, "out", "--check", "none")
    run("convert", "torch-to-mlx", tiny_bert_dir, "same", "--check", "none")
    mine = {path.relative_to("out") for path in Path("out").rglob("*")}
    assert mine == {path.relative_to("same") for path in Path("same").rglob("*")}
    for name, array in load_file("same/model.safetensors").items():
        assert (load_file("out/model.safetensors")[name] == array).all()


def test_the_commit_is_recorded(published):
    run("convert", "torch-to-mlx", NAME, "out", "--check", "none")
    source = manifest("out")["source"]
    assert (source["spec"], source["revision"]) == (NAME, COMMIT)


def test_a_revision_stands_behind_the_name(cache, published, tiny_bert_dir, tmp_path):
    older = shutil.copytree(tiny_bert_dir, tmp_path / "older")
    (older / "notes.md").write_text("old")
    publish(cache, older, commit=OLD, ref="v1.0")
    run("convert", "torch-to-mlx", f"{NAME}@v1.0", "out", "--check", "none")
    assert manifest("out")["source"]["revision"] == OLD
    run("convert", "torch-to-mlx", f"{NAME}@{OLD}", "other", "--check", "none")
    assert (Path("other") / "notes.md").read_text() == "old"


def test_a_directory_of_that_name_wins(published, tiny_bert_dir):
    for name in (NAME, f"{NAME}@v1.0"):
        shutil.copytree(tiny_bert_dir, name)
        run("convert", "torch-to-mlx", name, "out", "--check", "none")
        assert "revision" not in manifest("out")["source"]
        shutil.rmtree("out")


@pytest.fixture
def adapter(cache, published, tmp_path):
    """Publish an adapter too; return its name."""
    names = [f"encoder.layer.{n}.attention.self.query.weight" for n in range(2)]
    update = LowRank(torch.ones(2, 24).numpy(), torch.ones(24, 2).numpy() / 9, 1.0)
    lora = {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": ["attention.self.query"]}
    config = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": lora}
    write_adapter(tmp_path / "lora", dict.fromkeys(names, update), config=config)
    publish(cache, tmp_path / "lora", "org/lora", "c" * 40)
    return "org/lora"


def test_adapter_and_base_may_both_be_repositories(adapter):
    run("merge", NAME, adapter, "merged", "--check", "none")
    assert manifest("merged")["source"]["spec"].startswith(NAME)
    run("convert", "mlx-to-peft", adapter, "peft", "--base", NAME, "--check", "none")
    assert (
        json.loads(Path("peft/adapter_config.json").read_text())["base_model_name_or_path"] == NAME
    )
    assert "LoRA adapter" in run("inspect", adapter)
    assert "merged" in run("convert", "torch-to-mlx", f"{NAME}+{adapter}", "m", "--check", "none")


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", NAME),
        ("map", "show", NAME),
        ("parity", "check", NAME, NAME, "--quick"),
        ("export", "coreml", NAME, "x.mlpackage", "--dry-run"),
    ],
    ids=lambda words: words[0],
)
def test_other_verbs_take_it_too(published, words):
    run(*words)


def test_an_original_may_be_one(published, tiny_bert_dir):
    run("convert", "torch-to-mlx", tiny_bert_dir, "mlx", "--check", "none", "--sidecar", "none")
    run("convert", "mlx-to-torch", "mlx", "home", "--original", NAME, "--check", "none")


def test_a_training_configuration_may_name_one(published):
    absent = ("data.train=pairs/a.jsonl", "data.validation=pairs/b.jsonl", "data.test=null")
    sets = [word for setting in (f"model={NAME}", *absent) for word in ("--set", setting)]
    said = run("preflight", "--config", "minilm-lora", *sets, code=3)
    assert "pairs" in said  # the model was found, the data is not


def test_offline_says_what_to_do_in_one_line(cache):
    said = run("inspect", "org/absent", code=3)
    assert "org/absent: no such file or directory" in said
    assert "HF_HUB_OFFLINE" in said
    assert said.count("\n") == 1


def answer(kind):
    """Return an error as the hub's client raises it."""
    error = kind.__new__(kind)
    Exception.__init__(error, "long\ntext of the hub")
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (answer(errors.GatedRepoError), "gated"),
        (answer(errors.RepositoryNotFoundError), "no public repository"),
        (answer(errors.RevisionNotFoundError), "no such revision"),
        (answer(errors.HfHubHTTPError), "cannot be reached"),
        (ConnectionError("refused"), "cannot be reached"),
        (type("ConnectError", (Exception,), {"__module__": "httpx2"})("x"), "cannot be reached"),
    ],
    ids=lambda it: type(it).__name__,
)
def test_what_the_hub_refuses_is_one_line(cache, monkeypatch, error, said):
    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    output = run("inspect", "org/absent", code=3)
    assert said in output
    assert output.count("\n") == 1


def test_a_hub_that_cannot_be_reached_is_asked_once():
    nobody = {"HF_ENDPOINT": "http://127.0.0.1:1", "HF_HUB_OFFLINE": "0"}
    words = (sys.executable, "-m", "weighbridge", "inspect", "org/absent")
    done = subprocess.run(
        words, capture_output=True, text=True, env=os.environ | nobody, check=False
    )
    assert done.returncode == 3
    lines = [it for it in done.stderr.splitlines() if not it.startswith("downloading")]
    assert len(lines) == 1
    assert "the hub cannot be reached" in lines[0]


def test_without_the_client_the_package_is_named(cache, monkeypatch):
    def missing(*_, **__):
        raise ImportError("No module named 'huggingface_hub'")

    monkeypatch.setattr(repositories, "cached", missing)
    assert "pip install huggingface_hub" in run("inspect", "org/absent", code=3)


def test_only_what_is_needed_is_downloaded(cache, tiny_bert_dir, monkeypatch):
    asked = {}

    def files(_self, name, revision=None):
        asked["files"] = name, revision
        there = [
            str(it.relative_to(tiny_bert_dir)) for it in tiny_bert_dir.rglob("*") if it.is_file()
        ]
        others = ("pytorch_model.bin", "onnx/model.onnx", "flax_model.msgpack", ".gitattributes")
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=it) for it in (*there, *others)])

    download = huggingface_hub.snapshot_download

    def fetch(name, *, revision=None, allow_patterns=None, local_files_only=False):
        if local_files_only:
            return download(name, revision=revision, local_files_only=True)
        asked["patterns"] = allow_patterns
        return str(publish(cache, tiny_bert_dir))

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", files)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    run("convert", "torch-to-mlx", f"{NAME}@v2", "out", "--check", "none")
    assert asked["files"] == (NAME, "v2")
    assert "model.safetensors" in asked["patterns"]
    assert "1_Pooling/config.json" in asked["patterns"]
    assert {it for it in asked["patterns"] if it.endswith((".bin", ".onnx", ".msgpack"))} == set()


def test_a_cache_with_a_configuration_alone_is_not_taken_for_the_model(cache, tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "config.json").write_text("{}")
    publish(cache, tmp_path / "part")
    assert repositories.cached(NAME) is None


def test_shards_come_with_their_index():
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    bins = ["pytorch_model.bin", "pytorch_model.bin.index.json"]
    found = repositories.wanted([*shards, "model.safetensors.index.json", *bins, "config.json"])
    assert found == sorted(["config.json", "model.safetensors.index.json", *shards])


@pytest.mark.parametrize("spec", ["pkg.module:build", "none", "a/b/c", "./a/b", "/a/b", "model.pt"])
def test_other_names_stay_as_they_are(spec):
    assert repositories.local(spec) == spec
