"""What a job reads, as it was when the job began: nothing is published from what changed meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Self

from ... import __version__
from ...errors import BadInputError

# Folders in a model's directory that no job reads.
PASSED_OVER: Final = frozenset((".cache", ".git", "__pycache__", "checkpoints"))
_SHOWN: Final = 3  # files that are named


class Stamp(NamedTuple):
    """What tells that a file was written to, or that another one has taken its place."""

    size: int
    changed: int  # nanoseconds
    number: int  # the inode


def stamp(file: Path) -> Stamp | None:
    """Return the stamp of FILE, a link followed; ``None`` where there is none to be had."""
    try:
        seen = file.stat()
    except OSError:
        return None
    return Stamp(seen.st_size, seen.st_mtime_ns, seen.st_ino)


def stamps(files: Iterable[Path]) -> list[tuple[str, Stamp | None]]:
    """Return name and stamp of each of FILES, as the key of a job has them."""
    return [(os.path.realpath(file), stamp(file)) for file in files]  # a loop of links has one too


def job_key(files: Iterable[Path], *parts: object) -> str:
    """Return a fingerprint of a job that reads FILES: an interrupted one resumes if it has the same."""
    text = json.dumps([__version__, stamps(files), parts], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Sources:
    """The files that a job reads, as they were when it began.

    Attributes:
        seen: file -> its stamp.
    """

    seen: Mapping[Path, Stamp | None] = field(default_factory=dict)

    @classmethod
    def of(cls, *specs: str | Path | None) -> Self:
        """Return the files of SPECS: files, directories, ``DIRECTORY+ADAPTER``; all else is passed over."""
        places = [place for spec in specs if spec for place in _places(str(spec))]
        return cls({file: stamp(file) for place in places for file in _files(place)})

    def changed(self) -> list[Path]:
        """Return the files that are no longer what they were."""
        return [file for file, was in self.seen.items() if stamp(file) != was]

    def require_unchanged(self) -> None:
        """Refuse to go on with a mixture of old and new.

        Raises:
            BadInputError: a file was written to, replaced or removed meanwhile.
        """
        if not (files := self.changed()):
            return
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        raise BadInputError(
            f"{', '.join(map(str, files[:_SHOWN]))}{more} changed during the run, so the result is not"
            " kept; run again when nothing writes there"
        )


def _places(spec: str) -> list[Path]:
    """Return the paths in SPEC; a path that exists as it stands wins."""
    parts = [spec] if os.path.lexists(spec) else spec.rpartition("+")[::2]
    return [Path(os.path.abspath(part)) for part in parts if part and os.path.lexists(part)]  # noqa: PTH100  # a link is not followed


def _files(place: Path) -> Iterator[Path]:
    """Yield PLACE if it is a file, else the files below it that a job may read."""
    if not place.is_dir():
        yield place
        return
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(set(folders) - PASSED_OVER)
        yield from (Path(folder, name) for name in sorted(names))
