"""Folders that are not ours, or not ours alone: what ``--force`` must not take a byte of."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from weighbridge.converters.results.records import KINDS, rejected_of
from weighbridge.tests.faults.mounts import mount

THESIS: Final = "years of work\n"


class Pen(NamedTuple):
    """Where an animal is put.

    Attributes:
        folder: everything in it is the user's, but a result of ours at the target.
        name: of the target.
        ours: puts an older result of the same verb at a path in the folder.
        others: puts a result of another verb there.
        sources: models and adapters that others made.
    """

    folder: Path
    name: str
    ours: Callable[[], None]
    others: Callable[[str, Path], None]
    sources: Path

    @property
    def target(self) -> Path:
        """The path of the target."""
        return self.folder / self.name

    def write(self, *names: str) -> Path:
        """Write a text of the user's to each of NAMES, relative to the target; return the target."""
        for name in names:
            path = self.target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(THESIS + name)
        return self.target

    def inside(self) -> list[Path]:
        """Return the files of our result, the target itself where it is one."""
        found = [path for path in sorted(self.target.rglob("*")) if path.is_file()]
        return found or [self.target]


class Asked(NamedTuple):
    """What the command is given: the target as typed, and where and as whom."""

    target: str
    more: dict[str, Any] = {}  # noqa: RUF012  # nobody writes to it


Animal = Callable[[Pen], "Path | Asked"]
ANIMALS: dict[str, Animal] = {}
# The target may be replaced: there is nothing of the user's in it. All around it stays.
REPLACEABLE: Final = frozenset(
    {
        "a file of ours is gone",
        "a rejected result of the user's",
        "an empty folder",
        "another Unicode form",
        "another case",
        "hard links to ours",
        "the Finder's file",
    }
)


def animal(name: str) -> Callable[[Animal], Animal]:
    """Register a kind of folder."""

    def registered(make: Animal) -> Animal:
        ANIMALS[name] = make
        return make

    return registered


def everything(folder: Path) -> dict[str, str]:
    """Return path -> kind, mode and content of everything in FOLDER; nothing is followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        if path.is_symlink():
            what = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            what = hashlib.sha256(path.read_bytes()).hexdigest()
        else:
            what = ""
        found[str(path.relative_to(folder))] = f"{stat.filemode(status.st_mode)} {what}"
    return found


def _texts(*names: str) -> Animal:
    return lambda pen: pen.write(*names)


def _spoiled(spoil: Callable[[Pen], Any]) -> Animal:
    """Return our own result after somebody's work on it."""

    def make(pen: Pen) -> Path:
        pen.ours()
        spoil(pen)
        return pen.target

    return make


def _copied(name: str) -> Animal:
    """Return what others wrote, as it is among the sources."""

    def make(pen: Pen) -> Path:
        there = pen.sources / name
        (shutil.copytree if there.is_dir() else shutil.copy)(there, pen.target)
        return pen.target

    return make


def _other(command: str) -> Animal:
    """Return a result of ours that is of another kind."""

    def make(pen: Pen) -> Path:
        pen.others(command, pen.target)
        return pen.target

    return make


ANIMALS |= {
    "a thesis": _texts("thesis.tex", "figures/a.png"),
    "a git repository": _texts(".git/HEAD", ".git/objects/ab/cd", "main.py"),
    "hidden files": _texts(".env", ".ssh/id"),
    "odd names": _texts("a\nb", "x" * 250, " ", "-rf", "ünï"),
    "several models": _texts("a/model.safetensors", "a/config.json", "b/model.safetensors"),
    "a model from the hub": _copied("llama"),
    "somebody's adapter": _copied("peft"),
    "somebody's GGUF file": _copied("llama.gguf"),
    "somebody's MLX model": _copied("q4"),
    "a golden of ours": _other("record"),
    "an adapter of ours": _other("mlx-to-peft"),
    "a map of ours": _other("infer"),
    "a GGUF file of ours": _other("gguf"),
    "a model of ours": _other("torch-to-mlx"),
    "a package of ours": _other("coreml"),
    "an asset of ours": _other("coreai"),
    "a run of ours": _other("train-weights"),
}


@animal("a package of others")
def a_package(pen: Pen) -> Path:
    return pen.write("Manifest.json", "Data/com.apple.CoreML/model.mlmodel")


@animal("a cache of the hub")
def hub_cache(pen: Pen) -> Path:
    pen.write("blobs/0a1b", "refs/main")
    (pen.target / "snapshots" / "main").mkdir(parents=True)
    (pen.target / "snapshots" / "main" / "config.json").symlink_to("../../blobs/0a1b")
    return pen.target


def _beside(pen: Pen) -> Path:
    return pen.folder / f"{pen.name}.weighbridge.json"


def _add(pen: Pen) -> None:
    if pen.target.is_dir():
        pen.write("notes.txt")
    else:
        pen.target.write_bytes(pen.target.read_bytes() + b"# mine\n")


def _edit(pen: Pen) -> None:
    path = pen.inside()[-1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _rename(pen: Pen) -> None:
    path = pen.inside()[0]
    if path == pen.target:
        path.write_text(THESIS)
    else:
        path.rename(path.with_name("mine.bin"))


def _link_inside(pen: Pen) -> None:
    (pen.folder / "elsewhere").mkdir()
    (pen.folder / "elsewhere" / "thesis.tex").write_text(THESIS)
    if pen.target.is_dir():
        (pen.target / "linked").symlink_to(pen.folder / "elsewhere")
    else:
        pen.target.unlink()
        pen.target.symlink_to("elsewhere/thesis.tex")


def _forget(pen: Pen) -> None:
    record = _beside(pen) if _beside(pen).exists() else pen.target / "weighbridge.json"
    record.write_text("{")
    _add(pen)


def _empty_folder_inside(pen: Pen) -> None:
    if pen.target.is_dir():
        (pen.target / "notes").mkdir()
    else:
        _edit(pen)


def _pipe(pen: Pen) -> None:
    if pen.target.is_file():
        pen.target.unlink()
        os.mkfifo(pen.target)
    else:
        os.mkfifo(pen.target / "pipe")


def _locked(pen: Pen) -> None:
    _add(pen)
    pen.inside()[-1].chmod(0)


ANIMALS |= {
    "ours with a file added": _spoiled(_add),
    "ours with a bit edited": _spoiled(_edit),
    "ours with a file renamed": _spoiled(_rename),
    "ours with a link in it": _spoiled(_link_inside),
    "ours with a damaged record": _spoiled(_forget),
    "ours with an empty folder in it": _spoiled(_empty_folder_inside),
    "ours with a pipe in it": _spoiled(_pipe),
    "ours with a file nobody may read": _spoiled(_locked),
}


@animal("ours with a socket in it")
def a_socket(pen: Pen) -> Path:
    pen.ours()
    if not pen.target.is_dir():
        pen.target.unlink()
    place = pen.target / "s" if pen.target.is_dir() else pen.target
    before = Path.cwd()
    os.chdir(place.parent)  # the name of a socket has at most a hundred bytes
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(place.name)
    os.chdir(before)
    return pen.target


@animal("a file of ours is gone")
def gone(pen: Pen) -> Path:
    pen.ours()
    if pen.target.is_dir():
        pen.inside()[0].unlink()
    return pen.target


@animal("hard links to ours")
def hard_links(pen: Pen) -> Path:
    pen.ours()
    (pen.folder / "kept").mkdir()
    for number, path in enumerate(pen.inside()):
        os.link(path, pen.folder / "kept" / str(number))
    return pen.target


@animal("the Finder's file")
def finder(pen: Pen) -> Path:
    pen.ours()
    if pen.target.is_dir():
        (pen.target / ".DS_Store").write_bytes(b"Bud1")
    return pen.target


@animal("a link to a folder")
def link_to_folder(pen: Pen) -> Path:
    (pen.folder / "real").mkdir()
    (pen.folder / "real" / "thesis.tex").write_text(THESIS)
    pen.target.symlink_to("real")
    return pen.target


@animal("a link to ours")
def link_to_ours(pen: Pen) -> Path:
    pen.ours()
    pen.target.rename(pen.folder / "real")
    pen.target.symlink_to("real")
    return pen.target


@animal("a link to nowhere")
def dangling(pen: Pen) -> Path:
    pen.target.symlink_to("nowhere")
    return pen.target


@animal("an empty folder")
def empty(pen: Pen) -> Path:
    pen.target.mkdir()
    return pen.target


@animal("a text file")
def a_file(pen: Pen) -> Path:
    pen.target.write_text(THESIS)
    return pen.target


@animal("somebody's home")
def home(pen: Pen) -> Asked:
    return Asked(str(pen.write("thesis.tex")), {"variables": {"HOME": str(pen.target)}})


@animal("what a home lies in")
def above_home(pen: Pen) -> Asked:
    pen.write("me/thesis.tex")
    return Asked(str(pen.target), {"variables": {"HOME": str(pen.target / "me")}})


@animal("the working directory")
def here(pen: Pen) -> Asked:
    return Asked(".", {"cwd": str(pen.write("thesis.tex"))})


@animal("what the working directory lies in")
def above(pen: Pen) -> Asked:
    pen.write("deep/thesis.tex")
    return Asked("..", {"cwd": str(pen.target / "deep")})


@animal("ours as the working directory")
def here_ours(pen: Pen) -> Asked:
    pen.ours()
    if not pen.target.is_dir():
        return Asked(".", {"cwd": str(pen.folder)})
    return Asked(str(pen.target), {"cwd": str(pen.target)})


@animal("the root")
def root(pen: Pen) -> Asked:
    return Asked("/")


@animal("a mounted disk")
def a_mount(pen: Pen) -> Path:
    pen.target.mkdir()
    mount(pen.target, "size=64k")  # where that is not allowed it is a thesis like any other
    return pen.write("thesis.tex")


@animal("a slash at the end")
def slash(pen: Pen) -> Asked:
    return Asked(f"{pen.write('thesis.tex')}/")


@animal("dots in the path")
def dots(pen: Pen) -> Asked:
    pen.write("thesis.tex")
    (pen.folder / "x").mkdir()
    return Asked(f"{pen.folder}/x/../{pen.name}")


@animal("below a link")
def below_link(pen: Pen) -> Path:
    pen.write("thesis.tex")
    (pen.folder / "way").symlink_to(pen.folder)
    return pen.folder / "way" / pen.name


@animal("below a file")
def below_file(pen: Pen) -> Path:
    (pen.folder / "file").write_text(THESIS)
    return pen.folder / "file" / pen.name


@animal("a record copied into a thesis")
def forged(pen: Pen) -> Path:
    pen.ours()
    record = _beside(pen) if _beside(pen).exists() else pen.target / "weighbridge.json"
    text = record.read_text()
    shutil.rmtree(pen.target) if pen.target.is_dir() else pen.target.unlink()
    pen.write("thesis.tex")
    record.write_text(text)
    return pen.target


@animal("a record that lists the thesis")
def listed(pen: Pen) -> Path:
    pen.write("thesis.tex")
    files = {"thesis.tex": {"size": 1, "hash": "xxh3:0"}, "../thesis.txt": {"size": 1}}
    facts = {"weighbridge": "0.2.0", "kind": "model", "files": files}
    for place in (_beside(pen), pen.target / "weighbridge.json"):
        place.write_text(json.dumps(facts))
    return pen.target


@animal("a record's name taken")
def taken(pen: Pen) -> Path:
    (pen.folder / f"{pen.name}.weighbridge.json").write_text(THESIS)
    return pen.write("thesis.tex")


@animal("a rejected result of the user's")
def rejected(pen: Pen) -> Path:
    pen.ours()
    for place in {rejected_of(pen.target, kind) for kind in KINDS}:
        place.mkdir()
        (place / "thesis.tex").write_text(THESIS)
    return pen.target


@animal("a staging folder of the user's")
def staging(pen: Pen) -> Path:
    (pen.folder / f".{pen.name}.staging" / "content").mkdir(parents=True)
    (pen.folder / f".{pen.name}.staging" / "content" / "thesis.tex").write_text(THESIS)
    (pen.folder / f".{pen.name}.staging" / "replaced").write_text(THESIS)
    return pen.target


@animal("a file with the name of the staging folder")
def staging_file(pen: Pen) -> Path:
    (pen.folder / f".{pen.name}.staging").write_text(THESIS)
    return pen.target


@animal("a staging folder that is a link")
def staging_link(pen: Pen) -> Path:
    (pen.folder / "real").mkdir()
    (pen.folder / "real" / "thesis.tex").write_text(THESIS)
    (pen.folder / f".{pen.name}.staging").symlink_to("real")
    return pen.target


@animal("another case")
def another_case(pen: Pen) -> Path:
    other = pen.folder / pen.name.swapcase()
    other.mkdir()
    (other / "thesis.tex").write_text(THESIS)
    return pen.target


@animal("another Unicode form")
def another_form(pen: Pen) -> Path:
    (pen.folder / f"e\u0301{pen.name}").mkdir()
    (pen.folder / f"e\u0301{pen.name}" / "thesis.tex").write_text(THESIS)
    return pen.folder / f"\u00e9{pen.name}"
