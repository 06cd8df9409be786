"""One command under one fault: a folder to write in, what is there afterwards, and what is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from weighbridge.tests.faults.commands import Command
from weighbridge.tests.faults.server import Ended, Server, flip_last_byte
from weighbridge.tests.faults.shim import ANY, NOTHING, Action, Fault, Kind
from weighbridge.trainers.runs.events import TIMES as RECORDED

FAILED = 3
PASSED = (0, 4)  # 4: nothing was wrong, nothing was checked
TIMES = {"seconds", *RECORDED}  # differ between equal runs
MINE, TEXT = "thesis.txt", "years of work"
TIMED = ("metrics.jsonl", "result.json", "speed.png")
WHOLE = b"IEND\xaeB`\x82"  # ends every PNG
Files = dict[str, str]


def files_in(folder: Path) -> Files:
    """Return path -> what is there, of everything in FOLDER, links not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            what = f"link to {path.readlink()}"
        elif path.is_dir():
            what = "folder"
        else:
            what = hashlib.sha256(_bytes(path)).hexdigest()[:16]
        found[path.relative_to(folder).as_posix()] = what
    return found


def _bytes(path: Path) -> bytes:
    """Return the content of PATH, without times where it records some."""
    data = path.read_bytes()
    try:
        if path.name.endswith("weighbridge.json"):
            return _record(json.loads(data))
        if path.suffix == ".png" and path.name in TIMED:
            return WHOLE if data.endswith(WHOLE) else data
        if path.name in TIMED:
            rows = data.splitlines() if path.suffix == ".jsonl" else [data]
            return json.dumps([_timeless(json.loads(row)) for row in rows]).encode()
    except ValueError:
        pass  # torn by a kill
    return data


def _record(facts: dict[str, Any]) -> bytes:
    facts.pop("before", None)  # what a result replaced may be named until the next
    files = facts.get("files", {})
    facts["files"] = {name: file for name, file in files.items() if name not in TIMED}
    return json.dumps(facts).encode()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(inner) for key, inner in value.items() if key not in TIMES}
    return value


class Row(NamedTuple):
    """What came of one attempt.

    Attributes:
        command: its name.
        fault: what went wrong, in words.
        call: the counted call at which it did.
        force: whether an older result was to be replaced.
        found: what was at the target's name: nothing, old, new, begun (a training run) or HALF.
        code: the exit code, or minus the signal.
        problems: what should not be; empty where all is well.
    """

    command: str
    fault: str
    call: str
    force: bool
    found: str
    code: int
    problems: tuple[str, ...]


class World:
    """A folder in which one command is tried again and again.

    Args:
        folder: everything of it.
        server: runs the command.
        sources: what it reads.
        others: the same with other numbers; they give the result that was there before.
        name: of the command.
        command: the command itself.
    """

    def __init__(
        self, folder: Path, server: Server, sources: Path, others: Path, named: tuple[str, Command]
    ) -> None:
        self.server, self.sources, self.others = server, sources, others
        self.name, self.command = named
        self.place, self.temporary, self._kept = (folder / n for n in ("out", "tmp", "old"))
        self.target = self.place / self.command.target
        for path in (self.place, self.temporary, self._kept):
            path.mkdir(parents=True, exist_ok=True)
        self._before = files_in(sources)
        self._forced: Ended | None = None

    @cached_property
    def straight(self) -> Ended:
        """The undisturbed run."""
        return self._passed(self.sources)

    @cached_property
    def new(self) -> Files:
        """What an undisturbed run leaves in the folder."""
        self._passed(self.sources)
        return files_in(self.place)

    @cached_property
    def old(self) -> Files:
        """What the same command on other sources leaves; kept to be put there again."""
        self._passed(self.others)
        (self.place / MINE).unlink()
        shutil.copytree(self.place, self._kept, dirs_exist_ok=True, symlinks=True)
        return files_in(self._kept)

    def kept(self) -> Path:
        """Return the folder that the older result is kept in."""
        assert self.old
        return self._kept

    def _passed(self, sources: Path) -> Ended:
        """Return what an undisturbed run on SOURCES in a clear folder gives."""
        self.clear()
        ended = self.run(sources=sources)
        if ended.code not in PASSED:
            raise AssertionError(f"{self.name} does not even run undisturbed: {ended.output}")
        return ended

    def clear(self) -> None:
        """Leave only a file of the user's."""
        for path in (*self.place.iterdir(), *self.temporary.iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        (self.place / MINE).write_text(TEXT)

    def bytes_needed(self) -> int:
        """Return how much the result takes on a disk with blocks of 4,096 bytes."""
        self._passed(self.sources)
        sizes = [path.lstat().st_size for path in self.place.rglob("*") if path.is_file()]
        return sum(-(-size // 4096) * 4096 for size in sizes)

    def prepare(self, *, force: bool) -> None:
        """Put the older result in place where it is to be replaced."""
        known = self.straight, self.new, self.old if force else None  # each takes the folder once
        assert known
        self.clear()
        if force:
            shutil.copytree(self._kept, self.place, dirs_exist_ok=True, symlinks=True)

    def run(
        self,
        fault: Fault = NOTHING,
        *,
        force: bool = False,
        resume: bool = False,
        sources: Path | None = None,
        **more: Any,
    ) -> Ended:
        """Give the command."""
        words = self.command.given(
            sources or self.sources, self.target, *(["--force"] if force else []), resume=resume
        )
        variables = {"TMPDIR": str(self.temporary)}
        return self.server.run(words, [self.place], fault, variables=variables, **more)

    def found(self) -> str:
        """Say what the target's name stands for."""
        there = _of_target(files_in(self.place), self.target.name)
        if not there:
            return "nothing"
        if there == _of_target(self.new, self.target.name):
            return "new"
        if "old" in self.__dict__ and there == _of_target(self.old, self.target.name):
            return "old"
        return "begun" if self.command.resume else "HALF"

    def calls(self, *, force: bool = False) -> list[str]:
        """Return what an undisturbed run does, call by call."""
        if not force:
            return self.straight.calls
        if self._forced is None:
            self.prepare(force=True)
            self._forced = self.run(force=True)
        return self._forced.calls

    def change(self) -> Row:
        """Change a source while the command writes; it must not pass for what it was."""
        own = self.place.parent / "sources"
        if not own.exists():
            shutil.copytree(self.sources, own)
        named = self.name, self.command
        world = World(self.place.parent / "changing", self.server, own, self.others, named)
        path = _largest(own, self.command)
        world.prepare(force=False)
        before = files_in(world.place)
        calls = world.calls()
        writes = [n for n, it in enumerate(calls) if " write " in f"{it}" and "/content" in f"{it}"]
        middle = Fault(
            min([len(calls) // 2, *writes[-1:]]), Action.STOP
        )  # a short one is published then
        ended = world.run(middle, meanwhile={"flip": str(path)})
        flip_last_byte(path)
        found = world.found()
        problems = [] if ended.code in PASSED else world._wrong_after_failure(ended, found, before)
        return world._row(middle, ended, False, found, problems)

    def kill(self, fault: Fault, *, force: bool = False, **more: Any) -> Row:
        """Kill the command, look at what is there, and give it again."""
        self.prepare(force=force)
        ended = self.run(fault, force=force, **more)
        found = self.found()
        problems = [*self._lost()]
        if ended.killed:
            problems += self._wrong_after_kill(found, force=force)
        elif ended.code not in PASSED:
            problems.append(f"ended with {ended.code}: {ended.output[-300:]}")
        return self._row(fault, ended, force, found, problems)

    def fail(
        self,
        fault: Fault = NOTHING,
        *,
        force: bool = False,
        relief: Callable[[], None] = lambda: None,
        **more: Any,
    ) -> Row:
        """Let the system refuse something; nothing must be left but one line.

        RELIEF is what helps; a training run that has begun must go on then.
        """
        self.prepare(force=force)
        before = files_in(self.place)
        ended = self.run(fault, force=force, **more)
        found = self.found()
        problems = [*self._lost()]
        if ended.code in PASSED:
            problems += _differences(files_in(self.place), self.new)
        else:
            problems += self._wrong_after_failure(ended, found, before, relief)
        return self._row(fault, ended, force, found, problems)

    def twice(self, n: int) -> Row:
        """Give the command again while it stands still before its N-th call; that one is refused."""
        self.prepare(force=False)
        words = self.command.given(self.sources, self.target)
        ended = self.run(Fault(n, Action.STOP), meanwhile={"command": words})
        second = ended.meanwhile
        problems = [*self._lost(), *_differences(files_in(self.place), self.new)]
        if second is None or second.code != FAILED:
            problems.append(f"the second ended otherwise: {second}")
        elif not second.output.strip().splitlines()[-1].startswith("Error: "):
            problems.append(f"not one line: {second.output[-300:]}")
        if ended.code not in PASSED:
            problems.append(f"ended with {ended.code}: {ended.output[-300:]}")
        return self._row(Fault(n, Action.STOP), ended, False, self.found(), problems)

    def refused_read_only(self, remount: Callable[[str], None]) -> Row:
        """Give the command where nothing can be written; REMOUNT changes that."""
        self.clear()
        remount("ro")
        ended, before = self.run(), files_in(self.place)
        found = self.found()
        problems = self._wrong_after_failure(ended, found, {MINE: before[MINE]})
        remount("rw")
        return self._row(NOTHING, ended, False, found, problems)

    def _row(self, fault: Fault, ended: Ended, force: bool, found: str, problems: list[str]) -> Row:
        number = fault.at if fault.action != Action.COUNT else ended.count - 1
        call = ended.calls[number] if 0 <= number < len(ended.calls) else ""
        call = call.replace(str(self.place), "").partition(" ")[2]
        return Row(self.name, str(fault), call, force, found, ended.code, tuple(problems))

    def _lost(self) -> list[str]:
        """Say what of the user's is no longer as it was."""
        path = self.place / MINE
        mine = path.is_file() and path.read_text() == TEXT
        sources = _differences(files_in(self.sources), self._before)
        return [*([] if mine else [f"{MINE} is lost"]), *(f"source: {line}" for line in sources)]

    def _wrong_after_kill(self, found: str, *, force: bool) -> list[str]:
        allowed = {"new", "old" if force else "nothing"} | (
            {"begun"} if self.command.resume else set()
        )
        problems = [] if found in allowed else [f"the target is {found}"]
        begun = found in ("begun", "new") and bool(self.command.resume)
        again = self.run(force=force or (found == "new" and not begun), resume=begun)
        if again.code not in PASSED:
            return [*problems, f"the rerun ended with {again.code}: {again.output[-300:]}"]
        return problems + _differences(files_in(self.place), self.new)

    def _wrong_after_failure(
        self, ended: Ended, found: str, before: Files, relief: Callable[[], None] = lambda: None
    ) -> list[str]:
        lines = [line for line in ended.output.strip().splitlines() if line.strip()]
        problems = []
        if ended.code != FAILED:
            problems.append(f"ended with {ended.code}: {ended.output[-600:]}")
        elif not lines[-1].startswith("Error: ") or ended.output.count("Error: ") != 1:
            problems.append(f"not one line: {ended.output[-300:]}")
        if found == "begun":
            relief()
            again = self.run(resume=True)
            if again.code not in PASSED:
                return [*problems, f"the rerun ended with {again.code}: {again.output[-300:]}"]
            return problems + _differences(files_in(self.place), self.new)
        problems += _differences(files_in(self.place), before)
        return problems + [f"left in TMPDIR: {name}" for name in files_in(self.temporary)]


def _largest(sources: Path, command: Command) -> Path:
    """Return the largest file of those that COMMAND reads below SOURCES."""
    files = [path for name in command.reads for path in (sources / name).rglob("*.*")]
    return max(files, key=lambda path: path.stat().st_size)


def _of_target(files: Files, name: str) -> Files:
    return {path: what for path, what in files.items() if path.split("/")[0] == name}


def _differences(found: Files, wanted: Files) -> list[str]:
    """Say how FOUND differs from what is WANTED; of a new folder only its own name."""
    names = sorted(
        path for path in found.keys() | wanted.keys() if found.get(path) != wanted.get(path)
    )
    inside = {name for name in names if any(name.startswith(f"{other}/") for other in names)}
    return [
        f"{name}: {'left' if name not in wanted else 'gone' if name not in found else 'other bytes'}"
        for name in names
        if name not in inside
    ]


def moments(calls: Sequence[str], count: int, kinds: Kind = ANY) -> list[int]:
    """Return numbers of COUNT of the CALLS of KINDS, evenly from the first to the last."""
    able = [n for n, call in enumerate(calls) if int(call.split()[0]) & kinds]
    count = min(count, len(able))
    return sorted({able[(len(able) - 1) * k // max(count - 1, 1)] for k in range(count)})
