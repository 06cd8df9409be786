"""Checkpoints from which a run goes on as if nothing had happened: whole or not there."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ...converters.checkpoints import save_tensors
from ...converters.documents import RECORD, read_object
from ...converters.values import Array
from ...errors import BadInputError

TENSORS, FACTS = "state.safetensors", "state.json"
HASH: Final = "tensors"  # of TENSORS, in FACTS; 0.1.0 wrote none
STEP, BEST, TEMPORARY = "step-", "best-", "."
DIGITS: Final = 8


class Checkpoint(NamedTuple):
    """A point of a run.

    Attributes:
        step: updates done.
        arrays: the state of the step (parameters, optimizer, random numbers).
        facts: everything else that the loop carries on, as JSON.
    """

    step: int
    arrays: dict[str, Array]
    facts: dict[str, Any]


class Checkpoints:
    """The checkpoints of one run, in one folder; at most one process writes there."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder, self._keep = folder, keep

    def write(
        self, checkpoint: Checkpoint, beside: Callable[[Path], None] = lambda _: None
    ) -> Path:
        """Write a point to go on from and remove those that are no longer kept.

        The best checkpoints that a kept one names (``facts["best_step"]``) stay too.

        Args:
            checkpoint: the point.
            beside: writes other files into its folder before it gets its name.
        """
        path = self._write(STEP, checkpoint, beside)
        self._prune()
        return path

    def write_last(self, checkpoint: Checkpoint) -> Path:
        """Write a point beside whatever the thread of the run is doing here, and remove nothing."""
        return self._write(STEP, checkpoint)

    def write_best(self, step: int, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> Path:
        """Write the trainable parameters of the best step so far."""
        return self._write(BEST, Checkpoint(step, dict(arrays), dict(facts)))

    def latest(self) -> Checkpoint | None:
        """Return the last point written, or ``None``; nothing is changed.

        Raises:
            BadInputError: the folder is none, or a point is damaged.
        """
        if os.path.lexists(self.folder) and not self.folder.is_dir():
            raise BadInputError(
                f"{self.folder}: not a folder of checkpoints; remove it to start over"
            )
        steps = self._steps(STEP)
        for step in steps:  # what is read of them later may not fail then
            best = self._best_of(step)
        if steps and best is not None and not (self._path(BEST, best) / TENSORS).is_file():
            raise BadInputError(
                f"{self._path(BEST, best)} is missing, the best so far; put it back, or remove"
                f" {self._path(STEP, steps[-1])} to go on from an earlier one"
            )
        return self._read(STEP, steps[-1]) if steps else None

    def tidy(self, renew: Callable[[Path], None] = lambda _: None) -> None:
        """Remove what a killed run left: half-written points, and those that it would not have kept.

        Args:
            renew: brings the folder of a point that is kept, of an earlier version, into today's form.
        """
        for leftover in self.folder.glob(f"{TEMPORARY}*"):
            _remove(leftover)
        if self._steps(STEP):
            self._prune()
        for step in self._steps(STEP):
            renew(self._path(STEP, step))

    def best(self, step: int) -> Checkpoint:
        """Return the best checkpoint of STEP."""
        return self._read(BEST, step)

    def _path(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}{step:0{DIGITS}}"

    def _steps(self, kind: str) -> list[int]:
        numbers = [path.name.removeprefix(kind) for path in self.folder.glob(f"{kind}*")]
        return sorted(int(number) for number in numbers if number.isdecimal())

    def _write(
        self, kind: str, checkpoint: Checkpoint, beside: Callable[[Path], None] = lambda _: None
    ) -> Path:
        """Write beside the final name, flush to disk, rename: a kill leaves all or nothing."""
        path = self._path(kind, checkpoint.step)
        staged = path.with_name(f"{TEMPORARY}{path.name}-{threading.get_ident()}")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir(parents=True)
        beside(staged)
        save_tensors(staged / TENSORS, checkpoint.arrays)
        known = {"step": checkpoint.step, HASH: _hash(staged / TENSORS)}
        facts = json.dumps(known | checkpoint.facts, indent=1)
        (staged / FACTS).write_text(facts + "\n", encoding="utf-8")
        for file in (*(it for it in staged.rglob("*") if it.is_file()), staged):
            _flush(file)
        if path.exists():  # from before a kill: the run has come here again
            stale = _set_aside(path)
            staged.rename(path)
            _remove(stale)
        else:
            staged.rename(path)
        _flush(self.folder)
        return path

    def _read(self, kind: str, step: int) -> Checkpoint:
        path = self._path(kind, step)
        try:
            facts = read_object(path / FACTS, RECORD)
            if not (path / TENSORS).is_file():  # a pipe or a device may have no end
                raise FileNotFoundError(f"{TENSORS} is not a file")
            found = _hash(path / TENSORS)
            arrays = load_file(path / TENSORS)
        except (OSError, ValueError, SafetensorError) as error:
            raise BadInputError(
                f"{path}: cannot be read ({error}); remove it to go on from an earlier one"
            ) from None
        if facts.get(HASH, found) != found:
            raise BadInputError(
                f"{path / TENSORS}: is not what was written; remove {path} to go on from an earlier one"
            )
        return Checkpoint(step, arrays, facts)

    def _prune(self) -> None:
        kept = self._steps(STEP)[-self._keep :]
        bests = {self._best_of(step) for step in kept}
        for step in set(self._steps(STEP)) - set(kept):
            _remove(_set_aside(self._path(STEP, step)))
        for step in set(self._steps(BEST)) - bests:
            _remove(_set_aside(self._path(BEST, step)))

    def _best_of(self, step: int) -> int | None:
        """Return the best step that the checkpoint of STEP names, if it does and is whole.

        Raises:
            BadInputError: it says something else.
        """
        path = self._path(STEP, step)
        if path.is_dir() and not (path / FACTS).exists():
            return None  # an older version was killed while it removed this one
        best = read_object(path / FACTS, RECORD).get("best_step")
        if best is not None and type(best) is not int:
            raise BadInputError(
                f"{path / FACTS}: best_step is {best!r}, expected a whole number; remove {path} to go"
                " on without it"
            )
        return best


def _set_aside(path: Path) -> Path:
    """Rename PATH to what ``tidy`` removes: a kill on the way leaves no half of a checkpoint."""
    stale = path.with_name(f"{TEMPORARY}old-{path.name}")
    if os.path.lexists(stale):
        _remove(stale)
    return path.rename(stale)


def _remove(path: Path) -> None:
    """Remove what lies at PATH, which need not be a folder of ours."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return f"xxh3:{file_digest(file, xxhash.xxh3_64).hexdigest()}"


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
