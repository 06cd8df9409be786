"""What a file is called by its first bytes, and that what was asked for passes."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sqlite3
import tarfile
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from weighbridge.converters.common.contents import ZIP, kind_of, require
from weighbridge.errors import BadInputError


def database(path):
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
    connection.close()


def archive(path):
    with tarfile.open(path, "w") as tar:
        tar.add(__file__)


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", "b")


WRITTEN = {
    "a zip archive": zipped,
    "a tar archive": archive,
    "an SQLite database": database,
    "a gzip archive": lambda path: path.write_bytes(gzip.compress(b"x")),
    "a bzip2 archive": lambda path: path.write_bytes(bz2.compress(b"x")),
    "an xz archive": lambda path: path.write_bytes(lzma.compress(b"x")),
    "a single NumPy array": lambda path: np.save(path.open("wb"), np.ones(2)),
    "an HTML page": lambda path: path.write_text("<!DOCTYPE html><p>Not found"),
    "text": lambda path: path.write_text("once upon a time\n"),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("kind", WRITTEN)
def test_a_file_is_called_what_wrote_it(kind, tmp_path):
    WRITTEN[kind](tmp_path / "file")
    assert kind_of(tmp_path / "file") == kind


def test_checkpoints_and_bytes_of_no_kind_are_called_nothing(tmp_path):
    save_file({"a": np.ones(2, np.float32)}, tmp_path / "a.safetensors")
    (tmp_path / "b").write_bytes(bytes(range(128, 256)))
    assert kind_of(tmp_path / "a.safetensors") is None
    assert kind_of(tmp_path / "b") is None


@pytest.mark.parametrize("length", range(4092, 4098))
def test_a_text_whose_last_letter_is_cut_is_text_all_the_same(length, tmp_path):
    (tmp_path / "file").write_text("a" * length + "ä" * 10, encoding="utf-8")
    assert kind_of(tmp_path / "file") == "text"


def test_a_text_is_called_by_the_ending_of_its_name(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n")
    assert kind_of(tmp_path / "rows.csv") == "a CSV table"


def test_only_another_kind_is_refused(tmp_path):
    zipped(tmp_path / "file")
    require(tmp_path / "file", "an archive", {ZIP})
    require(tmp_path / "nothing", "an archive", {ZIP})  # what is not there is told elsewhere
    with pytest.raises(BadInputError, match="is a zip archive; expected a picture"):
        require(tmp_path / "file", "a picture")
