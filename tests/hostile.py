"""Files made to harm: small generators, one a case, used by tests through the verbs."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np

GLOBAL_TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"


def patched(data: bytes, old: bytes, new: bytes, count: int = -1) -> bytes:
    """Return DATA with NEW in place of OLD, which has to be there."""
    assert old in data
    return data.replace(old, new, count)


def number(value: int) -> bytes:
    """Return the pickle of VALUE, without its frame."""
    return pickle.dumps(value, protocol=2)[2:-1]


def text(value: str) -> bytes:
    """Return the pickle of VALUE, without its frame."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def numbers(values: tuple[int, ...]) -> bytes:
    """Return the pickle of a tuple of numbers, without its frame."""
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(shape, strides, *, offset=0, numel=4, key="0", kind="FloatStorage") -> bytes:
    """Return what ``torch.save`` writes for a tensor of a storage of NUMEL numbers."""
    storage = b"(" + text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu")
    storage += number(numel) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    sizes = numbers(shape) + numbers(strides)
    return GLOBAL_TENSOR + b"(" + storage + number(offset) + sizes + b"\x89" + hooks + b"tR"


def state(*items: bytes) -> bytes:
    """Return the pickle of a state dict whose values are ITEMS, called a, b and so on."""
    named = b"".join(text(chr(97 + place)) + item for place, item in enumerate(items))
    return b"\x80\x02}(" + named + b"u."


def torch_zip(path: Path, code: bytes, storage: bytes = bytes(16), **more: bytes) -> Path:
    """Write an archive as ``torch.save`` does, with CODE as its pickle and one STORAGE."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {"data.pkl": code, "data/0": storage, "version": b"3", **more}.items():
            archive.writestr(f"archive/{name}", content)
    return path


def torch_legacy(path: Path, code: bytes, storage: bytes = bytes(16), count: int = 4) -> Path:
    """Write a file as ``torch.save`` did before version 1.6."""
    frames = [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}]
    head = b"".join(pickle.dumps(frame, protocol=2) for frame in frames)
    keys = pickle.dumps(["0"], protocol=2)
    legacy = code.replace(b"tQ", b"NtQ")  # a place for views of storages
    path.write_bytes(head + legacy + keys + struct.pack("<q", count) + storage)
    return path


GOOD = tensor((2, 2), (2, 1))

# What is wrong -> the pickle of a state dict, and a part of the one line that refuses it.
PICKLES: dict[str, tuple[bytes, str]] = {
    "memory asked for by a number": (
        state(b"c__builtin__\nbytearray\n" + number(1 << 42) + b"\x85R"),
        "not tensors: a",
    ),
    "a storage asked for by a number": (
        state(b"ctorch.storage\nUntypedStorage\n" + number(1 << 42) + b"\x85R"),
        "not tensors: a",
    ),
    "a tensor asked for by a number": (
        state(b"ctorch\nFloatTensor\n" + number(1 << 42) + b"\x85R"),
        "not tensors: a",
    ),
    "nested without end": (state(b"]" * 100_000 + b"a" * 99_999), "not tensors: a"),
    "a key that takes for ever to hash": (
        b"\x80\x02})q\x00" + b"h\x00\x86q\x00" * 60 + b"K\x01s.",
        "key",
    ),
    "a memo without end": (
        state(b"".join(b"]r" + struct.pack("<I", 2**32 - 1 - n) for n in range(1000)) + b"K\x01"),
        "not",
    ),
    "a storage of negative size": (state(tensor((2, 2), (2, 1), numel=-4)), "storage"),
    "a storage without end": (state(tensor((2, 2), (2, 1), numel=1 << 60)), "storage 0"),
    "a storage that is not there": (state(tensor((2, 2), (2, 1), key="9")), "storage 9"),
    "a storage outside of the archive": (
        state(tensor((2, 2), (2, 1), key="../../etc/passwd")),
        "storage ../../etc/passwd",
    ),
    "a negative size": (state(tensor((-2, -2), (2, 1))), "tensor a"),
    "a negative stride": (state(tensor((2, 2), (-2, 1), offset=2)), "tensor a"),
    "a negative offset": (state(tensor((2, 2), (2, 1), offset=-1)), "tensor a"),
    "an end beyond the storage": (state(tensor((2, 2), (2, 1), offset=1)), "tensor a"),
    "strides beyond the storage": (state(tensor((2, 2), (1 << 62, 1))), "tensor a"),
    "a number repeated for ever": (state(tensor((1 << 40,), (0,))), "tensor a"),
    "axes without end": (state(tensor((1,) * 100, (1,) * 100)), "tensor a"),
    "nothing, 2**80 times": (state(tensor((0, 1 << 80), (1, 1))), "tensor a"),
    "sizes that are nothing": (
        state(patched(tensor((2, 2), (2, 1)), b"(K\x02K\x02t", b"(NNt")),
        "tensor a",
    ),
    "a stack that is empty": (b"\x80\x02a.", "not a"),
    "a mark that is missing": (b"\x80\x02}u.", "not a"),
    "no end": (state(GOOD)[:-1], "not a"),
    "code": (state(b"cposix\nsystem\n" + text("touch it-ran") + b"\x85R"), "posix.system"),
    "code that is only named": (state(b"cposix\nsystem\n"), "posix.system"),
    "code in an attribute": (
        state(GOOD + b"}" + text("__class__") + b"cos\nsystem\nsb"),
        "os.system",
    ),
}


def npy(header: str | bytes, data: bytes = bytes(16), *, version: int = 1) -> bytes:
    """Return an npy file with HEADER as it is given."""
    raw = header.encode() if isinstance(header, str) else header
    length = struct.pack("<H" if version == 1 else "<I", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + length + raw + data


def described(shape: str, descr: str = "'<f4'", order: str = "False") -> str:
    """Return the text of an npy header."""
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"


# What is wrong -> the npy file.
ARRAYS: dict[str, bytes] = {
    "an open bracket": npy("(" * 60 + "\n"),
    "brackets without end": npy("[" * 9000 + "\n"),
    "signs without end": npy("-" * 9000 + "1\n"),
    "a header that is cut": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,"),
    "a header of 4 GB": npy(described("(2, 2)"), version=2)[:8] + b"\xff" * 4 + bytes(32),
    "a header that calls": npy("__import__('os').system('touch it-ran')\n"),
    "10**18 numbers": npy(described("(1000000000000000000,)")),
    "nothing, 10**30 times": npy(described("(0, 1000000000000000000000000000000)"), b""),
    "negative sizes": npy(described("(-2, -2)")),
    "sizes that are no numbers": npy(described("('a', 2)")),
    "sizes that are true": npy(described("(True, 4)")),
    "a hundred axes": npy(described("(" + "1, " * 99 + "4)")),
    "one size": npy(described("4")),
    "objects": npy(described("(2,)", "'|O'")),
    "a wide item": npy(described("(0,)", "'|V2147483647'"), b""),
    "a wide text": npy(described("(2,)", "'<U99999999999'")),
    "an item in an item": npy(described("(1,)", "[('a', '<f4', (1000000000, 1000000000))]")),
    "an unknown order": npy(described("(2, 2)", order="7")),
    "an unknown kind": npy(described("(2, 2)", "'<q17'")),
    "no utf-8": npy(b"\xff\xfe\x00\n"),
    "a number of 5,000 digits": npy(described(f"({'9' * 5000},)")),
}


def npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    """Write an archive of MEMBERS."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def saved(array: np.ndarray) -> bytes:
    """Return ARRAY as an npy file."""
    np.save(stream := io.BytesIO(), array)
    return stream.getvalue()


def with_size(path: Path, name: str, size: int) -> None:
    """Let the archive at PATH say that its member NAME has SIZE bytes, when unpacked."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
    old = struct.pack("<III", info.CRC, info.compress_size, info.file_size)
    new = struct.pack("<III", info.CRC, info.compress_size, size)
    path.write_bytes(patched(path.read_bytes(), old, new))


def swallow(path: Path, first: int = 0) -> None:
    """Let the directory of the archive at PATH take its second entry for a comment of the first."""
    with zipfile.ZipFile(path) as archive:
        one, two = archive.infolist()[first : first + 2]
        start = archive.start_dir
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02", start)
    entry = 46 + len(two.filename)
    assert data[at + 32 : at + 34] == b"\0\0"
    data[at + 32 : at + 34] = struct.pack("<H", entry)
    assert one.filename.encode() in data
    path.write_bytes(bytes(data))


def flip_within_largest(path: Path) -> None:
    """Flip a bit in the middle of the largest member of the archive at PATH."""
    with zipfile.ZipFile(path) as archive:
        largest = max(archive.infolist(), key=lambda info: info.file_size)
    begin = largest.header_offset + 30 + len(largest.filename)
    data = bytearray(path.read_bytes())
    data[begin + largest.compress_size // 2 + 64] ^= 4
    path.write_bytes(data)
