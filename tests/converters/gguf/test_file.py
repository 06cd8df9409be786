"""GGUF files opened: what is in them, and what is refused."""

from __future__ import annotations

import contextlib

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.converters.gguf.models import like_file
from weighbridge.converters.gguf import GgufFile
from weighbridge.errors import BadInputError, UnsupportedError, WeighbridgeError


def test_every_field_is_kept_byte_by_byte(llama):
    path = llama.like()
    file = GgufFile(path)
    start = path.read_bytes().index(b"".join(file.fields.values()))
    assert start == 24  # right behind magic, version and the two counts
    reader = gguf.GGUFReader(path)
    assert set(file.fields) == {name for name in reader.fields if not name.startswith("GGUF.")}


def test_tensors_have_rows_first(llama):
    assert str(GgufFile(llama.like()).tensors["blk.0.ffn_down.weight"]) == "BF16[64, 96]"


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_rows_are_what_the_library_dequantizes(llama, kind):
    path = llama.like(kind)
    file, reader = GgufFile(path), gguf.GGUFReader(path)
    for tensor in (each for each in reader.tensors if each.data.ndim > 1):
        want = gguf.dequantize(tensor.data, tensor.tensor_type)
        rows = want.reshape(-1, want.shape[-1])
        assert np.array_equal(file.rows(tensor.name, slice(1, 7)), rows[1:7])


@given(data=st.data())
def test_a_file_cut_short_is_refused(llama, data, tmp_path_factory):
    whole = llama.like("Q8_0").read_bytes()
    length = data.draw(st.integers(0, len(whole) - 40))
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(BadInputError, match=r"cut\.gguf: not a whole GGUF file"):
        GgufFile(path)


@given(place=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_header_is_no_bug(llama, tmp_path_factory, place, byte):
    data = bytearray(llama.like("Q8_0").read_bytes())
    data[place] = byte
    path = tmp_path_factory.mktemp("damaged") / "damaged.gguf"
    path.write_bytes(data)
    with contextlib.suppress(WeighbridgeError):
        GgufFile(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(BadInputError, match="no such file"):
        GgufFile(tmp_path / "absent.gguf")
    (tmp_path / "text.gguf").write_text("version https://git-lfs and so on, long enough for it")
    with pytest.raises(BadInputError, match="is a Git LFS pointer"):
        GgufFile(tmp_path / "text.gguf")


def test_a_part_of_a_split_file_says_how_to_join_it(llama, tmp_path):
    path = like_file(
        tmp_path / "a.gguf",
        "llama",
        llama.base,
        extra=lambda writer: writer.add_uint16("split.count", 3),
    )
    with pytest.raises(UnsupportedError, match="llama-gguf-split --merge"):
        GgufFile(path)


def test_the_other_order_of_bytes_is_refused(tmp_path):
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("token_embd.weight", np.ones((2, 32), np.float32))
    for step in (
        writer.write_header_to_file,
        writer.write_kv_data_to_file,
        writer.write_tensors_to_file,
    ):
        step()
    writer.close()
    with pytest.raises(UnsupportedError, match="big-endian"):
        GgufFile(path)
