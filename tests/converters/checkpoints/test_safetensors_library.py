"""What the safetensors library refuses is refused; what is read has the values it reads."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
import safetensors
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.formats.safetensors import SafetensorsFile
from weighbridge.errors import WeighbridgeError

PAIR = {
    "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
    "b": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 16]},
    "c": {"dtype": "I64", "shape": [0, 3], "data_offsets": [16, 16]},
}
TEXT = json.dumps({"__metadata__": {"format": "pt"}, **PAIR})
DATA = bytes(range(16))


def entry(dtype="F32", shape="[2]", offsets="[0,8]", more="") -> str:
    return f'{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{more}}}}}'


# Header -> how many bytes of tensors follow.
KNOWN = {
    **{
        entry(dtype): 8
        for dtype in ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3", "f32", "C64")
    },
    entry("F4", "[16]"): 8,
    entry("F4", "[3]", "[0,2]"): 2,
    entry("F6_E2M3", "[4]", "[0,3]"): 3,
    entry("F32", "[-2]"): 8,
    entry("F32", "[-0]", "[0,0]"): 0,
    entry("F32", "[2]", "[-0,8]"): 8,
    entry("F32", "[2.0]"): 8,
    entry("F32", "[2e0]"): 8,
    entry("F32", "[true,2]"): 8,
    entry("F32", "[18446744073709551618]"): 8,
    entry("F32", "[4294967296,4294967296,0]", "[0,0]"): 0,
    entry("F32", "[0,18446744073709551616]", "[0,0]"): 0,
    entry("F32", "[9223372036854775808,2]", "[0,0]"): 0,
    entry("F32", "null"): 8,
    entry("F32", "[]", "[0,4]"): 4,
    entry("F32", "[2]", "[0,8,8]"): 8,
    entry("F32", "[2]", "[8,0]"): 8,
    entry("F32", "[2]", "[0,8]") + "\n\t ": 8,
    entry("F32", "[2]", "[0,8]") + "\0": 8,
    entry("F32", "[2]", "[0,8]") + "{}": 8,
    " " + entry(): 8,
    "\n" + entry(): 8,
    "\ufeff" + entry(): 8,
    entry(more=',"extra":1'): 8,
    entry(more=',"extra":NaN'): 8,
    entry(more=',"extra":-Infinity'): 8,
    entry(more=',"extra":1e999'): 8,
    entry(more=',"extra":-0'): 8,
    entry(more=f',"extra":{"9" * 400}'): 8,
    entry(more=',"extra":"\\ud800"'): 8,
    entry(more=',"\\ud800":1'): 8,
    entry(more=f',"extra":{"[" * 200}{"]" * 200}'): 8,
    entry(more=',"dtype":"F32"'): 8,
    entry(more=',"extra":"\t"'): 8,
    '{"__metadata__":null,' + entry()[1:]: 8,
    '{"__metadata__":{"a":1},' + entry()[1:]: 8,
    '{"__metadata__":{"a":null},' + entry()[1:]: 8,
    '{"__metadata__":{"a":"1","a":"2"},' + entry()[1:]: 8,
    '{"__metadata__":{"a":"\\ud800"},' + entry()[1:]: 8,
    '{"__metadata__":{"\\ud800":"a"},' + entry()[1:]: 8,
    '{"__metadata__":{},"__metadata__":{},' + entry()[1:]: 8,
    '{"__metadata__":[],' + entry()[1:]: 8,
    '{"\\u00e4":' + entry()[5:]: 8,
    '{"ä":' + entry()[5:]: 8,
    '{"a\\u0000":' + entry()[5:]: 8,
    '{"\\ud83d\\ude00":' + entry()[5:]: 8,
    '{"\\ud83d":' + entry()[5:]: 8,
    '{"a":["F32",[2],[0,8]]}': 8,
    "{}": 0,
    "": 0,
    "[]": 0,
    "null": 0,
    '{"__metadata__":{}}': 8,
}


def written(folder, header: bytes, data: bytes, length: int | None = None):
    path = folder / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)
    return path


def agree(path) -> None:
    """Read PATH both ways: theirs refuses less than ours, and both have the same bytes."""
    try:
        ours = SafetensorsFile(path)
    except WeighbridgeError:
        return
    theirs = dict(safetensors.deserialize(path.read_bytes()))  # refuses what is not sound
    assert {n: (h.dtype, list(h.shape)) for n, h in ours.headers.items()} == {
        n: (it["dtype"], it["shape"]) for n, it in theirs.items()
    }
    assert all(ours.read(n).tobytes() == bytes(it["data"]) for n, it in theirs.items())


@pytest.mark.parametrize("header", KNOWN)
def test_a_strange_header_is_refused_where_the_library_refuses_it(tmp_path, header):
    agree(written(tmp_path, header.encode(), bytes(KNOWN[header])))


def test_a_sound_header_is_read_by_both(tmp_path):
    path = written(tmp_path, TEXT.encode(), DATA)
    agree(path)
    assert list(SafetensorsFile(path).headers) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "length", [0, 1, len(TEXT) - 1, len(TEXT) + 1, 100_000_001, 2**63, 2**64 - 1]
)
def test_a_strange_length_is_refused_where_the_library_refuses_it(tmp_path, length):
    agree(written(tmp_path, TEXT.encode(), DATA, length))


INSERTED = st.one_of(
    st.sampled_from([b"\\ud800", b"-0", b"null", b"NaN", b"1e5", b"9" * 30, b" ", b"\n", b"\0"]),
    st.binary(min_size=0, max_size=3),
    st.text(max_size=2).map(lambda text: text.encode("utf-8", "surrogatepass")),
)


@given(
    st.lists(
        st.tuples(st.integers(0, len(TEXT)), st.integers(0, 6), INSERTED), min_size=1, max_size=3
    )
)
@example([(TEXT.index("[2]") + 1, 1, b"-0")])
@settings(max_examples=300)
def test_a_changed_header_is_refused_where_the_library_refuses_it(tmp_path_factory, changes):
    header = TEXT.encode()
    for place, length, new in changes:
        header = header[:place] + new + header[place + length :]
    agree(written(tmp_path_factory.mktemp("changed"), header, DATA))


DTYPES = st.sampled_from(
    ["F32", "BF16", "F4", "F6_E2M3", "F8_E4M3", "F8_E4M3FNUZ", "U8", "C64", "X"]
)
SIZES = st.one_of(st.integers(0, 5), st.sampled_from([2**31, 2**32, 2**62, 2**63, 2**64, -1]))
PLACES = st.one_of(st.integers(0, 17), st.sampled_from([2**63, 2**64, -1]))


@given(
    st.lists(st.tuples(DTYPES, st.lists(SIZES, max_size=3), st.tuples(PLACES, PLACES)), max_size=4)
)
@settings(max_examples=300)
def test_tensors_laid_anyhow_are_refused_where_the_library_refuses_them(tmp_path_factory, entries):
    laid = {
        f"t{place}": {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}
        for place, (dtype, shape, offsets) in enumerate(entries)
    }
    header = json.dumps(laid).encode()
    agree(written(tmp_path_factory.mktemp("laid"), header, np.arange(16, dtype=np.uint8).tobytes()))
