"""The check before a run: loss and every gradient of the first batch, MLX against PyTorch, and the hardest.

It catches what otherwise shows as a run that does not learn: gradients that are zero because the
forward pass ran outside the differentiated function, parameters that a filter missed, frozen ones
that move, a wrong loss, and a value that is not finite on the longest examples or the largest values.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..converters.common.steps import step as announce
from ..converters.values import Array
from ..errors import MismatchError
from .adapters import probe_values
from .checks.corners import rounding_decides
from .data.batches import Batch
from .objectives.own import NAMED, PREFIX
from .steps.base import Arrays, Step
from .tasks import Parameter

VANISHING: Final = 1e-6  # of the largest gradient: rounding of float32, carried through a network
DETACHED: Final = (
    "the loss depends on nothing that trains: look for no_grad, detach or numpy in the objective"
)
CONSTANT: Final = (
    "every gradient of the first batch is exactly zero, whatever trains: an objective that compares the"
    " examples of a batch wants at least two of them (--set batch_size=2), others a look at their loss"
)
VANISHES: Final = "zero up to rounding (a key's bias cancels in softmax)"
CORNER: Final = (
    "gradients of the first batch differ between backends by {:.1e} where a value lies within rounding of a"
    " corner, such as the zero of a ReLU; they agree at parameters a thousandth beside"
)
BESIDE: Final = 1e-3  # of a parameter
CANCELLED: Final = (
    "zero up to rounding in train mode (batch statistics cancel it), not in eval mode"
)


class PreflightError(MismatchError):
    """A run would not train what it should; carries every reason."""


class Row(NamedTuple):
    """One parameter: the largest absolute gradient per backend, ``None`` where there is none."""

    name: str
    shape: tuple[int, ...]
    trainable: bool
    largest: Mapping[str, float | None]
    difference: float | None  # largest, as a fraction of the largest gradient of all parameters
    note: str


@dataclass(frozen=True)
class Preflight:
    """What the check found.

    Attributes:
        losses: the loss of the first batch by backend.
        rows: one per parameter.
        problems: why the run is refused; empty if it is not.
        probed: adapters whose zero half was given small values for the check.
        hardest: the losses of the hardest batches, by what is hard about them.
        notes: what a user should know of the data.
    """

    losses: Mapping[str, float]
    rows: tuple[Row, ...]
    problems: tuple[str, ...]
    probed: int
    hardest: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the run may start."""
        return not self.problems

    def require(self) -> Preflight:
        """Return itself.

        Raises:
            PreflightError: there are problems.
        """
        if self.problems:
            raise PreflightError("preflight refuses this run", self.problems)
        return self

    def table(self, *, frozen: bool = False) -> tuple[list[str], list[list[str]]]:
        """Return the columns and rows of the table as texts; frozen parameters only on request."""
        backends = list(self.losses)
        columns = ["parameter", "shape", "trains", *(f"|g| {name}" for name in backends)]
        rows = [row for row in self.rows if row.trainable or row.note or frozen]
        return [*columns, "difference", "note"], [_cells(row, backends) for row in rows]

    def summary(self) -> str:
        """Return the verdict in a few lines."""
        trained = [row for row in self.rows if row.trainable]
        differences = [row.difference for row in trained if row.difference is not None]
        size = sum(int(np.prod(row.shape)) for row in trained)
        losses = ", ".join(f"{name} {loss:.7g}" for name, loss in self.losses.items())
        lines = [
            f"{len(trained)} of {len(self.rows)} parameters train ({size:,} numbers); loss {losses}"
        ]
        if differences:
            lines.append(
                f"largest gradient difference {max(differences):.1e} of the largest gradient"
            )
        if self.probed:
            lines.append(
                f"{self.probed} lora_b probed with small values: zero ones hide the gradient of lora_a"
            )
        if self.hardest:
            hard = ", ".join(f"{name} {loss:.7g}" for name, loss in self.hardest.items())
            lines.append(f"loss of the hardest batches: {hard}")
        verdict = (
            "preflight: ok" if self.ok else "\n  ".join(["preflight: refused", *self.problems])
        )
        return "\n".join([*lines, *self.notes, verdict])

    def document(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        rows = [row._asdict() | {"largest": dict(row.largest)} for row in self.rows]
        return {
            "ok": self.ok,
            "losses": _finite(self.losses),
            "hardest": _finite(self.hardest),
            "problems": list(self.problems),
            "notes": list(self.notes),
            "parameters": rows,
        }


class Gradients(NamedTuple):
    """One backend's loss and gradients."""

    loss: float
    arrays: Mapping[str, Array]


class Differentiated(Protocol):
    """What has gradients; see :class:`~.steps.base.Step`."""

    def trainable(self) -> dict[str, Array]:
        """Return a copy of every trainable parameter."""
        ...

    def assign(self, values: Arrays) -> None:
        """Set trainable parameters."""
        ...

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Array]]:
        """Return the loss of BATCH and the gradient of every trainable parameter; change nothing."""
        ...


def check_gradients(
    steps: Mapping[str, Differentiated],
    parameters: Mapping[str, Parameter],
    batch: Batch,
    *,
    seed: int,
    tolerance: float,
) -> Preflight:
    """Take the gradients of BATCH in every backend of STEPS and judge them.

    Where a value lies so near a corner of the loss that rounding decides its side, correct gradients
    differ. What differs is therefore looked at once more at parameters beside these, where a fault is too; and
    the reference's own gradients have to change with its parameters' rounding: else the fault is here alone.

    Args:
        steps: by backend; the reference last.
        parameters: all of the loss module, with what should train.
        batch: the first of the run.
        seed: of the values that replace a zero ``lora_b``; the steps get their own values back.
        tolerance: largest difference accepted, as a fraction of the largest gradient.
    """
    checked = _compared(steps, parameters, batch, partial(probe_values, seed=seed), tolerance)
    apart = max((row.difference or 0.0 for row in checked.rows if row.trainable), default=0.0)
    if checked.ok or not apart > tolerance:
        return checked
    beside = partial(probe_values, seed=seed + 1, beside=BESIDE)
    again = _compared(steps, parameters, batch, beside, tolerance)
    reference = steps[[*steps][-1]]
    if not again.ok or not _near_corner(reference, batch, seed, tolerance):
        return checked
    return replace(again, probed=checked.probed, notes=(CORNER.format(apart),))


def _near_corner(reference: Differentiated, batch: Batch, seed: int, tolerance: float) -> bool:
    """Return whether rounding decides gradients of REFERENCE where they were compared; it keeps its values."""
    own = reference.trainable()
    probed = probe_values(own, seed=seed)
    found = rounding_decides(reference, probed, batch, seed=seed, tolerance=tolerance)
    reference.assign(own)
    return found


def _compared(
    steps: Mapping[str, Differentiated],
    parameters: Mapping[str, Parameter],
    batch: Batch,
    probing: Callable[[dict[str, Array]], dict[str, Array]],
    tolerance: float,
) -> Preflight:
    """Return what the gradients of BATCH are in every backend, at what PROBING makes of the parameters."""
    probed = 0
    found = {}
    for name, step in steps.items():
        announce(f"gradients in {name}")
        own = step.trainable()
        probe = probing(own)
        probed = sum(own[key] is not probe[key] for key in own)
        step.assign(probe)
        found[name] = Gradients(*step.gradients(batch))
        step.assign(own)
    rows = tuple(
        _row(name, parameter, found) for name, parameter in _all(parameters, found).items()
    )
    problems = [*_loss_problems(found, tolerance), *_row_problems(found, rows, tolerance)]
    return Preflight({name: got.loss for name, got in found.items()}, rows, tuple(problems), probed)


def _row_problems(
    found: Mapping[str, Gradients], rows: Sequence[Row], tolerance: float
) -> list[str]:
    """Return what is wrong with the gradients FOUND, by parameter unless one word says it of all."""
    # PyTorch, the last, has no gradient at all of what no loss reaches.
    attached = [*found.values()][-1].arrays
    several = sum(row.trainable for row in rows) > 1
    if not attached or (several and not any(map(_varies, found.values()))):
        return [CONSTANT if attached else DETACHED]
    alive = [row.name for row in rows if row.trainable and not _dead(row)]
    return [text for row in rows for text in _problems(row, tolerance, alive)]


def _varies(found: Gradients) -> bool:
    """Return whether a gradient is anything but zero."""
    return any(np.any(array) for array in found.arrays.values())


def with_hardest(
    checked: Preflight,
    step: Step,
    batches: Iterable[tuple[str, Batch]],
    explain: Callable[[Batch], str],
) -> Preflight:
    """Return CHECKED with what STEP makes of the hardest BATCHES, by what is hard about them.

    Args:
        checked: what was found on the first batch.
        step: the backend that is to train.
        batches: of :func:`~weighbridge.trainers.checks.hardest.hardest_batches`.
        explain: returns in one line why a batch has a loss or a gradient that is not finite.
    """
    losses, problems = {}, []
    for what, batch in batches:
        announce(f"gradients of the {what}")
        losses[what], gradients = step.gradients(batch)
        bad = [name for name, array in gradients.items() if not np.isfinite(array).all()]
        if np.isfinite(losses[what]) and not bad:
            continue
        wrong = f"the gradient of {bad[0]}" if np.isfinite(losses[what]) else "the loss"
        problems.append(f"{what}: {wrong} is not finite in {step.backend}; {explain(batch)}")
    return replace(checked, hardest=losses, problems=(*checked.problems, *problems))


def with_cancelled(checked: Preflight, names: Collection[str]) -> Preflight:
    """Return CHECKED with what is said of the parameters NAMES, which batch statistics cancel."""
    rows = [row._replace(note=CANCELLED) if row.name in names else row for row in checked.rows]
    return replace(checked, rows=tuple(rows))


def with_cause(checked: Preflight, why: Callable[[], str]) -> Preflight:
    """Return CHECKED with WHY the first batch has a value that is not finite, if it has one."""
    sizes = [size for row in checked.rows for size in row.largest.values() if size is not None]
    if np.isfinite([*checked.losses.values(), *sizes]).all():
        return checked
    return replace(checked, problems=(*checked.problems, f"first batch: {why()}"))


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    """Return VALUES as JSON can say them: null for one that is not finite."""
    return {name: value if np.isfinite(value) else None for name, value in values.items()}


def _all(
    parameters: Mapping[str, Parameter], found: Mapping[str, Gradients]
) -> dict[str, Parameter]:
    """Return PARAMETERS, and as frozen ones what has a gradient without being one of them."""
    unknown = {name: value for got in found.values() for name, value in got.arrays.items()}
    return {name: Parameter(value.shape, False) for name, value in unknown.items()} | dict(
        parameters
    )


def _row(name: str, parameter: Parameter, found: Mapping[str, Gradients]) -> Row:
    arrays = [got.arrays.get(name) for got in found.values()]
    largest = {key: _largest(array) for key, array in zip(found, arrays, strict=True)}
    scale = max(
        (_largest(array) or 0.0 for got in found.values() for array in got.arrays.values()),
        default=0.0,
    )
    present = [array for array in arrays if array is not None]
    difference = None
    if len(present) == 2 and scale:
        difference = (_largest(present[0] - present[1]) or 0.0) / scale
    # Exactly zero everywhere is an unused parameter; noise somewhere is a sum that cancels.
    sizes = [size for size in largest.values() if size is not None]
    vanishes = bool(sizes) and 0 < max(sizes) <= VANISHING * scale
    return Row(
        name,
        parameter.shape,
        parameter.trainable,
        largest,
        difference,
        VANISHES if vanishes else "",
    )


def _dead(row: Row) -> list[str]:
    """Return the backends in which the loss does not depend on a parameter."""
    sizes = row.largest.items()
    return [name for name, size in sizes if size is None or (size == 0 and not row.note)]


def _problems(row: Row, tolerance: float, alive: Collection[str]) -> list[str]:
    if not row.trainable:
        return [
            f"{row.name}: is frozen but has a gradient in {backend}"
            for backend, size in row.largest.items()
            if size is not None
        ]
    wild = [
        name for name, size in row.largest.items() if size is not None and not np.isfinite(size)
    ]
    if dead := _dead(row):
        freeze, where = _freeze(row.name, alive), " and ".join(dead)
        return [f"{row.name}: trainable, but the loss does not depend on it in {where}; {freeze}"]
    if wild:
        return [f"{row.name}: its gradient is not finite in {' and '.join(wild)}"]
    if row.difference is not None and not row.difference <= tolerance:
        gates = f"by {row.difference:.1e}, accepted is {tolerance:.0e}"
        return [f"{row.name}: gradients differ {gates}"]
    return []


def _freeze(name: str, alive: Collection[str]) -> str:
    """Return what to do about the parameter NAME, which has no gradient: freeze none of those that are ALIVE."""
    if not name.startswith(PREFIX):
        return f"freeze it (--set freeze=[{NAMED}{name}]) or correct the objective"
    name = name.removeprefix(PREFIX)
    parts = name.split(".")
    paths = [".".join(parts[:count]) for count in range(1, len(parts))]
    path = next((it for it in paths if not any(it in other for other in alive)), name)
    return f"freeze it (--set freeze=[{path}]) or correct the model"


def _loss_problems(found: Mapping[str, Gradients], tolerance: float) -> list[str]:
    losses = {name: got.loss for name, got in found.items()}
    problems = [f"loss: {loss} in {name}" for name, loss in losses.items() if not np.isfinite(loss)]
    values = list(losses.values())
    if not problems and max(values) - min(values) > tolerance * max(1.0, abs(values[-1])):
        problems.append(
            "loss: " + " but ".join(f"{loss:.7g} in {name}" for name, loss in losses.items())
        )
    return problems


def _largest(array: Array | None) -> float | None:
    return None if array is None else float(np.abs(array).max(initial=0.0))


def _cells(row: Row, backends: Sequence[str]) -> list[str]:
    sizes = [row.largest.get(name) for name in backends]
    figures = ["-" if size is None else f"{size:.2e}" for size in sizes]
    difference = "-" if row.difference is None else f"{row.difference:.1e}"
    shape = "x".join(map(str, row.shape)) or "1"
    return [row.name, shape, "yes" if row.trainable else "no", *figures, difference, row.note]
