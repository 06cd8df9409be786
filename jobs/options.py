"""What every writing verb takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..converters.checkpoints import Sources, require_target
from ..converters.models import Model
from .opening import open as open_model

if TYPE_CHECKING:
    from ..parity.check.verdict import Verdict

UNCHECKED = "UNVERIFIED"
Advance = Callable[[int], None]
Reporter = Callable[[str, int], Advance]


def silent(_: str, __: int) -> Advance:
    """Report no progress."""
    return lambda _amount: None


@dataclass(frozen=True)
class Options:
    """What every writing verb accepts.

    Attributes:
        force: replace the target, atomically.
        dry_run: stop after pass 1 and return the plan.
        check: ``full``, ``quick`` or ``none``.
        map: name or path of a ``.wmap``.
        trust_code: ``module:function`` that builds the architecture.
        inputs: an ``.npz`` of a user's own inputs, in place of probes.
        candidate_code: the same for the checked side alone, such as a native MLX module.
        original: directory or hub name of the checkpoint an MLX model comes from; ``none`` to go
            home without what only it has.
        sidecar: which tensors the way home may need are kept: ``small``, ``all`` or ``none``.
        max_shard_size: bytes per weights file.
        sources: the files that the job reads, as they were when it began.
        report: receives progress.
    """

    force: bool = False
    dry_run: bool = False
    check: str = "quick"
    map: str | None = None
    trust_code: str | None = None
    candidate_code: str | None = None
    inputs: Path | None = None
    original: str | None = None
    sidecar: str = "small"
    max_shard_size: int = 5_000_000_000
    sources: Sources = field(default=Sources(), repr=False)
    report: Reporter = field(default=silent, repr=False)


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
    facts: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None
    wanted: bool = False

    @property
    def status(self) -> str:
        """The verdict's status; UNVERIFIED where nothing was checked."""
        return self.verdict.status if self.verdict else UNCHECKED


def begin(target: Path, kind: str, options: Options, *specs: str | Path | None) -> Options:
    """Return the OPTIONS of a job that begins now and reads SPECS, and what the options name.

    A TARGET that could not be written is refused before anything takes time; not for a dry run.

    Raises:
        TargetExistsError: something is there that is not to be replaced.
        WeighbridgeError: nothing can be written there.
    """
    if not options.dry_run:
        require_target(target, kind, force=options.force)
    named = (options.map, options.original, options.inputs)
    return replace(options, sources=Sources.of(*specs, *named))


def open_with(spec: str, options: Options) -> Model:
    """Open SPEC with the options that concern a model."""
    return open_model(spec, trust_code=options.trust_code, map=options.map)
