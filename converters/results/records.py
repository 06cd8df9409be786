"""The record of a result: which files Weighbridge wrote, so that ``--force`` replaces nothing else.

A directory carries its record inside, under ``files`` of ``weighbridge.json``; a file, a Core ML
package or a Core AI asset has it beside itself, in ``NAME.weighbridge.json``. Every file is listed with
its size and the xxh3 hash of its bytes, a large one with that of the hashes of its parts. Of a weights
file the header is hashed, and its tensors are held against the hashes that the conversion has recorded:
so such files are not read once more to be recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from ...errors import BadInputError, WeighbridgeError
from ..checkpoints.base import CHUNK
from ..checkpoints.formats.safetensors import Place, read_places
from ..checkpoints.workers import Workers
from ..documents import RECORD as RECORD_FILE
from ..documents import read_object

RECORD: Final = "weighbridge.json"
KINDS: Final = {
    "model": "a model",
    "adapter": "an adapter",
    "golden": "a golden",
    "run": "a training run",
    "package": "a Core ML package",
    "gguf": "a GGUF file",
    "onnx": "an ONNX file",
    "graph": "a folder with an ONNX file",
    "asset": "a Core AI asset",
    "map": "a map",
}
SINGLE: Final = frozenset({"gguf", "map", "onnx"})  # kinds that are one file
BESIDE: Final = SINGLE | {"package", "asset"}  # kinds whose record lies beside them
PART: Final = 1 << 28  # bytes of a large file that are hashed by one thread
IN_PARTS: Final = "xxh3/256M:"  # begins the hash of a larger file
GROWING: Final = frozenset({"run"})  # kinds that are written to after they appear
IGNORED: Final = frozenset({".DS_Store"})  # Finder's, made again wherever it looks


class Record(NamedTuple):
    """What is recorded of a result.

    Attributes:
        kind: a key of ``KINDS``.
        files: entry by path, relative to the result; a single file is ``.``.
        before: those of the result that this one was to replace when the run was killed.
        tensors: hash by name, ``xxh3:<hex>``, of the tensors in the weights files.
    """

    kind: str
    files: Mapping[str, Mapping[str, Any]]
    before: Mapping[str, Mapping[str, Any]]
    tensors: Mapping[str, str]


def place_of(target: Path, kind: str) -> Path:
    """Return where the record of TARGET lies.

    >>> place_of(Path("a/tuned.gguf"), "gguf").name, place_of(Path("a/tuned"), "model").name
    ('tuned.gguf.weighbridge.json', 'weighbridge.json')
    """
    return target.with_name(f"{target.name}.{RECORD}") if kind in BESIDE else target / RECORD


def rejected_of(target: Path, kind: str, more: str = "") -> Path:
    """Return where what was to be TARGET lies, rejected, with MORE in its name; what is told by its ending keeps that.

    >>> rejected_of(Path("a/tuned.onnx"), "onnx").name, rejected_of(Path("a/tuned-1.5"), "model").name
    ('tuned.rejected.onnx', 'tuned-1.5.rejected')
    """
    ending = target.suffix if kind in BESIDE else ""
    return target.with_name(f"{target.name.removesuffix(ending)}.rejected{more}{ending}")


def describe(item: Path, kind: str, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the content of the record of ITEM, with the facts that are in it already.

    BEFORE are the entries of the result that ITEM replaces.
    """
    from ... import __version__

    place = place_of(item, kind)
    facts = read_facts(place) or {"weighbridge": __version__}
    tensors = facts.get("tensors", {})
    parts = [it for it in below(item) if it != place and it.is_file() and not it.is_symlink()]
    files = {  # what lies deeper, such as a sentence-transformers head, may have tensors of like names
        path.relative_to(item).as_posix(): _entry(path, tensors if path.parent == item else {})
        for path in parts
    }
    replaced = {"before": dict(before)} if before else {}
    return {**facts, "kind": kind, "files": files, **replaced}


def write_record(item: Path, kind: str) -> None:
    """Write the record of ITEM, a result of KIND that lies in its place already."""
    place = place_of(item, kind)
    draft = place.with_name(f".{place.name}.new")
    draft.unlink(missing_ok=True)  # of a run that was killed: it is no file of the result
    draft.write_text(text_of(describe(item, kind)), encoding="utf-8")
    draft.replace(place)


def text_of(facts: Mapping[str, Any]) -> str:
    """Return FACTS as the text of a record."""
    return json.dumps(facts, indent=1, default=str) + "\n"


def below(item: Path) -> Iterator[Path]:
    """Yield ITEM if it is a file, else everything below it but folders that hold something."""
    if item.is_symlink() or not item.is_dir():
        yield item
        return
    for path in sorted(item.iterdir()):
        if path.is_symlink() or not path.is_dir():
            yield path
        elif any(path.iterdir()):
            yield from below(path)
        else:
            yield path


def record_of(target: Path, kind: str) -> Record | None:
    """Return the record of TARGET; ``None`` if there is none that can be read."""
    facts = read_facts(place_of(target, kind))
    if facts is None or not isinstance(facts.get("files"), dict):
        return None
    files, before = facts["files"], facts.get("before", {})
    tensors = facts.get("tensors", {})
    rows = [*files.values(), *before.values()] if isinstance(before, dict) else [None]
    if not all(isinstance(row, dict) for row in rows) or not isinstance(tensors, dict):
        return None
    return Record(str(facts.get("kind")), files, before, tensors)


def changed(path: Path, name: str, record: Record, *, contents: bool) -> str | None:
    """Say why the file at PATH is not the one that RECORD lists; ``None`` if it is."""
    known = [files[name] for files in (record.files, record.before) if name in files]
    if not known:
        return "not written by Weighbridge"
    same = any(_is(path, entry, record.tensors, contents=contents) for entry in known)
    return None if same else "changed since it was written"


def _is(
    path: Path, entry: Mapping[str, Any], tensors: Mapping[str, str], *, contents: bool
) -> bool:
    """Say whether the file at PATH is the one of ENTRY."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size != entry.get("size"):
        return False
    if not contents:
        return True
    if "header" not in entry:
        return _hash_as(path, str(entry.get("hash"))) == entry.get("hash")
    return _header_hash(path) == entry["header"] and has_tensors(path, tensors)


def has_tensors(path: Path, tensors: Mapping[str, str]) -> bool:
    """Say whether the tensors of the file at PATH are those with the hashes TENSORS."""
    try:
        places, _ = read_places(path)
        return all(_hash(path, place) == tensors.get(name) for name, place in places.items())
    except (OSError, WeighbridgeError):
        return False


def _entry(path: Path, tensors: Mapping[str, str]) -> dict[str, Any]:
    """Return what is recorded of the file at PATH."""
    size = path.stat().st_size
    if path.suffix == ".safetensors" and tensors and read_places(path)[0].keys() <= tensors.keys():
        return {"size": size, "header": _header_hash(path)}
    return {"size": size, "hash": _hash_in_parts(path) if size > PART else _hash(path)}


def _hash_as(path: Path, known: str) -> str:
    """Return the hash of the file at PATH, made as KNOWN was."""
    return _hash_in_parts(path) if known.startswith(IN_PARTS) else _hash(path)


def _hash_in_parts(path: Path) -> str:
    """Return the hash of the hashes of each ``PART`` bytes of the file at PATH; several at a time."""
    found: dict[int, str] = {}

    def hash_part(begin: int) -> None:
        found[begin] = _hash_range(path, begin, PART)

    Workers().each(range(0, path.stat().st_size, PART), hash_part)
    return IN_PARTS + xxhash.xxh3_64_hexdigest("".join(found[it] for it in sorted(found)).encode())


def _header_hash(path: Path) -> str:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return f"xxh3:{xxhash.xxh3_64_hexdigest(file.read(min(length, path.stat().st_size)))}"


def _hash(path: Path, place: Place | None = None) -> str:
    """Return the hash of the file at PATH, or of the bytes of PLACE in it."""
    begin, size = (place.begin, place.header.nbytes) if place else (0, path.stat().st_size)
    return f"xxh3:{_hash_range(path, begin, size)}"


def _hash_range(path: Path, begin: int, size: int) -> str:
    """Return the hash of SIZE bytes of the file at PATH from BEGIN on, or of less if it ends before."""
    digest, left = xxhash.xxh3_64(), size
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while left > 0 and (piece := file.read(min(CHUNK, left))):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def read_facts(place: Path) -> dict[str, Any] | None:
    """Return the JSON object at PLACE; ``None`` if there is none."""
    try:
        facts = read_object(place, RECORD_FILE)
    except (OSError, BadInputError):
        return None
    return facts if "weighbridge" in facts else None
