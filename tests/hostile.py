"""Files made to harm: small generators, one a case, used by tests through the verbs."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import resource
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from weighbridge.cli import main

MEMORY = 1 << 30  # bytes that a refusal may add


@contextlib.contextmanager
def little_memory():
    """Let the process have ``MEMORY`` more bytes than it has now, where the system can."""
    if sys.platform != "linux":
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def refused(*arguments) -> str:
    """Run the verb; return the one line that it refuses with."""
    with little_memory():
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == 3, result.output + repr(result.exception)
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1, result.output
    return result.output


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
    "a text without end": (state(b"\x8d" + struct.pack("<Q", 1 << 40)), "not a"),
    "a text of 4 GB": (state(b"X\xff\xff\xff\xff"), "not a"),
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


def gguf_text(value: str | bytes) -> bytes:
    """Return VALUE as GGUF stores texts."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def gguf_field(name: str | bytes, kind: int, value: bytes) -> bytes:
    """Return metadata NAME of the type KIND."""
    return gguf_text(name) + struct.pack("<I", kind) + value


def gguf_tensor(name="token_embd.weight", sizes=(4, 2), kind=0, offset=0, axes=None) -> bytes:
    """Return what a GGUF file says of a tensor."""
    count = struct.pack("<I", len(sizes) if axes is None else axes)
    head = gguf_text(name) + count + struct.pack(f"<{len(sizes)}Q", *sizes)
    return head + struct.pack("<IQ", kind, offset)


U32, I32, TEXT, LIST = 4, 5, 8, 9
LLAMA = gguf_field("general.architecture", TEXT, gguf_text("llama"))
BLOCKS = gguf_field("llama.block_count", U32, struct.pack("<I", 1))


def gguf_file(*fields, tensors=(), counts=None, start=b"GGUF\3\0\0\0", size=96) -> bytes:
    """Return a GGUF file of these FIELDS and TENSORS, with SIZE bytes of numbers."""
    tensors = tensors or (gguf_tensor(),)
    fields = fields or (LLAMA, BLOCKS)
    head = start + struct.pack("<QQ", *(counts or (len(tensors), len(fields))))
    head += b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(size)


def _counted(name: str, kind: int, value: bytes) -> bytes:
    return gguf_file(LLAMA, gguf_field(name, kind, value))


# What is wrong -> the GGUF file.
GGUF: dict[str, bytes] = {
    "tensors without end": gguf_file(counts=(1 << 60, 2)),
    "tensors, a million": gguf_file(counts=(1_000_000, 2)),
    "metadata without end": gguf_file(counts=(1, 1 << 60)),
    "a name without end": gguf_file(struct.pack("<Q", 1 << 60) + b"general"),
    "a text without end": gguf_file(gguf_field("a", TEXT, struct.pack("<Q", 1 << 62))),
    "a list without end": gguf_file(gguf_field("a", LIST, struct.pack("<IQ", 0, 1 << 61))),
    "a list that overflows": gguf_file(gguf_field("a", LIST, struct.pack("<IQ", 10, 1 << 61))),
    "texts without end": gguf_file(gguf_field("a", LIST, struct.pack("<IQ", TEXT, 1 << 40))),
    "lists in lists": gguf_file(
        gguf_field("a", LIST, struct.pack("<IQ", LIST, 1) * 2000 + struct.pack("<IQ", 0, 0))
    ),
    "an unknown kind of metadata": gguf_file(gguf_field("a", 99, bytes(8))),
    "metadata twice": gguf_file(LLAMA, LLAMA),
    "a name that is no text": gguf_file(gguf_field(b"\xff\xfe", U32, bytes(4))),
    "axes without end": gguf_file(tensors=(gguf_tensor(axes=2**32 - 1),)),
    "no axes": gguf_file(tensors=(gguf_tensor(sizes=()),)),
    "a size without end": gguf_file(tensors=(gguf_tensor(sizes=(4, 1 << 63)),)),
    "sizes that overflow": gguf_file(tensors=(gguf_tensor(sizes=(1 << 32, 1 << 32)),)),
    "a size of nothing": gguf_file(tensors=(gguf_tensor(sizes=(4, 0)),)),
    "rows of half a block": gguf_file(tensors=(gguf_tensor(kind=8),)),
    "an unknown type": gguf_file(tensors=(gguf_tensor(kind=77),)),
    "a place beyond the end": gguf_file(tensors=(gguf_tensor(offset=1 << 62),)),
    "a place within another": gguf_file(tensors=(gguf_tensor(), gguf_tensor("output.weight"))),
    "a tensor twice": gguf_file(tensors=(gguf_tensor(), gguf_tensor(offset=32))),
    "a cut": gguf_file(size=16),
    "another version": gguf_file(start=b"GGUF\x07\0\0\0"),
    "the other order of bytes": gguf_file(start=b"GGUF\0\0\0\3"),
    "another file": b"PK" + gguf_file(),
    "an alignment of 2 GB": _counted("general.alignment", U32, struct.pack("<I", 1 << 31)),
    "an alignment of 0": _counted("general.alignment", U32, bytes(4)),
    "an alignment of 24": _counted("general.alignment", U32, struct.pack("<I", 24)),
    "an alignment that is a text": _counted("general.alignment", TEXT, gguf_text("32")),
    "2**31 blocks": _counted("llama.block_count", U32, struct.pack("<I", 1 << 31)),
    "65,537 blocks": _counted("llama.block_count", U32, struct.pack("<I", 65537)),
    "fewer blocks than none": _counted("llama.block_count", I32, struct.pack("<i", -1)),
    "blocks that are a text": _counted("llama.block_count", TEXT, gguf_text("many")),
    "parts that are a text": _counted("split.count", TEXT, gguf_text("many")),
    "nothing": b"",
}
