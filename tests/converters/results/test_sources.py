"""What changes while a job reads it leads to one line and to no result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.checkpoints import Sources, Staging, Writer
from weighbridge.converters.values import LowRank
from weighbridge.errors import BadInputError

UPDATED = "encoder.layer.0.attention.self.query.weight"


@pytest.fixture
def source(tiny_bert_dir, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_bert_dir, tmp_path / "source"))


@pytest.fixture
def adapter(source, tmp_path) -> Path:
    out, into = load_file(source / "model.safetensors")[UPDATED].shape
    update = LowRank(np.ones((2, into), np.float32), np.ones((out, 2), np.float32), 1.0)
    write_adapter(tmp_path / "adapter", {UPDATED: update}, config={"num_layers": -1})
    return tmp_path / "adapter"


def meanwhile(monkeypatch, change) -> None:
    """Let CHANGE happen as soon as a result begins to be built."""
    enter = Staging.__enter__

    def entered(self):
        staging = enter(self)
        change()
        return staging

    monkeypatch.setattr(Staging, "__enter__", entered)


def refused(tmp_path, *arguments) -> str:
    before = sorted(path.name for path in tmp_path.iterdir())
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 3, result.output + repr(result.exception)
    assert "changed during the run" in result.output
    assert result.output.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    return result.output


def rewritten(file: Path) -> None:
    os.utime(file, ns=(1, 1))


def replaced(file: Path) -> None:
    seen = file.stat()
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    os.utime(copy, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    copy.replace(file)


def shortened(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("change", [rewritten, replaced, shortened, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "1_Pooling/config.json"])
def test_a_conversion_of_what_changes_is_not_published(source, tmp_path, monkeypatch, change, name):
    meanwhile(monkeypatch, lambda: change(source / name))
    verb = ("convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none")
    assert name in refused(tmp_path, *verb)


VERBS = {
    "convert": ("convert", "torch-to-mlx", "{source}", "{out}", "--check", "none"),
    "merge": ("merge", "{source}", "{adapter}", "{out}", "--check", "none"),
    "convert peft": ("convert", "mlx-to-peft", "{adapter}", "{out}", "--base", "{source}", "--check", "none"),
    "record": ("parity", "record", "{source}", "{out}"),
    "export coreml": ("export", "coreml", "{source}", "{out}.mlpackage", "--check", "none"),
}  # fmt: skip


READS = [
    pytest.param(name, which, marks=pytest.mark.heavy if "coreml" in name else ())
    for name, words in VERBS.items()
    for which in ("source", "adapter")
    if f"{{{which}}}" in words
]


@pytest.mark.parametrize(("verb", "which"), READS)
def test_every_verb_holds_its_sources(source, adapter, tmp_path, monkeypatch, verb, which):
    paths = {"source": source, "adapter": adapter, "out": tmp_path / "out"}
    file = next(path for path in sorted(paths[which].iterdir()) if path.suffix == ".safetensors")
    meanwhile(monkeypatch, lambda: rewritten(file))
    assert file.name in refused(tmp_path, *(word.format_map(paths) for word in VERBS[verb]))


def test_what_is_replaced_by_force_is_kept_when_a_source_changes(source, tmp_path, monkeypatch):
    verb = ("convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none")
    assert CliRunner().invoke(main, [*map(str, verb)]).exit_code == 0
    kept = (tmp_path / "out" / "model.safetensors").read_bytes()
    meanwhile(monkeypatch, lambda: rewritten(source / "model.safetensors"))
    refused(tmp_path, *verb, "--force")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == kept


def test_a_failure_that_a_change_explains_is_told_as_one(source, tmp_path, monkeypatch):
    write = Writer.write

    def changed(self, name, data):
        shortened(source / "model.safetensors")
        return write(self, name, data)

    monkeypatch.setattr(Writer, "write", changed)
    refused(tmp_path, "convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none")


def test_another_failure_stays_what_it_is(tmp_path):
    (tmp_path / "file").write_text("as it was")
    with (
        pytest.raises(ZeroDivisionError),
        Staging(tmp_path / "out", sources=Sources.of(tmp_path / "file")),
    ):
        _ = 1 / 0


def test_a_base_and_its_adapter_are_both_held(tmp_path):
    for name in ("base", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("as it was")
    sources = Sources.of(f"{tmp_path}/base+{tmp_path}/adapter", None, "module:function", "org/name")
    assert len(sources.seen) == 2
    (tmp_path / "adapter" / "file").write_text("and as it is")
    with pytest.raises(BadInputError, match="adapter/file changed"):
        sources.require_unchanged()


def test_a_file_that_appears_is_no_change(tmp_path):
    sources = Sources.of(tmp_path)
    (tmp_path / "new").write_text("new")
    sources.require_unchanged()
