"""PyTorch's files are read as data; what wants to run code is refused and named."""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests import hostile
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.checkpoints.base import CHUNK
from weighbridge.converters.checkpoints.formats.torch import TorchFile
from weighbridge.errors import BadInputError, UnsupportedError, UntrustedError, WeighbridgeError


class Evil:
    """Runs a command when unpickled."""

    def __reduce__(self):
        return os.mkdir, ("it-ran",)


def tensors() -> dict[str, torch.Tensor]:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "plain": base,
        "turned": base.T,
        "part": base[1:, ::2],
        "bf16": base.to(torch.bfloat16),
        "fp8": base.to(torch.float8_e4m3fn),
        "bool": base > 3,
        "scalar": torch.tensor(5),
        "empty": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(base.half()),
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }


def as_bytes(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("nesting", [None, "state_dict", "model_state_dict"])
def test_a_state_dict_is_read_bit_for_bit(zipped, nesting, tmp_path):
    state = OrderedDict(tensors())
    if not zipped:
        del state["fp8"]  # the older format cannot hold it
    content = {nesting: state, "epoch": 3} if nesting else state
    torch.save(content, path := tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    found = TorchFile(path)
    assert list(found.headers) == list(state)
    for name, tensor in state.items():
        assert found.headers[name].shape == tuple(tensor.shape)
        assert found.read(name).shape == tuple(tensor.shape)
        assert found.read(name).tobytes() == as_bytes(tensor)
        assert b"".join(map(bytes, found.stream(name))) == as_bytes(tensor)
    assert found.headers["bf16"].dtype == "BF16"


def test_what_was_read_can_be_changed_without_changing_the_file(tmp_path):
    torch.save({"w": torch.zeros(3)}, path := tmp_path / "a.pt")
    found = TorchFile(path)
    array = found.read("w")
    array += 1
    assert (found.read("w") == 0).all()


def test_a_large_tensor_streams_in_pieces(tmp_path):
    torch.save({"w": torch.zeros(CHUNK + 9, dtype=torch.uint8)}, path := tmp_path / "a.pt")
    assert [len(piece) for piece in TorchFile(path).stream("w")] == [CHUNK, 9]


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_pickle_that_wants_code_is_refused_by_name_and_does_not_run(
    zipped, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    content = {"w": torch.zeros(2), "x": Evil()}
    torch.save(content, path := tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UntrustedError, match=r"would run posix.mkdir; save tensors only"):
        TorchFile(path)
    assert not (tmp_path / "it-ran").exists()


def test_a_whole_module_is_refused_by_name(tmp_path):
    torch.save(torch.nn.Linear(2, 2), path := tmp_path / "a.pt")
    with pytest.raises(UntrustedError, match=r"torch.nn.modules.linear.Linear"):
        TorchFile(path)


REFUSED = {
    "numbers": (
        {"a": torch.zeros(2), "epoch": 3, "b": "x"},
        BadInputError,
        "not tensors: b, epoch",
    ),
    "a list": ([torch.zeros(2)], BadInputError, "holds no state dict but a list"),
    "nothing": ({}, BadInputError, "holds no state dict"),
    "sparse": ({"a": torch.eye(2).to_sparse()}, UnsupportedError, "tensor a is sparse"),
    "complex128": (
        {"a": torch.zeros(2, dtype=torch.complex128)},
        UnsupportedError,
        "tensor a: dtype complex128",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_state_dict_is_refused(case, tmp_path):
    content, error, message = REFUSED[case]
    torch.save(content, path := tmp_path / "a.pt")
    with pytest.raises(error, match=message):
        TorchFile(path)


DAMAGED = {"cut": lambda data: data[:500], "text": lambda _: b"hello" * 99, "empty": lambda _: b""}


JUNK = [
    b"junk",
    b"}",
    b"\x80\x02X",
    b"PK\x03\x04junk",
    b"\x80\x02}q",
    b"<html>",
    b"\x00" * 50,
    b"1",
]


def test_a_damaged_tensor_is_never_given_out_whole(tmp_path):
    state = {"w": torch.zeros(3 * CHUNK, dtype=torch.uint8)}
    torch.save(state | {"part": state["w"][9:]}, path := tmp_path / "a.pt")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    given = []
    with pytest.raises(BadInputError, match="data/0 is damaged"):
        given.extend(map(len, TorchFile(path).stream("w")))
    assert given == [CHUNK, CHUNK]
    for name, ends in (("w", (0, 9)), ("w", (CHUNK, 2 * CHUNK)), ("part", (0, None))):
        with pytest.raises(BadInputError, match="data/0 is damaged"):
            next(TorchFile(path).stream(name, *ends))


STAMPS = {"version": b"x", ".storage_alignment": b"6\xb4", "byteorder": b"littlE"}


@pytest.mark.parametrize("name", STAMPS)
def test_a_file_that_says_nonsense_of_itself_is_refused(tmp_path, name):
    code = hostile.state(hostile.GOOD)
    path = hostile.torch_zip(tmp_path / "a.pt", code, **{name: STAMPS[name]})
    with pytest.raises(BadInputError, match="not a readable PyTorch file"):
        TorchFile(path)


@pytest.mark.parametrize("data", JUNK)
def test_junk_is_one_line(data, tmp_path):
    (path := tmp_path / "a.bin").write_bytes(data)
    with pytest.raises((BadInputError, UntrustedError)) as caught:
        TorchFile(path)
    assert str(caught.value).startswith(f"{path}: not a ")
    assert "\n" not in str(caught.value)


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=3),
    st.booleans(),
)
@example([(151, 92)], False)  # a backslash in a name, of which Python's pickletools warns
@settings(max_examples=60, deadline=None)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_a_file_with_a_few_other_bytes_is_read_or_refused(tmp_path_factory, changes, zipped):
    path = tmp_path_factory.mktemp("a") / "a.bin"
    torch.save({"w": torch.ones(4, 3)}, path, _use_new_zipfile_serialization=zipped)
    data = bytearray(path.read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    path.write_bytes(data)
    with contextlib.suppress(WeighbridgeError):
        found = TorchFile(path)
        assert all(found.read(name).shape == found.headers[name].shape for name in found.headers)


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_one_line(case, tmp_path):
    torch.save({"w": torch.zeros(99)}, path := tmp_path / "a.pt")
    path.write_bytes(DAMAGED[case](path.read_bytes()))
    with pytest.raises((BadInputError, UntrustedError)) as caught:
        TorchFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_shards_with_an_index_are_one_checkpoint(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        '{"weight_map": {"a": "pytorch_model-00001-of-00002.bin",'
        ' "b": "pytorch_model-00002-of-00002.bin"}}'
    )
    found = open_checkpoint(tmp_path)
    assert list(found.headers) == ["a", "b"]
    assert (found.read("a") == np.ones(2)).all()
    assert found.ignored == ()


def test_a_name_with_half_a_character_is_refused(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    data = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(data.replace(b"weight", b"we\xed\xa0\x80t"))
    with pytest.raises(BadInputError, match="half a character"):
        open_checkpoint(tmp_path / "a.bin")


def test_a_pickle_that_says_a_text_is_huge_is_refused_without_making_room_for_it(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    data = bytearray((tmp_path / "a.bin").read_bytes())
    at = data.index(b"weight") - 5  # BINUNICODE and four bytes of length
    data[at : at + 5] = b"\x8d" + b"\xff" * 3 + b"\x7f"  # BINUNICODE8
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(BadInputError, match="not a readable PyTorch file"):
        open_checkpoint(tmp_path / "a.bin")


def test_damage_in_a_member_that_is_never_read_is_refused(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.pt")
    data = (tmp_path / "a.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        text = archive.read("a/.data/serialization_id")
    (tmp_path / "a.pt").write_bytes(data.replace(text, b"9" + text[1:], 1))
    with pytest.raises(BadInputError, match="serialization_id is damaged"):
        open_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize(("back", "value"), [(73, 0x20), (18, 0x01), (42, 0x07)])
def test_an_archive_whose_end_says_other_numbers_is_refused(back, value, tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.pt")
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[-back] = value
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(BadInputError, match="not a readable PyTorch file"):
        open_checkpoint(tmp_path / "a.pt")


def test_a_directory_whose_last_name_is_too_long_is_refused(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "a.pt")
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[data.rindex(b"PK\x01\x02") + 28] = 0x80
    (tmp_path / "a.pt").write_bytes(data)
    with pytest.raises(BadInputError, match="not a readable PyTorch file"):
        open_checkpoint(tmp_path / "a.pt")


class Rebuilt:
    """Is pickled as a call of FUNCTION with ARGUMENTS."""

    def __init__(self, function, arguments):
        self.made = function, arguments

    def __reduce__(self):
        return self.made


STORAGE = torch.arange(4.0).untyped_storage()
TYPED = torch.storage.TypedStorage(wrap_storage=STORAGE, dtype=torch.float32, _internal=True)
PLACE = TYPED, 0, (2,), (1,)
WRONG_CALLS = {
    "two arguments too few": ("_rebuild_tensor_v2", PLACE),
    "one too many": ("_rebuild_tensor_v2", (*PLACE, False, OrderedDict(), None, 1)),
    "a flag that is none": ("_rebuild_tensor_v2", (*PLACE, 1, OrderedDict())),
    "metadata that are none": ("_rebuild_tensor_v2", (*PLACE, False, OrderedDict(), "neg")),
    "no dtype": ("_rebuild_tensor_v3", (*PLACE, False, OrderedDict(), 3)),
    "a parameter without its flag": ("_rebuild_parameter", (torch.arange(2.0),)),
    "a state of three": (
        "_rebuild_parameter_with_state",
        (torch.arange(2.0), False, OrderedDict(), (1, 2, 3)),
    ),
}


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_what_torch_cannot_rebuild_is_refused(call, tmp_path):
    function, arguments = WRONG_CALLS[call]
    torch.save({"a": Rebuilt(getattr(torch._utils, function), arguments)}, tmp_path / "a.pt")
    with pytest.raises(BadInputError, match=r"other arguments than torch\.save does"):
        TorchFile(tmp_path / "a.pt")


def test_integers_that_require_gradients_are_refused(tmp_path):
    storage = torch.storage.TypedStorage(
        wrap_storage=torch.arange(4).untyped_storage(), dtype=torch.int64, _internal=True
    )
    call = torch._utils._rebuild_tensor_v2, (storage, *PLACE[1:], True, OrderedDict())
    torch.save({"a": Rebuilt(*call)}, tmp_path / "a.pt")
    with pytest.raises(BadInputError, match="cannot require gradients"):
        TorchFile(tmp_path / "a.pt")
