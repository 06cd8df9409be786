"""Parts of files and arrays, a piece at a time, are the bytes that lie there."""

from __future__ import annotations

import numpy as np
import pytest

from weighbridge.converters.checkpoints.formats import ranges
from weighbridge.errors import BadInputError

DATA = np.random.default_rng(0).bytes(100)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(ranges, "CHUNK", 16)
    monkeypatch.setattr(ranges, "BUFFERS", ranges.Buffers())  # no other test is lent a small one


@pytest.fixture
def file(tmp_path):
    (tmp_path / "file").write_bytes(DATA)
    return tmp_path / "file"


@pytest.mark.parametrize(("begin", "end"), [(0, 100), (3, 20), (5, 21), (99, 100), (7, 7)])
def test_pieces_are_the_bytes_in_between_and_none_is_large(file, begin, end):
    found = [bytes(piece) for piece in ranges.pieces(file, begin, end, "w")]
    assert b"".join(found) == DATA[begin:end]
    assert max(map(len, found), default=0) <= 16


def test_a_file_that_ends_too_early_is_one_line_that_names_the_tensor(file):
    with pytest.raises(BadInputError, match=r"file: w: the file shrank while it was read"):
        list(ranges.pieces(file, 90, 101, "w"))
    with pytest.raises(BadInputError, match=r"gone: w: No such file"):
        list(ranges.pieces(file.with_name("gone"), 0, 1, "w"))


def test_a_buffer_is_filled_from_where_it_begins(file):
    piece = memoryview(bytearray(40))
    ranges.fill(file, 50, piece, "w")
    assert bytes(piece) == DATA[50:90]


@pytest.mark.parametrize(("start", "stop"), [(0, None), (4, 50), (0, 1000), (90, 30)])
def test_chunks_of_an_array_are_its_bytes_in_order(start, stop):
    array = np.frombuffer(DATA, np.uint16).reshape(5, 10).T
    found = b"".join(bytes(view) for view in ranges.chunks(array, start, stop))
    assert found == np.ascontiguousarray(array).tobytes()[start:stop]


def test_parts_are_joined_in_order(file):
    parts = ranges.pieces(file, 0, 100, "w")
    assert ranges.gather(parts, 100).tobytes() == DATA
