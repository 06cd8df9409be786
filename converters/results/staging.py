"""A target appears whole or not at all: it is built beside its place and moved there at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from ...errors import TargetExistsError, WeighbridgeError
from ..common.system import exchange, writing
from .locks import lock
from .records import (
    BESIDE,
    GROWING,
    RECORD,
    below,
    describe,
    place_of,
    record_of,
    rejected_of,
    text_of,
)
from .sources import Sources
from .targets import absolute, require_replaceable, require_target, staging_of

NOTHING_READ: Final = Sources()
_KEY: Final = "key"
_OLD: Final = "replaced"
_CONTENT: Final = "content"
_DRAFT: Final = "record"
_OWN: Final = (_DRAFT, _OLD, _CONTENT, _KEY)  # in the order in which they go


class Staging:
    """Build the result TARGET in a hidden sibling folder; a context manager.

    Leaving the block without ``publish`` or ``reject`` removes what was built, and the folders that
    were made for it. Only a killed process or a power loss leaves it behind; the next run with the
    same KEY finds it in ``folder``, one with another key removes it.

    Attributes:
        folder: where to write.
        item: what is published: the folder itself, or what has the target's name in it where KIND
            is a single file or a package.
    """

    def __init__(
        self,
        target: Path,
        *,
        kind: str = "model",
        force: bool = False,
        key: str = "",
        sources: Sources = NOTHING_READ,
    ) -> None:
        """Prepare to write TARGET, a result of KIND (a key of ``records.KINDS``), made from SOURCES.

        Raises:
            TargetExistsError: something is there that FORCE, or its absence, protects.
            WeighbridgeError: nothing can be written there.
        """
        self.target = absolute(target)
        self.kind = kind
        self.force = force
        self.key = key
        self.sources = sources
        require_target(self.target, kind, force=force, contents=True)
        self._seen = _stamps(self.target)
        self._root = staging_of(self.target)
        self.folder = self._root / _CONTENT
        self.item = self.folder / self.target.name if kind in BESIDE else self.folder
        self._made: list[Path] = []
        self._lock = -1
        self._ours = False

    def __enter__(self) -> Self:
        with writing(self.target):
            self._made = _make_parents(self.target.parent)
            try:
                self._lock = self._locked()
                self._recover()
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not published, and let the next run in.

        Raises:
            BadInputError: the block failed, and a source has changed, which is why.
        """
        self._leave()
        if isinstance(error, Exception):
            self.sources.require_unchanged()

    def _leave(self) -> None:
        try:
            if self._ours:
                for name in _OWN:
                    _remove(self._root / name)
            if self._lock >= 0:
                with suppress(OSError):  # it holds what somebody else put there
                    self._root.rmdir()
        finally:
            if self._lock >= 0:
                os.close(self._lock)
            for folder in reversed(self._made):
                with suppress(OSError):  # it holds the result, or what somebody else put there
                    folder.rmdir()

    def note(self, facts: Mapping[str, Any]) -> None:
        """Put FACTS into the record of the result, whose files are added when it is published."""
        with writing(self.target):
            place_of(self.item, self.kind).write_text(text_of(facts), encoding="utf-8")

    def publish(self) -> Path:
        """Move the result to the target in one step, with its record; return the target.

        Raises:
            TargetExistsError: the target has appeared or changed meanwhile.
            BadInputError: a source has changed meanwhile.
        """
        self.sources.require_unchanged()
        if os.path.lexists(self.target):
            require_replaceable(self.target, self.kind, force=self.force, contents=False)
            if _stamps(self.target) != self._seen:
                raise TargetExistsError(f"{self.target} was changed during the run and is kept")
        with writing(self.target):
            self._forget_key()
            self._move(self.target)
        return self.target

    def reject(self) -> Path:
        """Move the result to ``TARGET.rejected``, its ending last, to be looked at; return where it is.

        An earlier rejected result is replaced; where something else has that name, a number follows.

        Raises:
            BadInputError: a source has changed meanwhile, so that it proves nothing.
        """
        self.sources.require_unchanged()
        place = self._rejected()
        with writing(place):
            self._forget_key()
            self._move(place)
        return place

    def _rejected(self) -> Path:
        for number in count(1):
            place = rejected_of(self.target, self.kind, f"-{number}" if number > 1 else "")
            try:
                require_target(place, self.kind, force=True, contents=True)
            except TargetExistsError:
                continue
            return place
        raise AssertionError("numbers do not end")

    def _move(self, place: Path) -> None:
        """Put the result at PLACE, its record before it: a kill in between loses neither.

        The record of a single file or a package names what it replaces as well, until that is gone.
        """
        if self.kind not in BESIDE:
            if self.kind not in GROWING:  # these are recorded at their end
                self._write_record(self.item / RECORD, describe(self.item, self.kind))
            self._replace(place)
            return
        known = record_of(place, self.kind) if os.path.lexists(place) else None
        record = place_of(place, self.kind)
        old = record.read_bytes() if record.exists() else None
        facts = describe(self.item, self.kind, known.files if known else None)
        self._write_record(record, facts)
        try:
            self._replace(place)
        except BaseException:
            with suppress(OSError):  # on a full disk the one that names both stays
                self._restore_record(record, old)
            raise
        if facts.pop("before", None):
            with suppress(OSError):  # the one that names both is right as well
                self._write_record(record, facts)

    def _restore_record(self, place: Path, old: bytes | None) -> None:
        if old is None:
            place.unlink()
            return
        draft = self._root / _DRAFT
        draft.write_bytes(old)
        draft.replace(place)

    def _write_record(self, place: Path, facts: Mapping[str, Any]) -> None:
        draft = self._root / _DRAFT
        draft.write_text(text_of(facts), encoding="utf-8")
        draft.replace(place)

    def _recover(self) -> None:
        """Take up what an interrupted run with the same key left behind, remove anything else."""
        old, key = self._root / _OLD, self._root / _KEY
        found = {path.name for path in self._root.iterdir()}
        if found and (_KEY not in found or found.difference(_OWN)):
            raise WeighbridgeError(
                f"{self._root} is in the way: Weighbridge did not make it; move it away"
            )
        self._ours = True
        if os.path.lexists(old) and not os.path.lexists(self.target):
            old.rename(self.target)  # that run was killed between the two renames of `_replace`
            require_target(self.target, self.kind, force=self.force, contents=True)
            self._seen = _stamps(self.target)
        if not (self.key and _read(key) == self.key):
            for name in (_DRAFT, _OLD, _CONTENT):
                _remove(self._root / name)
        key.write_text(self.key, encoding="utf-8")
        self.folder.mkdir(exist_ok=True)

    def _forget_key(self) -> None:
        """From here on the staging folder may hold the old target, which nobody must take up."""
        (self._root / _KEY).write_text("", encoding="utf-8")

    def _replace(self, place: Path) -> None:
        """Put the result at PLACE; an old one there is removed with the staging folder."""
        if not os.path.lexists(place):
            self.item.rename(place)
            return
        if exchange(self.item, place):
            return
        old = self._root / _OLD
        place.rename(old)
        try:
            self.item.rename(place)
        except OSError:
            old.rename(place)
            raise

    def _locked(self) -> int:
        """Create the staging folder if need be and lock it; the lock ends with the process."""
        while True:
            self._root.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # the run that had it has just ended
                return lock(self._root, self.target)


def sweep(target: Path) -> None:
    """Remove what a killed run left where it had built TARGET, which it had published.

    Raises:
        WeighbridgeError: another run is writing TARGET.
    """
    root = staging_of(absolute(target))
    if root.is_symlink() or not root.is_dir():
        return
    held = lock(root, target)
    try:
        found = {path.name for path in root.iterdir()}
        if not found or (_KEY in found and found.issubset(_OWN)):
            for name in _OWN:
                _remove(root / name)
            root.rmdir()
    finally:
        os.close(held)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _stamps(target: Path) -> list[tuple[str, int, int, int]]:
    """Return name, inode, size and time of everything at TARGET; nothing if there is nothing."""
    if not os.path.lexists(target):
        return []
    rows = [(str(path), path.lstat()) for path in below(target)]
    return [(name, stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in rows]


def _make_parents(folder: Path) -> list[Path]:
    """Make FOLDER and the folders that it lies in; return those that were not there, outermost first."""
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)][::-1]
    made = []
    for place in missing:
        with suppress(FileExistsError):  # another run is faster
            place.mkdir()
            made.append(place)
    return made


def _remove(path: Path) -> None:
    """Remove whatever is at PATH; a link goes, what it points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
