"""Spoil files by what they are: headers, zip members, pickle opcodes, GGUF fields, protobuf messages."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from . import noise as raw
from .drawn import Chance, draw
from .trees import Raw, spoiled_tree, written

FIXED = {
    0: 1,
    1: 1,
    2: 2,
    3: 2,
    4: 4,
    5: 4,
    6: 4,
    7: 1,
    10: 8,
    11: 8,
    12: 8,
}  # sizes of GGUF values


def json_pool(chance: Chance) -> tuple[Any, ...]:
    """Return a few of the JSON values that hypothesis draws."""
    return tuple(draw("json", chance) for _ in range(3))


def spoil_json(chance: Chance, path: Path) -> str:
    """Spoil the JSON file PATH as a tree, or as bytes."""
    data = path.read_bytes()
    if chance.random() < 0.2:
        path.write_bytes(raw.spoiled(chance, data))
        return f"{path.name}: bytes"
    text = written(spoiled_tree(chance, json.loads(data), json_pool(chance)))
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    return f"{path.name}: tree"


def spoil_safetensors(chance: Chance, path: Path) -> str:
    """Spoil a safetensors file: its header as a tree, or bytes anywhere."""
    data = path.read_bytes()
    if chance.random() < 0.45:
        (size,) = struct.unpack("<Q", data[:8])
        fields = [0, *(8 + m.start() for m in re.finditer(rb"\d+", data[8 : 8 + size]))]
        path.write_bytes(raw.spoiled(chance, data, fields))
        return f"{path.name}: bytes"
    path.write_bytes(with_header(chance, data))
    return f"{path.name}: header"


def with_header(chance: Chance, data: bytes) -> bytes:
    """Return the safetensors file DATA with its header spoiled as a tree."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    if chance.random() < 0.5:
        entry(chance, header, len(data) - 8 - size)
        text = written(header)
    else:
        text = written(spoiled_tree(chance, header, json_pool(chance)))
    head = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(head)) + head + data[8 + size :]


def entry(chance: Chance, header: dict[str, Any], end: int) -> None:
    """Change one tensor of HEADER to something that could be meant."""
    name = chance.choice([key for key in header if key != "__metadata__"])
    it = header[name]
    begin, stop = it["data_offsets"]
    options = (
        {
            "dtype": chance.choice(
                ("BF16", "F16", "I32", "F64", "BOOL", "F8_E4M3", "F4", "f32", "U64")
            )
        },
        {"shape": [*it["shape"], 1]},
        {"shape": it["shape"][::-1]},
        {"shape": [0], "data_offsets": [begin, begin]},
        {"shape": [-size for size in it["shape"]]},
        {"shape": [2**33, 2**31]},
        {"shape": [float(size) for size in it["shape"]]},
        {"data_offsets": [begin + 4, stop + 4]},
        {"data_offsets": [begin, stop + chance.choice((1, 4, end, 2**63, 2**64))]},
        {"data_offsets": [stop, begin]},
        {"data_offsets": [0, stop - begin]},
        {"data_offsets": [end, end + stop - begin]},
        {"data_offsets": [-4, stop - begin - 4]},
        {"shape": [1] * chance.choice((33, 65, 5_000)) + it["shape"]},
        {"more": 1},
    )
    header[name] = {**it, **chance.choice(options)}
    if chance.random() < 0.15:
        header[chance.choice(("", name + "\x00", "../" + name, "x" * 3_000, "__metadata__"))] = it
    if chance.random() < 0.1:
        header[Raw(json.dumps(name))] = {**it, "dtype": "I32"}


def spoil_zip(chance: Chance, path: Path) -> str:
    """Spoil a zip archive: its directories and headers, a member, or bytes anywhere."""
    data, what = path.read_bytes(), chance.random()
    if what < 0.45:
        path.write_bytes(raw.spoiled(chance, data, zip_fields(data)))
        return f"{path.name}: bytes"
    members = unzipped(data)
    if what < 0.8:
        name = chance.choice(list(members))
        members[name] = member(chance, name, members[name])
    else:
        rearrange(chance, members)
    path.write_bytes(zipped(members, chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))))
    return f"{path.name}: members"


def zip_fields(data: bytes) -> list[int]:
    """Return where the fields of the headers of the archive DATA begin."""
    heads = {
        b"PK\x03\x04": (4, 6, 8, 14, 18, 22, 26, 28),
        b"PK\x01\x02": (8, 10, 16, 20, 24, 28, 42),
    }
    heads[b"PK\x05\x06"] = (8, 10, 12, 16, 20)
    return [
        found.start() + offset
        for magic, offsets in heads.items()
        for found in re.finditer(re.escape(magic), data)
        for offset in offsets
    ]


def unzipped(data: bytes) -> dict[str, bytes]:
    """Return the members of an archive."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def zipped(members: dict[str, bytes], packing: int) -> bytes:
    """Return an archive of MEMBERS; a name that ends in ``//2`` stands in it a second time."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name.removesuffix("//2")), content, packing)
    return made.getvalue()


def member(chance: Chance, name: str, content: bytes) -> bytes:
    """Return CONTENT of the member NAME spoiled."""
    if name.endswith(".npy") and chance.random() < 0.7:
        return npy(chance, content)
    if name.endswith(".pkl") and chance.random() < 0.8:
        return spoiled_pickle(chance, content)
    return raw.spoiled(chance, content)


def npy(chance: Chance, content: bytes) -> bytes:
    """Return an array file with another header, or none."""
    (size,) = struct.unpack("<H", content[8:10])
    old = content[10 : 10 + size].decode("latin1").strip()
    head = draw("header", chance)
    if chance.random() < 0.5:  # one thing wrong
        part = chance.choice((r"'descr': '[^']*'", r"'shape': \([^)]*\)", r"'fortran_order': \w+"))
        found = re.search(part, head)
        head = re.sub(part, lambda _: found[0], old) if found else head
    version = chance.choice(
        (b"\x01\x00", b"\x01\x00", b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00")
    )
    encoded = head.encode("utf-8") + chance.choice((b"\n", b""))
    length = len(encoded) if chance.random() < 0.85 else chance.choice(raw.EDGES)
    form, most = ("<H", 1 << 16) if version[0] == 1 else ("<I", 1 << 32)
    begin = b"\x93NUMPY" + version + struct.pack(form, length % most)
    return begin + encoded + content[10 + size :]


def rearrange(chance: Chance, members: dict[str, bytes]) -> None:
    """Rename, repeat, lose or add members."""
    name = chance.choice(list(members))
    what = chance.random()
    if what < 0.25:
        del members[name]
    elif what < 0.5:
        members[name + "//2"] = chance.choice(list(members.values()))
    elif what < 0.8:
        new = ("../" + name, "/" + name, name + "x", "", "x" * 3_000, name.upper(), "a\x00b.npy")
        members[chance.choice(new)] = members.pop(name)
    else:
        members[chance.choice(("note.txt", "x.npy", ".npy", "dir/", "version"))] = b"note"


class Exploit:
    """Runs code when unpickled: writes a file that a snapshot shows."""

    def __reduce__(self):
        return open, ("pwned", "w")


def spoiled_pickle(chance: Chance, content: bytes) -> bytes:
    """Return a pickle with opcodes or their arguments changed."""
    if chance.random() < 0.1:
        return pickle.dumps({"weight": Exploit()}, protocol=chance.choice((0, 2, 4)))
    try:
        starts = [position for _, _, position in pickletools.genops(content)]
    except ValueError:
        starts = []
    made = bytearray(content)
    if not starts:
        return raw.spoiled(chance, content)
    what, at = chance.random(), chance.choice(starts)
    if what < 0.35:
        made[at] = ord(
            chance.choice("(.0123456IJKLMNRSTUVX]abcdeghijloqrstu})\x80\x81\x85\x86\x94")
        )
    elif what < 0.6:
        new = chance.choice(
            (b"cos\nsystem\n", b"cbuiltins\neval\n", b"(" * 5_000, b"N", b"]", b"}")
        )
        made[at:at] = new
    elif what < 0.75:
        after = min((it for it in starts if it > at), default=len(made))
        del made[at:after]
    else:
        return raw.spoiled(chance, content, [it + 1 for it in starts])
    return bytes(made)


def spoil_legacy(chance: Chance, path: Path) -> str:
    """Spoil what ``torch.save`` wrote before it wrote zip archives."""
    data = path.read_bytes()
    made = spoiled_pickle(chance, data) if chance.random() < 0.4 else raw.spoiled(chance, data)
    path.write_bytes(made)
    return f"{path.name}: pickle"


def spoil_gguf(chance: Chance, path: Path) -> str:
    """Spoil a GGUF file, its counts, lengths and types above all."""
    data = path.read_bytes()
    fields = list(gguf_fields(data))
    path.write_bytes(raw.spoiled(chance, data, fields if chance.random() < 0.8 else ()))
    return f"{path.name}: fields"


def gguf_fields(data: bytes) -> Iterator[int]:
    """Yield where every number of the header of the GGUF file DATA begins."""
    tensors, values = struct.unpack("<QQ", data[8:24])
    yield from (4, 8, 16)
    at = 24
    for _ in range(values):
        yield at
        at += 8 + number(data, at, 8)
        yield at
        yield from gguf_value(data, at + 4, number(data, at, 4))
        at = after_value(data, at + 4, number(data, at, 4))
    for _ in range(tensors):
        yield at
        at += 8 + number(data, at, 8)
        sizes = number(data, at, 4)
        yield from (at, *(at + 4 + 8 * axis for axis in range(sizes + 1)), at + 8 + 8 * sizes)
        at += 16 + 8 * sizes


def number(data: bytes, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "little")


def gguf_value(data: bytes, at: int, kind: int) -> Iterator[int]:
    """Yield where the numbers of a value begin; of an array its head and its first items."""
    yield at
    if kind == 9:
        yield from (at + 4, at + 12, at + 20)


def after_value(data: bytes, at: int, kind: int) -> int:
    """Return where the value of KIND at AT ends."""
    if kind == 8:
        return at + 8 + number(data, at, 8)
    if kind != 9:
        return at + FIXED[kind]
    inner, count, at = number(data, at, 4), number(data, at + 4, 8), at + 12
    for _ in range(count):
        at = after_value(data, at, inner)
    return at


def spoil_protobuf(chance: Chance, path: Path, message: Any) -> str:
    """Spoil the file PATH, a MESSAGE: a field of any depth, or bytes."""
    data = path.read_bytes()
    if chance.random() < 0.4:
        path.write_bytes(raw.spoiled(chance, data))
        return f"{path.name}: bytes"
    message.ParseFromString(data)
    for _ in range(chance.choice((1, 1, 2))):
        spoil_field(chance, *chance.choice(list(fields_of(message))))
    path.write_bytes(message.SerializePartialToString())
    return f"{path.name}: message"


def fields_of(message: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every field that is set anywhere in MESSAGE, with the message that it is a field of."""
    for field, value in message.ListFields():
        yield message, field
        entry = field.message_type and field.message_type.GetOptions().map_entry
        if field.type != field.TYPE_MESSAGE:
            continue
        inner = list(value.values()) if entry else value if repeated(field) else [value]
        for it in inner:
            if hasattr(it, "ListFields"):
                yield from fields_of(it)


def repeated(field: Any) -> bool:
    """Say whether FIELD holds several values."""
    return bool(getattr(field, "is_repeated", None) or getattr(field, "label", 0) == 3)


def spoil_field(chance: Chance, message: Any, field: Any) -> None:
    """Clear FIELD of MESSAGE, repeat its items, or write something odd."""
    values = {field.TYPE_STRING: ("", "x" * 3_000, "../away/kept.txt", "é", "input_ids", "\x00")}
    values[field.TYPE_BYTES] = (b"", b"x" * 300)
    held = getattr(message, field.name)
    if chance.random() < 0.3 or (field.type == field.TYPE_MESSAGE and not repeated(field)):
        message.ClearField(field.name)
    elif repeated(field) and hasattr(held, "append"):
        del held[chance.randrange(len(held)) :]
    elif not repeated(field):
        odd = values.get(field.type, (0, 1, -1, 2, 5, 10, 1000, 2**31 - 1, 2**62, 2**63 - 1, 0.5))
        try:
            setattr(message, field.name, chance.choice(odd))
        except (ValueError, TypeError):
            message.ClearField(field.name)
