"""Every way in which a safetensors file can lie is told apart, in one line."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import CHUNK, Header
from weighbridge.converters.checkpoints.formats.safetensors import SafetensorsFile, encode_header
from weighbridge.converters.common.dtypes import NUMPY
from weighbridge.errors import BadInputError, MismatchError

# The codes that safetensors' numpy functions know on both ways.
ORACLE_CODES = sorted(
    set(NUMPY) - {"F8_E8M0", "F8_E4M3", "F8_E5M2", "C64"}  # no numpy dtype of their own there
)
SIZES = st.integers(0, 4)
LAYOUTS = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
    st.builds(Header, st.sampled_from(sorted(NUMPY)), st.lists(SIZES, max_size=3).map(tuple)),
    max_size=5,
)


def entry(begin: int, end: int, dtype: str = "F32", shape: list[int] | None = None) -> dict:
    return {"dtype": dtype, "shape": shape or [(end - begin) // 4], "data_offsets": [begin, end]}


def encode(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


LIES = {
    "empty file": (b"", "truncated: 0 bytes"),
    "no header": (b"\5\0\0", "truncated: 3 bytes"),
    "header longer than the file": (encode({}, length=500), "truncated: the header claims 500"),
    "header over 100 MB": (encode({}, length=100_000_001), "the header claims 100000001 bytes"),
    "not JSON": (encode(b"{hello}"), "the header: not JSON"),
    "not UTF-8": (encode(b'{"\xff": 1}'), r"the header: not UTF-8 \(byte 2\)"),
    "a list": (encode([]), "the header: expected a JSON object, found a list"),
    "nested": (encode(b"[" * 100_000), "the header: nested more than 64 levels deep"),
    "metadata of numbers": (encode({"__metadata__": {"a": 1}}), "__metadata__ is not"),
    "twice": (encode(b'{"w": {}, "w": {}}'), "the header: w is named twice"),
    "no shape": (encode({"w": {"dtype": "F32"}}), "tensor w: needs a dtype, a shape"),
    "negative": (encode({"w": entry(0, 4, shape=[-1])}, b"1234"), "tensor w: needs"),
    "a bool as size": (encode({"w": entry(0, 4, shape=[True])}, b"1234"), "tensor w: needs"),
    "backwards": (encode({"w": entry(4, 0, shape=[1])}, b"1234"), "tensor w: needs"),
    "three offsets": (encode({"w": entry(0, 4) | {"data_offsets": [0, 4, 8]}}), "tensor w: needs"),
    "surrogate": (encode(b'{"\\ud800": {}}'), "holds half a character"),
    "unknown dtype": (encode({"w": entry(0, 4, "F5")}, b"1234"), "tensor w: dtype F5 is unknown"),
    "wrong size": (
        encode({"w": entry(0, 4, shape=[2])}, b"1234"),
        r"tensor w: F32\[2\] takes 8 bytes, found 4",
    ),
    "past the end": (encode({"w": entry(0, 8)}, b"1234"), "truncated: tensor w ends at byte"),
    "gap at the start": (
        encode({"w": entry(4, 8)}, b"12345678"),
        "tensor w leaves 4 bytes after the header",
    ),
    "gap": (
        encode({"v": entry(0, 4), "w": entry(8, 12)}, b"123456789abc"),
        "tensor w leaves 4 bytes after tensor v",
    ),
    "overlap": (
        encode({"v": entry(0, 8), "w": entry(4, 8)}, b"12345678"),
        "tensor w overlaps tensor v",
    ),
    "same bytes twice": (
        encode({"v": entry(0, 4), "w": entry(0, 4)}, b"1234"),
        "tensor w overlaps tensor v",
    ),
    "bytes left over": (encode({"w": entry(0, 4)}, b"123456"), "2 bytes after tensor w belong"),
    "sizes beyond 64 bits": (
        encode({"w": entry(0, 0, shape=[0, 2**62, 4])}),
        "tensor w: shape .* is too large",
    ),
    "Git LFS": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "Git LFS pointer"),
}


@pytest.mark.parametrize("case", LIES)
def test_a_lie_is_one_line_that_names_the_file(case, tmp_path):
    data, expected = LIES[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(BadInputError, match=expected) as caught:
        SafetensorsFile(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


SEVERAL = {
    "dtypes and shapes": (
        {"u": entry(0, 4, "F5"), "v": entry(4, 8, shape=[2]), "w": {"shape": []}},
        ("tensor u: dtype F5 is unknown", "tensor v: F32[2] takes 8", "tensor w: needs a dtype"),
    ),
    "offsets": (
        {"u": entry(0, 8), "v": entry(4, 8), "w": entry(12, 16), "x": entry(16, 24)},
        ("tensor v overlaps tensor u", "tensor w leaves 4 bytes", "truncated: tensor x ends at"),
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_several_lies_are_one_report(case, tmp_path):
    header, expected = SEVERAL[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode(header, bytes(20)))
    with pytest.raises(
        MismatchError, match="is damaged; copy, download or save it again"
    ) as caught:
        SafetensorsFile(path)
    assert len(caught.value.problems) == len(expected)
    for start in expected:
        assert any(problem.startswith(start) for problem in caught.value.problems)


@given(data=st.data())
def test_any_range_of_a_tensor_is_its_bytes(tmp_path_factory, data):
    arrays = sample(path := tmp_path_factory.mktemp("r") / "a.safetensors")
    name = data.draw(st.sampled_from(sorted(arrays)))
    raw = arrays[name].tobytes()
    start = data.draw(st.integers(0, len(raw)))
    stop = data.draw(st.integers(start, len(raw)))
    found = SafetensorsFile(path)
    assert b"".join(map(bytes, found.stream(name, start, stop))) == raw[start:stop]
    assert b"".join(map(bytes, found.stream(name, start))) == raw[start:]


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(BadInputError, match=r"none\.safetensors: No such file"):
        SafetensorsFile(tmp_path / "none.safetensors")


def sample(path: Path) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    arrays = {
        code: generator.integers(0, 2, (3, 5)).astype(NUMPY[code]) for code in ORACLE_CODES
    } | {"scalar": np.array(7, np.int64), "empty": np.zeros((0, 3), np.float32)}
    safetensors.numpy.save_file(arrays, path, metadata={"format": "pt"})
    return arrays


def test_what_safetensors_writes_is_read_bit_for_bit(tmp_path):
    arrays = sample(path := tmp_path / "a.safetensors")
    found = SafetensorsFile(path)
    assert found.metadata == {"format": "pt"}
    assert set(found.headers) == set(arrays)
    for name, array in arrays.items():
        read = found.read(name)
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes() == b"".join(map(bytes, found.stream(name)))


def test_an_array_that_was_read_is_the_readers_own(tmp_path):
    sample(path := tmp_path / "a.safetensors")
    first = SafetensorsFile(path).read("F32")
    first += 1
    assert (SafetensorsFile(path).read("F32") != first).all()


def test_a_large_tensor_streams_in_pieces_of_one_chunk(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, 2 * CHUNK + 5, np.uint8)
    safetensors.numpy.save_file({"w": array}, path := tmp_path / "a.safetensors")
    pieces = [bytes(piece) for piece in SafetensorsFile(path).stream("w")]
    assert [len(piece) for piece in pieces] == [CHUNK, CHUNK, 5]
    assert b"".join(pieces) == array.tobytes()


def test_tensors_come_in_the_order_of_their_bytes(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(encode({"z": entry(4, 8), "a": entry(8, 12), "m": entry(0, 4)}, bytes(12)))
    assert list(SafetensorsFile(path).headers) == ["m", "z", "a"]


def test_a_file_that_shrinks_while_it_is_read_is_told(tmp_path):
    sample(path := tmp_path / "a.safetensors")
    found = SafetensorsFile(path)
    path.write_bytes(path.read_bytes()[:-200])
    last = list(found.headers)[-1]
    with pytest.raises(BadInputError, match=f"tensor {last}: the file shrank"):
        found.read(last)
    with pytest.raises(BadInputError, match=f"tensor {last}: the file shrank"):
        list(found.stream(last))


def test_a_file_that_goes_away_is_told(tmp_path):
    sample(path := tmp_path / "a.safetensors")
    found = SafetensorsFile(path)
    path.unlink()
    with pytest.raises(BadInputError, match="tensor F32: No such file"):
        found.read("F32")
    with pytest.raises(BadInputError, match="tensor F32: No such file"):
        list(found.stream("F32"))


def test_two_streams_at_once_do_not_share_a_buffer(tmp_path):
    arrays = sample(path := tmp_path / "a.safetensors")
    found = SafetensorsFile(path)
    one, other = found.stream("F32"), found.stream("I32")
    pieces = next(one), next(other)
    assert bytes(pieces[0]) == arrays["F32"].tobytes()
    assert bytes(pieces[1]) == arrays["I32"].tobytes()


@given(LAYOUTS, st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
def test_an_encoded_header_is_read_back(tmp_path_factory, layout, metadata):
    path = tmp_path_factory.mktemp("h") / "a.safetensors"
    header = encode_header(layout, metadata)
    path.write_bytes(header + bytes(sum(what.nbytes for what in layout.values())))
    found = SafetensorsFile(path)
    assert (dict(found.headers), found.metadata) == (layout, metadata)
    assert len(header) % 8 == 0
    with safetensors.safe_open(path, "np") as oracle:  # the format's own reader agrees
        assert set(oracle.keys()) == set(layout)
        assert {n: tuple(oracle.get_slice(n).get_shape()) for n in layout} == {
            name: what.shape for name, what in layout.items()
        }


@given(st.data())
def test_no_damage_gives_a_traceback(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("d") / "a.safetensors"
    sample(path)
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, 8 + length - 1))
        content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.sampled_from([len(content), len(content) // 2]))])
    with contextlib.suppress(BadInputError, MismatchError):
        found = SafetensorsFile(path)
        for name, header in found.headers.items():
            assert found.read(name).nbytes == header.nbytes


def test_float8_is_read_as_ml_dtypes_has_it(tmp_path):
    import torch
    from safetensors.torch import save_file

    values = torch.tensor([random.Random(0).uniform(-4, 4) for _ in range(8)])
    save_file(
        {"a": values.to(torch.float8_e4m3fn), "b": values.to(torch.float8_e5m2)},
        path := tmp_path / "a.safetensors",
    )
    found = SafetensorsFile(path)
    for name, dtype in (("a", ml_dtypes.float8_e4m3fn), ("b", ml_dtypes.float8_e5m2)):
        expected = values.to({"a": torch.float8_e4m3fn, "b": torch.float8_e5m2}[name]).float()
        assert found.read(name).dtype == dtype
        assert (found.read(name).astype(np.float32) == expected.numpy()).all()
