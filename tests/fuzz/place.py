"""The folder of one input: what lies in it before and after, byte for byte."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import xxhash

WORK = Path("work") / "here"  # ``..`` and ``../away`` lie within the input's folder
LARGE = 1 << 26  # bytes; nothing that is made here is near it
COMPILED = b"__pycache__"  # Python's own, beside each module of the user's that it imports


class Entry(NamedTuple):
    """What lies under a name: its kind and mode, and a hash of what it holds."""

    mode: int
    content: str


def furnish(root: Path, goods: Path, names: Iterable[str]) -> Path:
    """Make the folder ROOT of an input with copies of the goods NAMES; return where it is run."""
    folder = root / WORK
    for made in (folder, root / "home", root / "tmp", root / "work" / "away"):
        made.mkdir(parents=True)
    (root / "work" / "away" / "kept.txt").write_text("not yours")
    for name in names:
        source = goods / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True)
        else:
            shutil.copy2(source, folder / name)
    return folder


def surroundings(root: Path) -> dict[str, str]:
    """Return the environment in which everything that is written lies in ROOT."""
    home, temporary = str(root / "home"), str(root / "tmp")
    plots = str(root.parent / "matplotlib")  # makes its own settings wherever it runs first
    places = {"HOME": home, "TMPDIR": temporary, "XDG_CACHE_HOME": f"{home}/.cache"}
    return places | {"MPLCONFIGDIR": plots}


def snapshot(root: Path) -> dict[str, Entry]:
    """Return everything in ROOT by its path but compiled modules; links are not followed."""
    return dict(walk(os.fsencode(root), b""))


def walk(root: bytes, inner: bytes) -> Iterable[tuple[str, Entry]]:
    """Yield what lies in the folder INNER of ROOT, and below."""
    for item in os.scandir(b"/".join((root, inner)) if inner else root):
        if item.name == COMPILED:
            continue
        name = b"/".join((inner, item.name)) if inner else item.name
        mode = item.stat(follow_symlinks=False).st_mode
        yield os.fsdecode(name), Entry(mode, held(item.path, mode))
        if stat.S_ISDIR(mode):
            yield from walk(root, name)


def held(path: bytes, mode: int) -> str:
    """Return a hash of what the file at PATH holds, or where the link there leads."""
    if stat.S_ISLNK(mode):
        return str(Path(os.fsdecode(path)).readlink())
    if not stat.S_ISREG(mode):
        return ""
    with open(path, "rb") as file:  # noqa: PTH123  # a path of bytes
        return xxhash.xxh3_128_hexdigest(file.read(LARGE))


def changed(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[str]:
    """Return the paths that are not the same, there or gone."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def within(name: str, places: Iterable[str]) -> bool:
    """Say whether the path NAME is one of PLACES or lies in one."""
    return any(name == place or name.startswith(f"{place}/") for place in places)
