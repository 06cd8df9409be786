"""What must not happen, and whether it did."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from weighbridge.converters.results.records import rejected_of

from .place import WORK, Entry, changed, within
from .watch import Seen, in_child

LIMIT_BYTES = 1 << 30
LIMIT_TEXT = 2_200  # an error is at most 2,000 characters; the rest is its label and a hint
CODES = (0, 1, 2, 3, 4)
SUCCESS = (0, 4)
REFUSED = (2, 3)
KINDS = {
    "traceback": "tracebacks (exit 70), or an end by a signal",
    "hang": "hangs over 20 s",
    "memory": "peak memory over 1 GB",
    "wrong": "wrong successes",
    "outside": "writes outside the target, leftovers included",
    "source": "sources changed",
    "long": "error texts over 2,000 characters",
    "shell": "another end through the shell",
}


class Ran(NamedTuple):
    """An input that was run.

    Attributes:
        folder: where; the spoiled files lie in it, and the target.
        goods: where the good ones lie.
        argv: the command line.
        target: what it may write, relative to FOLDER; empty if nothing.
        seen: what the child did.
    """

    folder: Path
    goods: Path
    argv: Sequence[str]
    target: str
    seen: Seen


Oracle = Callable[[Ran], Sequence[str]]


@dataclass(frozen=True)
class Finding:
    """Something that must not happen."""

    kind: str
    detail: str


def judge(
    ran: Ran, before: Mapping[str, Entry], after: Mapping[str, Entry], oracle: Oracle | None
) -> list[Finding]:
    """Return what was wrong."""
    found = [*ending(ran.seen), *written(ran, before, after)]
    if ran.seen.code in SUCCESS and oracle and not found:
        found += [Finding("wrong", problem) for problem in asked(oracle, ran)]
    return found


def ending(seen: Seen) -> list[Finding]:
    """Return what was wrong with how the child ended."""
    found = []
    if seen.stopped == "hang":
        found.append(Finding("hang", f"stopped after {seen.seconds:.0f} s"))
    if seen.stopped == "memory" or seen.peak > LIMIT_BYTES:
        found.append(Finding("memory", f"{seen.peak >> 20} MiB"))
    bad = seen.code not in CODES or "Traceback (most recent call last)" in seen.output
    if bad and not seen.stopped:
        found.append(Finding("traceback", f"exit {seen.code}: {last_line(seen.output)}"))
    elif seen.code in REFUSED and len(seen.output) > LIMIT_TEXT:
        found.append(Finding("long", f"{len(seen.output):,} characters: {seen.output[:100]!r}"))
    return found


def last_line(output: str) -> str:
    """Return the line of OUTPUT that names the exception."""
    lines = [line for line in output.splitlines() if line.strip()]
    named = [line for line in lines if not line.startswith((" ", "This is a bug"))]
    return (named or lines or [""])[-1][:300]


def written(ran: Ran, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> list[Finding]:
    """Return what was written, changed or left where it must not."""
    target = str(WORK / ran.target)
    parent, _, name = target.rpartition("/")
    rejected = [str(rejected_of(Path(target), kind)) for kind in ("model", "package")]
    names = (target, *rejected, *(f"{it}.weighbridge.json" for it in (target, rejected[1])))
    free = list(names) if ran.target and ran.seen.code not in REFUSED else []
    stage = f"{parent}/.{name}.staging"
    if ran.target and (stage in before or ran.seen.stopped):
        free.append(stage)
    found = []
    for path in changed(before, after):
        if ran.target and (within(path, free) or parents(path, target, ran.seen.code)):
            continue
        kind = "source" if path in before else "outside"
        found.append(Finding(kind, f"{path} (exit {ran.seen.code})"))
    return found[:5]


def parents(path: str, target: str, code: int) -> bool:
    """Say whether PATH is a folder that had to be made for TARGET."""
    return code not in REFUSED and target.startswith(f"{path}/")


def asked(oracle: Oracle, ran: Ran) -> list[str]:
    """Return what ORACLE says of RAN; it is asked in a child, for the file is a bad one."""

    def job() -> int:
        for problem in oracle(ran):
            sys.stdout.write(f"WRONG {problem[:300]!r}\n")
        return 0

    seen = in_child(job, ran.folder, {})
    said = [line[6:] for line in seen.output.splitlines() if line.startswith("WRONG ")]
    if seen.code:
        said.append(f"an independent reader fails where ours does not: {last_line(seen.output)}")
    return said[:3]
