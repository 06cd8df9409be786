"""The one way in which a verb writes a result: staged, recorded, checked, published or kept aside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from ..converters.checkpoints import Sources, Staging, require_target
from ..converters.planning.manifest import write_manifest
from ..errors import WeighbridgeError
from ..parity.check.verdict import Verdict

UNCHECKED: Final = "UNVERIFIED"
MANIFESTS: Final = frozenset({"model", "adapter"})  # kinds with a manifest inside
NOTED: Final = frozenset(
    {"package", "asset", "gguf", "onnx", "graph"}
)  # kinds with their facts in the record of their files
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """What a verb did.

    Attributes:
        target: what was published, or where the rejected result lies; ``None`` for a dry run.
        plan: the plan, a line each.
        facts: what the manifest says.
        verdict: the parity verdict, ``None`` where nothing was checked.
        wanted: whether a check was asked for.
    """

    target: Path | None
    plan: tuple[str, ...] = ()
    facts: Facts = field(default_factory=dict)
    verdict: Verdict | None = None
    wanted: bool = False

    @property
    def status(self) -> str:
        """The verdict's status; UNVERIFIED where nothing was checked."""
        return self.verdict.status if self.verdict else UNCHECKED


class Written(NamedTuple):
    """What was written: what its manifest says, and the plan it was written by, a line each."""

    facts: Facts
    plan: tuple[str, ...] = ()


class Checked(NamedTuple):
    """A verdict over what was written, and what the manifest says of the check besides."""

    verdict: Verdict
    facts: Facts = MappingProxyType({})


Write = Callable[[Path], Written]
Check = Callable[[Path, Facts], Checked]


class Target(NamedTuple):
    """Where a result is to be, and what it is made from.

    Attributes:
        path: the file or directory.
        kind: what it is, a key of ``results.records.KINDS``.
        force: whether an earlier result of ours is replaced.
        sources: the files that the job reads, as they were when it began.
        accept: verdicts that count as success.
        obstacle: why nothing could be written there, where nothing is to be.
    """

    path: Path
    kind: str
    force: bool
    sources: Sources
    accept: Collection[str] = ()
    obstacle: str = ""

    @classmethod
    def begin(
        cls, path: Path, kind: str, *reads: str | Path | None, force: bool, dry_run: bool = False
    ) -> Self:
        """Return the target of a job that begins now and READS these.

        A path that could not be written is refused before anything takes time; for a dry run it is noted.

        Raises:
            TargetExistsError: something is there that is not to be replaced.
            WeighbridgeError: nothing can be written there.
        """
        obstacle = ""
        try:
            require_target(path, kind, force=force)
        except WeighbridgeError as error:
            if not dry_run:
                raise
            obstacle = str(error)
        return cls(path, kind, force, Sources.of(*reads), obstacle=obstacle)

    def planned(self, plan: Sequence[str]) -> Outcome:
        """Return the outcome of a dry run: its PLAN, and what stands in its way."""
        return Outcome(None, (*plan, *([self.obstacle] if self.obstacle else [])))


def publish(target: Target, key: str, write: Write, check: Check | None = None) -> Outcome:
    """Put at TARGET what WRITE makes, if CHECK does not find that it differs from its source.

    Args:
        target: where, and made from what.
        key: what a killed run must have in common with this one to be resumed; empty for none.
        write: writes the result to the place it is given, beside its target.
        check: compares what lies there, of which these facts are known, with the source; ``None``
            where no check is wanted.

    Returns:
        The outcome; a result that differs lies in ``TARGET.rejected``.

    Raises:
        WeighbridgeError: as WRITE and CHECK do, or a source has changed; nothing is left behind.
    """
    path, kind, force, sources, accept, _ = target
    with Staging(path, kind=kind, force=force, key=key, sources=sources) as staging:
        written = write(staging.item)
        facts, verdict = dict(written.facts), None
        _note(staging, facts, UNCHECKED)
        if check:
            verdict, more = check(staging.item, facts)
            facts |= more
            _note(staging, facts, verdict.to_json())
        differs = verdict is not None and verdict.status == "DIFFERS"
        differs = differs and not (verdict and verdict.excused(accept))
        there = staging.reject() if differs else staging.publish()
    return Outcome(there, written.plan, facts, verdict, wanted=check is not None)


def _note(staging: Staging, facts: Facts, verdict: object) -> None:
    """Keep FACTS and VERDICT with what is staged, where its kind has a place for them."""
    if staging.kind in MANIFESTS:
        write_manifest(staging.item, {**facts, "verdict": verdict})
    elif staging.kind in NOTED:
        staging.note({**facts, "verdict": verdict})
