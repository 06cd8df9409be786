"""Many inputs: each made from its number alone, run in a child, judged; some through the shell too."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import shutil
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from . import place, warm
from .drawn import Chance
from .families import FAMILIES, Verb, choose, words
from .goods import make_goods
from .judge import Finding, Oracle, Ran, judge
from .watch import Seen, in_child, in_shell, verb

KEPT_BYTES = 60_000  # of a spoiled file that a case keeps


class Input(NamedTuple):
    """An input that is ready to run.

    Attributes:
        family: its kind.
        name: from which it can be made again.
        root: its folder.
        argv: the command line.
        target: what it may write.
        oracle: what success must mean.
        note: how it was spoiled.
    """

    family: str
    name: str
    root: Path
    argv: list[str]
    target: str
    oracle: Oracle | None
    note: str

    @property
    def folder(self) -> Path:
        """Where it is run."""
        return self.root / place.WORK


def make_input(goods: Path, root: Path, family: str, name: str) -> Input:
    """Make the input NAME of FAMILY in the folder ROOT: the same each time."""
    chance = Chance(family, name)
    row = FAMILIES[family]
    folder = place.furnish(root, goods, row.goods)
    chosen: Verb = choose(chance, row.verbs)
    note = row.spoil(chance, folder)
    line = words(chance, folder, chosen)
    target = chosen.target or target_of(line, folder)
    return Input(family, name, root, line, target, chosen.oracle, note)


def target_of(argv: Sequence[str], folder: Path) -> str:
    """Return what a random command line may write in FOLDER: what it calls so, or names and is not there."""
    writing = {"convert", "merge", "export", "train", "record", "infer"}
    if not set(argv[:2]) & writing:
        return ""
    first = 1 if argv[0] == "train" else 2
    new = [it for it in argv[first:] if it[:1] != "-" and not os.path.lexists(folder / it)]
    called = (it for it in argv[1:] if it.startswith(("out", "new/deep")))
    return next(called, unnamed(argv, folder, new[-1] if new else ""))


def unnamed(argv: Sequence[str], folder: Path, new: str) -> str:
    """Return what ARGV writes that has no ``out``: NEW, or a run under the name that it gets by default."""
    if argv[0] != "train" or (new and "--resume" not in argv):
        return new
    begins = (folder / "run").exists() and "--resume" not in argv
    return "run-2" if begins else "run"


def run(made: Input, goods: Path, runner: Callable[[Input], Seen]) -> tuple[Seen, list[Finding]]:
    """Run an input and judge it."""
    before = place.snapshot(made.root)
    seen = runner(made)
    after = place.snapshot(made.root)
    ran = Ran(made.folder, goods, made.argv, made.target, seen)
    return seen, judge(ran, before, after, made.oracle)


def forked(made: Input) -> Seen:
    """Run an input in a child of this process."""
    return in_child(verb(made.argv), made.folder, place.surroundings(made.root))


def shelled(made: Input) -> Seen:
    """Run an input as a user does."""
    return in_shell(made.argv, made.folder, place.surroundings(made.root), warm.ROOT)


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        names: families and numbers, in the order of running.
        shell: which of them go through the shell too.
        goods: where the good ones lie.
        scratch: where inputs are made.
        keep: where cases of what was found are kept, if anywhere.
        seed: from which all of it follows.
    """

    names: Sequence[tuple[str, int]]
    shell: frozenset[int]
    goods: Path
    scratch: Path
    keep: Path | None
    seed: int


def planned(families: Iterable[str], count: int, seed: int) -> list[tuple[str, int]]:
    """Return COUNT inputs of FAMILIES by their shares, mixed."""
    chance = random.Random(seed)
    named = list(families)
    total = sum(FAMILIES[name].share for name in named)
    made = [
        (name, number)
        for name in named
        for number in range(-(-count * FAMILIES[name].share // total))
    ]
    chance.shuffle(made)
    return made[:count]


def work(plan: Plan, part: int, parts: int, report: Path) -> int:
    """Run every input of PLAN whose place is PART modulo PARTS; write a line for each to REPORT."""
    parent = os.getppid()
    with report.open("w", encoding="utf-8", buffering=1) as file:
        for order in range(part, len(plan.names), parts):
            if os.getppid() != parent:
                return 1  # nobody waits for the rest
            family, number = plan.names[order]
            name = f"{plan.seed}-{number}"
            try:
                rows = one(plan, family, name, shell=order in plan.shell)
            except Exception:  # of the fuzzer, which must say so
                rows = [{"family": family, "name": name, "broken": traceback.format_exc()[-1500:]}]
            for row in rows:
                file.write(json.dumps(row) + "\n")
    return 0


def one(plan: Plan, family: str, name: str, *, shell: bool) -> list[dict[str, Any]]:
    """Run one input, through the shell as well if SHELL; return a row for each."""
    rows: list[dict[str, Any]] = []
    for way in ("fork", "shell")[: 1 + shell]:
        root = plan.scratch / f"{os.getpid()}-{way}"
        try:
            rows.append(tried(plan, root, family, name, way))
        finally:
            remove(root)
    codes = [row["code"] for row in rows]
    if len(set(codes)) > 1 and not any(row["found"] for row in rows):
        detail = f"exit {codes[0]} in a child, {codes[1]} in a shell"
        rows[-1]["found"].append(["shell", detail])
    return rows


def tried(plan: Plan, root: Path, family: str, name: str, way: str) -> dict[str, Any]:
    """Make an input in ROOT, run and judge it, keep it as a case where something was found."""
    made = make_input(plan.goods, root, family, name)
    spoiled = differences(made, plan.goods)
    seen, found = run(made, plan.goods, forked if way == "fork" else shelled)
    if found and plan.keep:
        keep(plan.keep, made, found, spoiled)
    return row_of(made, seen, found, way)


def remove(root: Path) -> None:
    """Remove ROOT, however deep it is."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(root)
    if root.exists():
        os.system(f"rm -rf '{root}'")  # a path of ours


def row_of(made: Input, seen: Seen, found: Sequence[Finding], way: str) -> dict[str, Any]:
    """Return what the report says of an input."""
    return {
        "family": made.family,
        "name": made.name,
        "way": way,
        "code": seen.code,
        "seconds": round(seen.seconds, 3),
        "peak": seen.peak,
        "note": made.note,
        "argv": made.argv if found else [],
        "found": [[it.kind, it.detail] for it in found],
    }


def differences(made: Input, goods: Path) -> dict[str, list[str]]:
    """Return what of an input is not as its goods are: by path its kind, and what it holds."""
    found: dict[str, list[str]] = {}
    for top in FAMILIES[made.family].goods:
        for name in sorted(inner(made.folder, top) | inner(goods, top)):
            here, good = described(made.folder / name), described(goods / name)
            if here != good:
                found[name] = here
    return found


def inner(folder: Path, top: str) -> set[str]:
    """Return the paths of TOP in FOLDER and of everything in it, relative to FOLDER."""
    path = folder / top
    more = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return {str(it.relative_to(folder)) for it in (path, *more)}


def described(path: Path) -> list[str]:
    """Return the kind of what lies at PATH, and what it holds."""
    if path.is_symlink():
        return ["link", str(path.readlink())]
    if not path.exists():
        return ["gone"]
    if path.is_dir():
        return ["folder"]
    return ["file", packed(path.read_bytes())] if path.is_file() else ["pipe"]


def put(path: Path, kind: str, held: str = "") -> None:
    """Put at PATH what ``described`` says."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], object]] = {
        "link": lambda: path.symlink_to(held),
        "folder": path.mkdir,
        "file": lambda: path.write_bytes(unpacked(held)),
        "pipe": lambda: os.mkfifo(path),
        "gone": lambda: None,
    }
    makers[kind]()


def packed(data: bytes) -> str:
    """Return DATA as text, compressed.

    >>> unpacked(packed(b"abc"))
    b'abc'
    """
    return base64.b85encode(zlib.compress(data, 9)).decode()


def unpacked(text: str) -> bytes:
    """Return what ``packed`` was given."""
    return zlib.decompress(base64.b85decode(text))


def keep(folder: Path, made: Input, found: Sequence[Finding], files: dict[str, list[str]]) -> None:
    """Write a case: the command line, the spoiled files, and what was found."""
    folder.mkdir(parents=True, exist_ok=True)
    case = {
        "family": made.family,
        "name": made.name,
        "argv": made.argv,
        "target": made.target,
        "note": made.note,
        "found": [[it.kind, it.detail] for it in found],
        "files": files,
    }
    name = f"{found[0].kind}-{made.family.replace(' ', '-')}-{made.name}.json"
    (folder / name).write_text(json.dumps(case, indent=1) + "\n", encoding="utf-8")


def campaign(
    families: Sequence[str],
    count: int,
    seed: int,
    scratch: Path,
    *,
    jobs: int = 1,
    shell: int = 0,
    keep: Path | None = None,
) -> list[dict[str, Any]]:
    """Run COUNT inputs of FAMILIES in JOBS processes, SHELL of them through the shell too."""
    goods = scratch / "goods"
    goods.mkdir(exist_ok=True)
    warm.take_over(
        make_goods(
            goods, sorted({n for name in families for n in FAMILIES[name].goods} | extra(families))
        )
    )
    threads = warm.settle()
    if threads != 1:
        raise RuntimeError(f"the warm parent has {threads} threads; its children could hang")
    names = planned(families, count, seed)
    chosen = random.Random(seed).sample(range(len(names)), min(shell, len(names)))
    plan = Plan(names, frozenset(chosen), goods, scratch, keep, seed)
    reports = [scratch / f"report-{part}.jsonl" for part in range(jobs)]
    workers = [start(plan, part, jobs, report) for part, report in enumerate(reports)]
    follow(workers, reports, len(names))
    return [json.loads(line) for report in reports for line in report.read_text().splitlines()]


def extra(families: Sequence[str]) -> set[str]:
    """Return goods that oracles compare with."""
    return {"run-done"} if "run" in families else set()


def start(plan: Plan, part: int, parts: int, report: Path) -> int:
    """Fork a worker; return its process."""
    report.touch()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work(plan, part, parts, report)
        finally:
            os._exit(code)
    return pid


def follow(workers: Sequence[int], reports: Sequence[Path], total: int) -> None:
    """Wait for WORKERS and say how far they are."""
    waiting, begin, said = set(workers), time.monotonic(), 0.0
    while waiting:
        for pid in list(waiting):
            if os.waitpid(pid, os.WNOHANG)[0]:
                waiting.discard(pid)
        if time.monotonic() - said > 15:
            said = time.monotonic()
            done = sum(report.read_bytes().count(b"\n") for report in reports)
            sys.stderr.write(f"{done:,} of {total:,} inputs, {said - begin:.0f} s\n")
        time.sleep(0.1)


def counts(rows: Sequence[dict[str, Any]]) -> Counter[str]:
    """Return how many inputs had each kind of finding.

    >>> counts([{"found": [["hang", ""], ["hang", ""]]}, {"found": []}])
    Counter({'hang': 1})
    """
    return Counter(kind for row in rows for kind in {kind for kind, _ in row.get("found", ())})
