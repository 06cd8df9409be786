"""What a check says: stages in order, a status that never claims more than was seen."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...converters.common.exits import Exit

if TYPE_CHECKING:
    from ..blame.blame import Fault

SCHEMA: Final = 1
STATUSES: Final = ("PASS", "PASS-REFERENCE", "PASS-PRECISION-ONLY", "DIFFERS", "UNVERIFIED")
STAGES: Final = (
    "base",
    "compressed",
    "dequantized",
    "loaded",
    "moved",
    "pairs",
    "text",
    "configuration",
    "fingerprints",
    "layout",
    "processor",
    "towers",
    "auxiliary",
    "outputs",
    "structure",
    "lengths",
    "reach",
    "batch",
    "decoding",
    "live",
    "precision",
    "activations",
)  # in the order in which the first failure explains the later ones
RUN: Final = frozenset({"structure", "live"})  # without one of them nothing was seen to compute
EXITS: Final = {"PASS": Exit.DONE, "PASS-REFERENCE": Exit.DONE, "DIFFERS": Exit.DIFFERENT}


class Stage(NamedTuple):
    """One question that a check asks.

    Attributes:
        name: one of ``STAGES``.
        status: ``pass``; ``fail``; ``skipped``, the question does not arise for this pair; or
            ``unverified``, it does arise and could not be answered.
        detail: one line for a reader.
        figures: numbers behind the status, JSON values.
    """

    name: str
    status: str
    detail: str
    figures: dict[str, Any] = {}  # noqa: RUF012  # never written to


WEAKER: Final = ("PASS-PRECISION-ONLY", "PASS-REFERENCE")  # than PASS, the weakest first


@dataclass(frozen=True)
class Verdict:
    """The result of a check.

    Attributes:
        status: one of ``STATUSES``.
        stages: in the order in which they ran.
        faults: where the two sides part, as far as blame could tell.
        provenance: runtimes, versions, devices, hashes of both sides, what was not checked.
        upstream: the class of a library that alone is at fault where the status is DIFFERS, the weights
            being right; else empty.
    """

    status: str
    stages: tuple[Stage, ...]
    faults: tuple[Fault, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    upstream: str = ""

    @property
    def passed(self) -> bool:
        """Whether the check found the two sides to agree, within what it could see."""
        return self.status.startswith("PASS")

    def stage(self, name: str) -> Stage | None:
        """Return the stage called NAME, if it ran."""
        return next((stage for stage in self.stages if stage.name == name), None)

    def preceded_by(self, stage: Stage) -> Verdict:
        """Return this verdict with STAGE before the others: it does not pass where STAGE does not.

        >>> Verdict("PASS", ()).preceded_by(Stage("base", "unverified", "")).status
        'UNVERIFIED'
        """
        capped = {"fail": "DIFFERS", "unverified": "UNVERIFIED" if self.passed else self.status}
        status = capped.get(stage.status, self.status)
        return replace(self, stages=(stage, *self.stages), status=status)

    def after(self, earlier: Verdict, name: str) -> Verdict:
        """Return this verdict as the second half of a check whose first half, NAME, was EARLIER.

        >>> Verdict("PASS", ()).after(Verdict("PASS-REFERENCE", ()), "source").status
        'PASS-REFERENCE'
        >>> Verdict("PASS", ()).after(Verdict("UNVERIFIED", ()), "source").status
        'UNVERIFIED'
        """
        stage = Stage(name, "pass" if earlier.passed else "unverified", earlier.status)
        both = self.preceded_by(stage)
        weaker = [it for it in WEAKER if it in (both.status, earlier.status)]
        return replace(both, status=weaker[0]) if both.passed and weaker else both

    def exit_code(self, accept: str | Collection[str] = ()) -> int:
        """Return the exit code; a level named in ACCEPT counts as success.

        DIFFERS never does, but where only a library's class is at fault, by ``UPSTREAM``.

        >>> unverified = Verdict("UNVERIFIED", ())
        >>> int(unverified.exit_code()), int(unverified.exit_code("UNVERIFIED"))
        (4, 0)
        """
        accepted = {accept} if isinstance(accept, str) else set(accept or ())
        if self.status in accepted - {"DIFFERS"} or self.excused(accepted):
            return Exit.DONE
        return EXITS.get(self.status, Exit.UNDECIDED)

    def excused(self, accept: Collection[str]) -> bool:
        """Say whether ACCEPT allows what differs: only a library's class is at fault.

        >>> Verdict("DIFFERS", (), upstream="mlx_lm.models.llama").excused({"UPSTREAM"})
        True
        """
        return self.status == "DIFFERS" and bool(self.upstream) and "UPSTREAM" in accept

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, infinities as ``"inf"``, which any reader takes."""
        content = asdict(self)
        content["stages"] = [stage._asdict() for stage in self.stages]
        content["faults"] = [fault._asdict() for fault in self.faults]
        found: dict[str, Any] = plain({"schema": SCHEMA, **content})
        return found


def plain(value: Any) -> Any:
    """Return VALUE with numbers that JSON lacks as text, tuples as lists.

    >>> plain({"ratio": float("inf"), "shape": (2, 3)})
    {'ratio': 'inf', 'shape': [2, 3]}
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def decide(stages: Collection[Stage], runtime: str) -> str:
    """Return the status that STAGES allow.

    A failure anywhere is DIFFERS. What arises and was not answered makes it UNVERIFIED, but for
    structure alone: where no float32 run was possible and precision passed, PASS-PRECISION-ONLY.

    >>> decide([Stage("structure", "pass", ""), Stage("precision", "skipped", "")], "mlx")
    'PASS'
    """
    by_status: dict[str, set[str]] = {}
    for stage in stages:
        by_status.setdefault(stage.status, set()).add(stage.name)
    if "fail" in by_status:
        return "DIFFERS"
    open_questions = by_status.get("unverified", set())
    answered = by_status.get("pass", set())
    if open_questions == {"structure"} and "precision" in answered:
        return "PASS-PRECISION-ONLY"
    if open_questions or not answered & RUN:
        return "UNVERIFIED"
    return "PASS-REFERENCE" if runtime == "reference" else "PASS"
