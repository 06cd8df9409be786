"""A target appears whole or not at all: it is built beside its place and moved there at the end."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ...errors import TargetExistsError, WeighbridgeError
from .system import exchange, sync_folder, writing

_KEY: Final = "key"
_OLD: Final = "replaced"


class Staging:
    """Build the directory TARGET in a hidden sibling folder; a context manager.

    Leaving the block without ``publish`` or ``reject`` removes what was built. Only a killed
    process or a power loss leaves it behind; the next run with the same KEY finds it in
    ``folder``, one with another key removes it.

    Attributes:
        folder: where to write.
    """

    def __init__(self, target: Path, *, force: bool = False, key: str = "") -> None:
        self.target = Path(os.path.abspath(target))  # noqa: PTH100  # a link is replaced, not followed
        self.force = force
        self.key = key
        self._check_target()
        self._root = self.target.with_name(f".{self.target.name}.staging")
        self.folder = self._root / "content"
        self._lock = -1

    def __enter__(self) -> Self:
        with writing(self.target):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._locked()
            try:
                self._recover()
            except BaseException:
                os.close(self._lock)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Remove what was not published, and let the next run in."""
        try:
            _remove(self._root)
        finally:
            os.close(self._lock)

    def publish(self) -> Path:
        """Move the folder to the target in one step; return the target.

        Raises:
            TargetExistsError: the target has appeared meanwhile and ``force`` is not given.
        """
        self._check_target()
        with writing(self.target):
            self._forget_key()
            if os.path.lexists(self.target):
                self._replace()
            else:
                self.folder.rename(self.target)
            sync_folder(self.target.parent)
        return self.target

    def reject(self) -> Path:
        """Move the folder to ``TARGET.rejected`` to be looked at; return where it is."""
        place = self.target.with_name(f"{self.target.name}.rejected")
        with writing(place):
            self._forget_key()
            _remove(place)
            self.folder.rename(place)
        return place

    def _recover(self) -> None:
        """Take up what an interrupted run with the same key left behind, remove anything else."""
        old, key = self._root / _OLD, self._root / _KEY
        if os.path.lexists(old) and not os.path.lexists(self.target):
            old.rename(self.target)  # that run was killed between the two renames of `_replace`
            self._check_target()
        if not (self.key and _read(key) == self.key):
            for path in self._root.iterdir():
                _remove(path)
        key.write_text(self.key, encoding="utf-8")
        self.folder.mkdir(exist_ok=True)

    def _forget_key(self) -> None:
        """From here on the staging folder may hold the old target, which nobody must take up."""
        (self._root / _KEY).unlink()

    def _replace(self) -> None:
        """Put the folder where the target is; the old one is removed with the staging folder."""
        if exchange(self.folder, self.target):
            return
        old = self._root / _OLD
        self.target.rename(old)
        try:
            self.folder.rename(self.target)
        except OSError:
            old.rename(self.target)
            raise

    def _check_target(self) -> None:
        if not os.path.lexists(self.target):
            return
        if not self.force:
            raise TargetExistsError(f"{self.target} exists; choose another name or give --force")
        for kept, what in ((Path.cwd(), "the working directory"), (Path.home(), "your home")):
            if kept.is_relative_to(self.target.resolve()):
                raise TargetExistsError(f"{self.target} contains {what} and is never replaced")

    def _locked(self) -> int:
        """Create the staging folder if need be and lock it; the lock ends with the process."""
        while True:
            self._root.mkdir(exist_ok=True)
            try:
                descriptor = os.open(self._root, os.O_RDONLY)
            except FileNotFoundError:  # the run that had it has just ended
                continue
            if self._lock_held(descriptor):
                return descriptor
            os.close(descriptor)

    def _lock_held(self, descriptor: int) -> bool:
        """Lock DESCRIPTOR; False if the folder that it stands for was removed meanwhile."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise WeighbridgeError(
                f"another run is writing {self.target}; wait for it or choose another name"
            ) from error
        except OSError as error:
            # Some network file systems have no locks; that is no reason not to write there.
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
                os.close(descriptor)
                raise
        try:
            return os.path.samestat(os.fstat(descriptor), self._root.stat())
        except FileNotFoundError:
            return False


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def _remove(path: Path) -> None:
    """Remove whatever is at PATH; a link goes, what it points to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
