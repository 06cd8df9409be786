"""`--force` replaces what Weighbridge wrote and nothing else, whichever verb is asked."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from tests.converters.gguf.models import like_file, module, saved
from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.values import LowRank

QUERY = "encoder.layer.{}.attention.self.query.weight"


def run(*arguments, code=3):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def contents(folder: Path) -> dict[str, str]:
    """Return hash or kind of everything below FOLDER."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link to {path.readlink()}"
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "dir"
    return found


@pytest.fixture(scope="module")
def sources(tiny_bert_dir, tmp_path_factory):
    """Return a folder with a model of each framework, an adapter and a GGUF file."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(tiny_bert_dir, folder / "bert")
    run("convert", "torch-to-mlx", folder / "bert", folder / "mlx", "--check", "none", code=0)
    shapes = {n: a.shape for n, a in load_file(folder / "bert" / "model.safetensors").items()}
    draw = np.random.default_rng(0).normal
    updates = {
        QUERY.format(layer): LowRank(
            draw(size=(2, shapes[QUERY.format(layer)][1])).astype(np.float32),
            draw(size=(shapes[QUERY.format(layer)][0], 2)).astype(np.float32),
            2.0,
        )
        for layer in range(2)
    }
    keys = {"rank": 2, "scale": 2.0, "dropout": 0.0, "keys": ["attention.self.query"]}
    config = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": keys}
    write_adapter(folder / "adapter", updates, config=config)
    saved(module("llama").to(torch.bfloat16), folder / "llama")
    like_file(folder / "llama.gguf", "llama", folder / "llama")
    return folder


NONE = ("--check", "none")
VERBS = {
    "convert": ("convert", "torch-to-mlx", "{s}/bert", "{t}", *NONE),
    "merge": ("merge", "{s}/mlx", "{s}/adapter", "{t}", *NONE),
    "adapters": ("convert", "mlx-to-peft", "{s}/adapter", "{t}", "--base", "{s}/bert", *NONE),
    "gguf": ("export", "gguf", "{s}/llama", "{t}.gguf", "--like", "{s}/llama.gguf"),
    "record": ("parity", "record", "examples.ports.encoder:build", "{t}"),
    "coreml": ("export", "coreml", "examples.ports.encoder:build", "{t}.mlpackage", *NONE),
}
HEAVY = {"record", "coreml"}
EVERY_VERB = pytest.mark.parametrize(
    "verb", [pytest.param(n, marks=pytest.mark.heavy if n in HEAVY else ()) for n in VERBS]
)
SUFFIX = {"gguf": ".gguf", "coreml": ".mlpackage"}


def command(verb: str, sources: Path, target: Path) -> list[str]:
    return [part.format(s=sources, t=target) for part in VERBS[verb]]


def at(verb: str, target: Path) -> Path:
    return target.with_name(target.name + SUFFIX.get(verb, ""))


@EVERY_VERB
def test_a_folder_with_somebodys_thesis_is_never_replaced(verb, sources, tmp_path):
    target = at(verb, tmp_path / "f1")
    target.mkdir()
    (target / "thesis.tex").write_text("ten years")
    before = contents(tmp_path)
    output = run(*command(verb, sources, tmp_path / "f1"), "--force")
    assert output.count("\n") == 1
    assert "is not replaced" in output
    assert contents(tmp_path) == before


@EVERY_VERB
def test_its_own_result_is_replaced(verb, sources, tmp_path):
    words = command(verb, sources, tmp_path / "f1")
    run(*words, code=0)
    before = contents(tmp_path)
    assert "--force" in run(*words)
    run(*words, "--force", code=0)
    assert contents(tmp_path).keys() == before.keys()


@EVERY_VERB
@pytest.mark.parametrize("added", [False, True], ids=["changed", "changed and added"])
def test_its_own_result_that_somebody_worked_on_is_kept(verb, added, sources, tmp_path):
    target = at(verb, tmp_path / "f1")
    words = command(verb, sources, tmp_path / "f1")
    run(*words, code=0)
    victim, added = target, added and target.is_dir()
    if added:
        (target / "notes.txt").write_text("mine")
    if target.is_dir():
        kept = ("weighbridge.json", "notes.txt")
        files = (p for p in target.rglob("*") if p.is_file() and p.name not in kept)
        victim = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    before = contents(tmp_path)
    output = run(*words, "--force")
    assert "changed since it was written" in output
    assert ("notes.txt (not written by Weighbridge)" in output) == added
    assert contents(tmp_path) == before


@EVERY_VERB
def test_a_link_is_not_followed_and_not_replaced(verb, sources, tmp_path):
    run(*command(verb, sources, tmp_path / "real"), code=0)
    at(verb, tmp_path / "f1").symlink_to(at(verb, tmp_path / "real"))
    before = contents(tmp_path)
    assert "is a symbolic link" in run(*command(verb, sources, tmp_path / "f1"), "--force")
    assert contents(tmp_path) == before


def test_an_edited_map_is_kept(sources, tmp_path):
    port = "examples.ports.encoder:build"
    words = ("map", "infer", port, "examples.timeseries:build_mlx", tmp_path / "x.wmap")
    (tmp_path / "x.wmap").write_text("a -> b\n")
    assert "nothing records" in run(*words, "--force")
    assert (tmp_path / "x.wmap").read_text() == "a -> b\n"


def test_the_working_directory_is_refused_in_one_line(sources, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    output = run("convert", "torch-to-mlx", sources / "bert", ".", "--force")
    assert output.count("\n") == 1
    assert "is the working directory and is never replaced" in output
    assert contents(tmp_path).keys() == {"mine.txt"}


def test_an_empty_folder_holds_nothing_to_lose(sources, tmp_path):
    (tmp_path / "f1").mkdir()
    run(*command("convert", sources, tmp_path / "f1"), "--force", code=0)
    assert (tmp_path / "f1" / "model.safetensors").is_file()


@pytest.mark.parametrize("other", ["adapters", "golden", "run"])
def test_a_result_of_another_kind_is_kept(other, sources, tmp_path):
    target = tmp_path / "f1"
    if other == "adapters":
        run(*command(other, sources, target), code=0)
    else:
        target.mkdir()
        (target / "adapters.safetensors").write_bytes(b"")
        files = {"adapters.safetensors": {"size": 0, "hash": "xxh3:2d06800538d394c2"}}
        facts = {"weighbridge": "0.2.0", "kind": other, "files": files}
        (target / "weighbridge.json").write_text(json.dumps(facts))
    before = contents(tmp_path)
    assert "not a model" in run(*command("convert", sources, target), "--force")
    assert contents(tmp_path) == before


def old(target: Path) -> None:
    """Make of the result TARGET one of version 0.1.0, which has no list of files."""
    facts = json.loads((target / "weighbridge.json").read_text())
    del facts["files"], facts["kind"]
    (target / "weighbridge.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("verb", ["convert", "merge", "adapters"])
def test_a_result_of_version_0_1_0_is_recognised_by_its_manifest(verb, sources, tmp_path):
    words = command(verb, sources, tmp_path / "f1")
    run(*words, code=0)
    old(tmp_path / "f1")
    run(*words, "--force", code=0)


@pytest.mark.parametrize("spoil", ["add", "retrain"])
def test_a_result_of_version_0_1_0_that_somebody_worked_on_is_kept(spoil, sources, tmp_path):
    words = command("convert", sources, tmp_path / "f1")
    run(*words, code=0)
    old(tmp_path / "f1")
    if spoil == "add":
        (tmp_path / "f1" / "notes.txt").write_text("mine")
    else:
        file = tmp_path / "f1" / "model.safetensors"
        save_file({n: a + 1 for n, a in load_file(file).items()}, file, metadata={"format": "mlx"})
    before = contents(tmp_path)
    assert "is not replaced" in run(*words, "--force")
    assert contents(tmp_path) == before


def test_a_rejected_result_goes_beside_what_somebody_keeps_under_that_name(tmp_path):
    from weighbridge.converters.checkpoints import Staging

    (tmp_path / "out.rejected").mkdir()
    (tmp_path / "out.rejected" / "thesis.tex").write_text("ten years")
    with Staging(tmp_path / "out") as staging:
        (staging.folder / "w").touch()
        assert staging.reject() == tmp_path / "out.rejected-2"
    assert (tmp_path / "out.rejected" / "thesis.tex").read_text() == "ten years"


def test_a_folder_with_the_name_of_the_staging_folder_is_kept(sources, tmp_path):
    (mine := tmp_path / ".f1.staging" / "content").mkdir(parents=True)
    (mine / "thesis.tex").write_text("ten years")
    before = contents(tmp_path)
    assert "is in the way" in run(*command("convert", sources, tmp_path / "f1"))
    assert contents(tmp_path) == before


def test_what_is_added_to_an_old_result_during_the_run_is_kept(tmp_path):
    from weighbridge.converters.checkpoints import Staging
    from weighbridge.errors import TargetExistsError

    for force in (False, True):
        with Staging(tmp_path / "out", force=force) as staging:
            (staging.folder / "w").write_text("old")
            if not force:
                staging.publish()
                continue
            (tmp_path / "out" / "thesis.tex").write_text("ten years")
            with pytest.raises(TargetExistsError, match=r"thesis\.tex"):
                staging.publish()
    assert (tmp_path / "out" / "thesis.tex").read_text() == "ten years"


def test_a_failure_leaves_no_folder_that_was_made_for_the_target(sources, tmp_path):
    (tmp_path / "empty").mkdir()
    run("convert", "torch-to-mlx", tmp_path / "empty", tmp_path / "a" / "b" / "c")
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_head_whose_tensors_have_names_of_the_model_is_recorded_by_its_own_bytes(tmp_path):
    from weighbridge.converters.checkpoints import Staging

    for force in (False, True):
        with Staging(tmp_path / "out", force=force) as staging:
            (staging.folder / "2_Dense").mkdir()
            one = {"linear.weight": np.ones((2, 2), np.float32)}
            save_file(one, staging.folder / "2_Dense" / "model.safetensors")
            staging.note({"weighbridge": "0.2.0", "tensors": {"linear.weight": "xxh3:0"}})
            staging.publish()
