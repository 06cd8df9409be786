"""What a verb may write to: tested before its work begins, and again before it publishes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

from ...errors import TargetExistsError, WeighbridgeError
from .old_records import unlike_old
from .records import (
    BESIDE,
    GROWING,
    IGNORED,
    KINDS,
    SINGLE,
    below,
    changed,
    place_of,
    read_facts,
    record_of,
)

STAGING: Final = ".{name}.staging"  # where a target is built, beside its place
_SHOWN: Final = 5  # files that are named
_LONGEST: Final = 255  # bytes of a name where the file system does not say


def absolute(target: Path) -> Path:
    """Return TARGET as an absolute path; a link is not followed."""
    return Path(os.path.abspath(target))  # noqa: PTH100  # resolve would follow it


def staging_of(target: Path) -> Path:
    """Return the hidden folder in which TARGET is built.

    >>> staging_of(Path("a/out")).as_posix()
    'a/.out.staging'
    """
    return target.with_name(STAGING.format(name=target.name))


def require_target(target: Path, kind: str, *, force: bool = False, contents: bool = False) -> None:
    """Refuse a TARGET that could not be written, or that must not be replaced.

    Cheap enough to be asked before the work begins; with CONTENTS a result that FORCE is to replace
    is hashed as well.

    Args:
        target: the path that a verb is to write.
        kind: what it is to put there, a key of ``KINDS``.
        force: whether a result of Weighbridge's own may be replaced.
        contents: hash the files of such a result too.

    Raises:
        TargetExistsError: something is there that is not to be replaced.
        WeighbridgeError: nothing can be written there.
    """
    place = absolute(target)
    if os.path.lexists(place):
        require_replaceable(place, kind, force=force, contents=contents)
    require_writable(place)
    if kind in BESIDE:
        require_record_place(place_of(place, kind))


def require_replaceable(target: Path, kind: str, *, force: bool, contents: bool) -> None:
    """Refuse to replace TARGET, which exists, unless it is a result of KIND that FORCE may replace.

    Raises:
        TargetExistsError: it is something else, or holds something else.
    """
    if kept := _never_replaced(target):
        raise TargetExistsError(f"{target} {kept} and is never replaced; choose another name")
    if not force:
        way = " or go on with --resume" if kind in GROWING else " or give --force"
        no_run = kind in GROWING and not target.is_dir()
        what, way = ("is a file", "") if no_run else ("exists", way)
        raise TargetExistsError(f"{target} {what}; choose another name{way}")
    if unaccounted(target, kind, contents=contents):
        problems = unaccounted(target, kind)
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise TargetExistsError(
            f"{target} is not replaced, because --force replaces only what Weighbridge wrote itself:"
            f" {', '.join([*problems[:_SHOWN], *more])}; move that away or choose another name"
        )


def _never_replaced(target: Path) -> str | None:
    """Say why TARGET is replaced by nothing; ``None`` if it may be."""
    if target.is_symlink():
        return f"is a symbolic link to {target.readlink()}"
    if target.parent == target or os.path.ismount(target):
        return "is the root of a file system"
    place = Path(os.path.realpath(target))
    for kept, what in ((Path.cwd(), "the working directory"), (Path.home(), "your home")):
        if kept.is_relative_to(place):
            return f"{'is' if kept == place else 'contains'} {what}"
    return None


def unaccounted(target: Path, kind: str, *, contents: bool = True) -> list[str]:
    """Return what at TARGET is not as Weighbridge wrote it, a line each; nothing if all of it is.

    Args:
        target: an existing file or directory, no link.
        kind: what a verb is about to put there, a key of ``KINDS``.
        contents: hash the files too, and do not compare their sizes alone.
    """
    if kind in SINGLE and target.is_dir():
        return ["it is a directory"]
    if kind not in SINGLE and not target.is_dir():
        return ["it is a file"]
    found = [path for path in below(target) if path.name not in IGNORED and path != target]
    if not found and target.is_dir():
        return []
    record = record_of(target, kind)
    if record is None:
        return unlike_old(target, kind)
    if record.kind != kind:
        return [f"it is {KINDS.get(record.kind, 'something else')}, not {KINDS[kind]}"]
    kept = place_of(target, kind)
    rows = [(path, path.relative_to(target).as_posix()) for path in below(target) if path != kept]
    return [
        f"{name} ({why})"
        for path, name in rows
        if path.name not in IGNORED and (why := changed(path, name, record, contents=contents))
    ]


def require_writable(target: Path) -> None:
    """Refuse a TARGET whose folder cannot be written to; nothing is created.

    Raises:
        WeighbridgeError: says which folder, and why.
    """
    folder = target.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise WeighbridgeError(f"cannot write {target}: {folder} is not a directory")
    if not os.access(folder, os.W_OK | os.X_OK):
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        why = os.strerror(errno.EROFS if read_only else errno.EACCES)
        raise WeighbridgeError(f"cannot write {target}: {folder}: {why}; choose another place")
    longest = os.pathconf(folder, "PC_NAME_MAX") or _LONGEST
    if len(os.fsencode(staging_of(target).name)) > longest:
        raise WeighbridgeError(f"cannot write {target}: its name is too long; choose a shorter one")


def require_space(target: Path, needed: int) -> None:
    """Refuse a TARGET that takes NEEDED bytes where its file system has fewer.

    Raises:
        WeighbridgeError: says both.
    """
    folder = next(place for place in absolute(target).parents if place.is_dir())
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WeighbridgeError(
            f"cannot write {target}: it needs {needed:,} bytes, {free:,} are free; free some space"
            " or choose another disk"
        )


def require_record_place(place: Path) -> None:
    """Refuse to write a record over a file that is none.

    Raises:
        TargetExistsError: something else has its name.
    """
    if os.path.lexists(place) and (place.is_symlink() or read_facts(place) is None):
        raise TargetExistsError(
            f"{place} is in the way of the record; move it or choose another name"
        )
