"""Headers of GGUF files: every count is held against the bytes that are there."""

from __future__ import annotations

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import hostile
from tests.hostile import refused
from weighbridge.converters.gguf.header import read_header
from weighbridge.errors import WeighbridgeError


@pytest.mark.parametrize("case", hostile.GGUF)
def test_a_hostile_file_is_refused_by_name(llama, tmp_path, case):
    (like := tmp_path / "like.gguf").write_bytes(hostile.GGUF[case])
    line = refused("export", "gguf", llama.tuned, tmp_path / "out.gguf", "--like", like)
    assert "like.gguf" in line
    assert [path.name for path in tmp_path.iterdir()] == ["like.gguf"]


def test_a_small_file_is_read_as_llama_cpp_reads_it(tmp_path):
    (path := tmp_path / "a.gguf").write_bytes(hostile.gguf_file())
    header, theirs = read_header(path), gguf.GGUFReader(path)
    assert header.fields["llama.block_count"].value() == 1
    assert header.fields["general.architecture"].value() == "llama"
    assert header.places == {it.name: it.data_offset for it in theirs.tensors}


@given(place=st.integers(0, 300), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_read_as_llama_cpp_reads_it(tmp_path_factory, place, bit):
    data = bytearray(hostile.gguf_file())
    data[place % len(data)] ^= 1 << bit
    (path := tmp_path_factory.mktemp("flipped") / "a.gguf").write_bytes(data)
    try:
        header = read_header(path)
    except WeighbridgeError:
        return
    theirs = gguf.GGUFReader(path)
    assert {n: str(it) for n, it in header.tensors.items()} == {
        it.name: f"{it.tensor_type.name}{it.shape.tolist()[::-1]}" for it in theirs.tensors
    }
    own = {name: field for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert {n: field.data for n, field in header.fields.items()} == {
        n: b"".join(part.tobytes() for part in field.parts) for n, field in own.items()
    }
