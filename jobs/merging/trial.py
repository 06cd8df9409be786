"""Trials: what each form of a weight would keep of an adapter that is merged into a quantized base."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from ...converters.adapters.merging.affected import AffectedWeight, Change, Index
from ...converters.adapters.merging.statistics import ENOUGH, ERASED, Measured, measure
from ...converters.adapters.merging.survival import Survival
from ...converters.checkpoints import Checkpoint, Header
from ...converters.common.dtypes import FLOATS
from ...converters.common.steps import each
from ...converters.models import Model
from ...converters.quantization import Dequantized
from ...converters.quantization.forms import common_dtype, own_form, wider
from ...converters.values import LowRank
from ...errors import BadInputError, MismatchError

RANK: Final = (ERASED, "warn", ENOUGH)


class Trial(NamedTuple):
    """The forms that were tried of one weight, and what each keeps of its change.

    Attributes:
        weight: the weight and its change.
        tried: the base's own form first, then wider ones until one keeps the change.
    """

    weight: AffectedWeight
    tried: tuple[Measured, ...]

    @property
    def own(self) -> Measured:
        """The weight in the base's own form."""
        return self.tried[0]

    @property
    def best(self) -> Measured:
        """The weight in the smallest form that keeps the change, or in the one that keeps most."""
        return max(self.tried, key=lambda it: (RANK.index(it.verdict), it.fits, it.survival.cosine))

    def growth(self, chosen: Measured) -> int:
        """Return how many bytes more the weight takes in the form CHOSEN than in its own."""
        shape = self.weight.shape
        return chosen.form.nbytes(shape) - self.own.form.nbytes(shape)


Trials = Mapping[str, Trial]


def tensors_of(model: Model) -> Dequantized:
    """Return the tensors of MODEL, which is quantized.

    Raises:
        BadInputError: it is not.
    """
    if not isinstance(model.tensors, Dequantized):
        raise BadInputError(f"{model.spec} is not quantized; it is merged into as it is")
    return model.tensors


def changes_of(model: Model) -> dict[str, Change]:
    """Return what the adapter that is live on MODEL changes, by weight.

    Raises:
        BadInputError: there is no adapter, or nothing in it.
    """
    adapter = model.adapter
    changes: dict[str, Change] = {**adapter.updates, **adapter.saved} if adapter else {}
    if not changes:
        raise BadInputError(f"{model.spec}: no adapter is live on it, so there is nothing to merge")
    return changes


def affected_weights(
    changes: Mapping[str, Change],
    tensors: Dequantized,
    source: Checkpoint | None = None,
    rounded: Collection[str] = (),
) -> list[AffectedWeight]:
    """Return the weights of TENSORS that CHANGES change, every one of them.

    SOURCE holds their values before the merge where that is not the base itself; the changes of ROUNDED
    were trained on the grids of TENSORS.

    Raises:
        MismatchError: some are not in the base, of another shape there, or no floating-point
            numbers; lists all.
    """
    headers = (source or tensors).headers
    problems = [
        problem
        for name, change in sorted(changes.items())
        if (problem := misfit(name, change, headers))
    ]
    if problems:
        fitting = f"{len(changes) - len(problems)} of {len(changes)}"
        raise MismatchError(f"{fitting} changes of the adapter fit {tensors.path}", problems)
    return [
        AffectedWeight(
            name,
            headers[name].shape,
            own_form(tensors, name),
            change,
            tensors,
            source,
            name in rounded and isinstance(change, LowRank),
        )
        for name, change in changes.items()
    ]


def misfit(name: str, change: Change, headers: Mapping[str, Header]) -> str:
    """Say why CHANGE is no change of the weight NAME; nothing if it is one."""
    header = headers.get(name)
    if header is None:
        return f"{name} is not in the base"
    if header.dtype not in FLOATS:
        return f"{name} holds {header}, which nothing is merged into"
    if change is not None and tuple(change.shape) != header.shape:
        return f"{name}: expected {list(header.shape)}, found a change of {list(change.shape)}"
    return ""


def try_forms(layers: Iterable[AffectedWeight], *, widen: bool = True) -> Trials:
    """Return what each of LAYERS keeps of its change, the wider forms tried where WIDEN.

    Every figure is measured on the weight as it would be stored, or on some of its rows.
    """
    weights = each("measuring what survives the rounding: weight", list(layers))
    return {it.name: Trial(it, tuple(tried(it, widen=widen))) for it in weights}


def tried(weight: AffectedWeight, *, widen: bool) -> list[Measured]:
    """Return WEIGHT measured in its own form and, if need be, in wider ones until one is enough."""
    found = [measure(weight, weight.own)]
    common = common_dtype(weight.tensors)
    forms = wider(weight.own, weight.shape, common) if widen else ()
    for form in forms:
        if found[-1].verdict == ENOUGH or found[-1].broken:
            break
        found.append(measure(weight, form))
    return found


def survivals(chosen: Mapping[str, Measured]) -> dict[str, Survival]:
    """Return the figures of the forms CHOSEN; the worst expert is named where there are several."""
    return {labelled(name, it.part): it.survival for name, it in chosen.items()}


def labelled(name: str, part: Index) -> str:
    """Return the weight NAME with the index of its PART.

    >>> labelled("up.weight", (3,)), labelled("up.weight", ())
    ('up.weight[3]', 'up.weight')
    """
    return f"{name}[{', '.join(map(str, part))}]" if part else name


def require_finite(chosen: Mapping[str, Measured], where: object) -> None:
    """Refuse to merge what is not a number.

    Raises:
        MismatchError: there is such a thing in the weights CHOSEN of the model WHERE; lists all.
    """
    problems = [f"{name}: {it.broken}" for name, it in sorted(chosen.items()) if it.broken]
    if problems:
        raise MismatchError(f"NaN or infinity in weights of {where} that are merged", problems)
