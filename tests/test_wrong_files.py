"""A file of another kind than expected is named for what it is, wherever it is given."""

from __future__ import annotations

import json
import tarfile
import zipfile

import pytest
from click.testing import CliRunner

from weighbridge.cli import main

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
FILES = {
    "table.csv": (b"name,value\na,1\n", "a CSV table"),
    "notes.txt": (b"hello\n", "text"),
    "README.md": (b"# Title\n", "Markdown"),
    "data.json": (b'{"a": 1}', "JSON"),
    "page.html": (b"<!DOCTYPE html><html></html>", "an HTML page"),
    "picture.png": (PNG, "a PNG image"),
    "photo.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
    "paper.pdf": (b"%PDF-1.7\n", "a PDF document"),
    "rows.parquet": (b"PAR1\0\0\0\0", "a Parquet table"),
    "weights.h5": (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    "array.npy": (b"\x93NUMPY\x01\0", "a single NumPy array"),
    "packed.gz": (b"\x1f\x8b\x08\0", "a gzip archive"),
    "empty.bin": (b"", "empty"),
    "lfs.safetensors": (
        b"version https://git-lfs.github.com/spec/v1\noid x\n",
        "a Git LFS pointer",
    ),
    # of a name that promises something else
    "table.npz": (b"name,value\na,1\n", "text"),
    "table.pt": (b"name,value\na,1\n", "text"),
    "table.safetensors": (b"name,value\na,1\n" * 20, "text"),
    "picture.npz": (PNG, "a PNG image"),
    "page.bin": (b"<html></html>", "an HTML page"),
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Return a folder with all of them, and a zip and a tar archive of one."""
    monkeypatch.chdir(tmp_path)
    for name, (content, _) in FILES.items():
        (tmp_path / name).write_bytes(content)
    with zipfile.ZipFile("packed.zip", "w") as archive:
        archive.write("notes.txt")
    with tarfile.open("packed.tar", "w") as archive:
        archive.add("notes.txt")
    return tmp_path


KINDS = {name: kind for name, (_, kind) in FILES.items()}
KINDS |= {"packed.zip": "a zip archive", "packed.tar": "a tar archive"}


def refused(*words) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 3, result.output
    assert "pickle" not in result.output
    assert len(result.output.splitlines()) == 1
    return result.output


@pytest.mark.parametrize("name", KINDS)
def test_a_model(files, name):
    said = refused("convert", "torch-to-mlx", name, "out", "--check", "none")
    assert f"{name} is {KINDS[name]}" in said
    assert "safetensors" in said


def test_a_folder_without_a_model(files, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "table.csv").write_text("a,b\n")
    said = refused("convert", "torch-to-mlx", "folder", "out", "--check", "none")
    assert "folder: no tensor files" in said


@pytest.mark.parametrize("name", ["table.csv", "picture.png", "table.npz"])
def test_inputs(files, tiny_bert_dir, name):
    said = refused("parity", "record", tiny_bert_dir, "golden", "--inputs", name)
    assert f"{name} is {KINDS[name]}" in said
    assert "npz" in said


PAIRS = {
    "table.csv": "table.csv: no column query among",
    "rows.parquet": "rows.parquet: cannot read the table",
    **{name: f"{name} is {KINDS[name]}" for name in ("picture.png", "packed.gz")},
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_to_train_on(files, tiny_bert_dir, name):
    given = (
        f"model={tiny_bert_dir}",
        f"data.train={name}",
        f"data.validation={name}",
        "data.test=",
    )
    words = [word for pair in given for word in ("--set", pair)]
    assert PAIRS[name] in refused("preflight", "--config", "minilm-lora", *words)


@pytest.mark.parametrize("name", ["table.csv", "picture.png"])
def test_an_adapter(files, tiny_bert_dir, name):
    said = refused("merge", tiny_bert_dir, name, "out", "--check", "none")
    assert f"{name} is {KINDS[name]}" in said


@pytest.mark.parametrize("name", ["picture.png", "table.csv"])
def test_a_map(files, tiny_bert_dir, name):
    said = refused("map", "show", tiny_bert_dir, "--map", name)
    assert f"{name} is {KINDS[name]}" in said


def test_a_map_that_is_no_text(files, tiny_bert_dir):
    (files / "noise.wmap").write_bytes(bytes(range(128, 256)))
    assert "noise.wmap" in refused("map", "show", tiny_bert_dir, "--map", "noise.wmap")


@pytest.mark.parametrize("name", ["picture.png", "table.csv"])
def test_a_configuration(files, name):
    assert name in refused("preflight", "--config", name)


def test_a_gguf_file_to_follow(files, tiny_bert_dir):
    said = refused("export", "gguf", tiny_bert_dir, "out.gguf", "--like", "table.csv")
    assert "table.csv is a CSV table" in said
    assert "GGUF" in said


def test_inspect_says_it_too(files):
    assert "table.csv is a CSV table" in refused("inspect", "table.csv")
    assert (
        json.loads(CliRunner().invoke(main, ["inspect", "table.csv", "--json"]).stdout)["error"][
            "kind"
        ]
        == "bad-input"
    )
