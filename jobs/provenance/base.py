"""The base of an adapter: seen dense, and held against the model that the adapter was trained on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...converters.adapters import Adapter, read_adapter
from ...converters.adapters.config import read_config
from ...converters.adapters.open import GRIDS
from ...converters.models import Model
from ...converters.planning.adapter_names import side_of
from ...converters.planning.view import converted_view, dense_view
from ...converters.quantization import Dequantized
from ...converters.quantization.provenance.made_from import provenance_from
from ...errors import BadInputError, MismatchError, WeighbridgeError
from ...parity.check.verdict import Stage, Verdict
from ..options import ReadOptions
from .recorded import held

MISMATCH = "mismatch"


class Provenance(NamedTuple):
    """What a base is to the one that an adapter was trained on.

    Attributes:
        status: ``same``, ``other recipe``, ``mismatch``; ``unproven`` where what is recorded cannot be
            compared, ``unknown`` where nothing is recorded.
        message: one line.
        problems: what differs.
        trained_on: spec of the other base, if one was named.
        certain: whether no sibling, fine-tuned by less than rounding shows, could pass for it.
        unrounded: what says that updates were trained by sums that this base does not round; else empty.
    """

    status: str
    message: str
    problems: tuple[str, ...] = ()
    trained_on: str | None = None
    certain: bool = True
    unrounded: str = ""


UNKNOWN: Final = Provenance("unknown", "nobody recorded what the adapter was trained on")


def quantization_of(model: Model) -> Mapping[str, Any] | None:
    """Return what MODEL's directory records of its quantization."""
    if isinstance(model.tensors, Dequantized):
        recipe = model.tensors.recipe
        return recipe.recorded() if recipe else None
    return None


def provenance_of(base: Model, adapter: Adapter, *others: Model) -> Provenance:
    """Return what BASE, seen dense, is to the model that ADAPTER recorded that it was trained on.

    OTHERS are models that are proven to have BASE's weights; the record may be of one of them.
    """
    recorded, spec = adapter.base.get("tensors") or {}, adapter.base.get("spec")
    if not recorded:
        return UNKNOWN
    found, whole = [held(model, adapter) for model in (base, *others)], len(recorded)
    same = [it for it in found if it is not None and not it.other and not it.unclear]
    if same:
        cast = f", in {' and '.join(sorted(same[0].cast))}" if same[0].cast else ""
        return Provenance("same", f"the {whole} weights that are updated are those recorded{cast}")
    if found[0] is None or not found[0].other:
        return Provenance(
            "unproven",
            f"the adapter was trained on {spec}, in {adapter.base.get('framework')}; {base.spec} is in"
            f" {base.framework}, and its weights carried there are not the same bytes: another dtype,"
            " or another base",
        )
    problems = found[0].other
    there = spec if spec and Path(spec).is_dir() else "DIR"
    return Provenance(
        MISMATCH,
        f"{len(problems)} of {whole} weights of the base are not those that the adapter was trained"
        f" on ({spec}); if that one is a quantized sibling, prove it: --trained-on {there}",
        problems,
    )


def with_provenance(verdict: Verdict, provenance: Provenance) -> Verdict:
    """Return VERDICT, which does not pass where PROVENANCE was not established."""
    stage = provenance_stage(provenance)
    return verdict.preceded_by(stage) if stage.status == "unverified" else verdict


def provenance_stage(provenance: Provenance) -> Stage:
    """Return the stage that says whether the base is the right one."""
    known = {"same": "pass", "unknown": "skipped", "unproven": "unverified"}
    known["other recipe"] = "pass" if provenance.certain else "unverified"
    status = known.get(provenance.status, "fail")
    if provenance.unrounded and status != "fail":
        return Stage("base", "unverified", f"{provenance.message}; {provenance.unrounded}")
    return Stage("base", status, provenance.message)


def unrounded(adapter: Adapter, rounded: Collection[str] = ()) -> str:
    """Say which updates of ADAPTER were trained by rounded sums, but those of ROUNDED; nothing where none was."""
    recorded = adapter.base.get(GRIDS) or {}
    others = recorded.keys() - set(rounded)
    if not others:
        return ""
    return (
        f"{len(others)} of {len(recorded)} updates that quantize_aware trained were trained by sums rounded to the"
        f" scales of {adapter.base.get('spec') or 'a quantized base'}, which are not rounded so here: this is"
        " another model than the one that was trained"
    )


def require_right_base(provenance: Provenance) -> None:
    """Refuse a base that is truly another one.

    Raises:
        MismatchError: it is.
    """
    if provenance.status == MISMATCH:
        raise MismatchError(provenance.message, list(provenance.problems))


def adapter_for(model: Model, path: Path) -> Adapter:
    """Read the adapter at PATH, to be put on MODEL.

    What PEFT's names mean, transformers is asked first, where nobody has kept its answer: that takes
    memory, which is given back before the tensors need some.

    Raises:
        WeighbridgeError: PATH is not an adapter, or not a whole one.
    """
    folder = path.parent if path.is_file() else path
    with suppress(WeighbridgeError, OSError):
        if "peft_type" in read_config(folder):
            side_of(model, "torch")
    return read_adapter(path)


def proven(base: Model, adapter: Adapter, trained_on: str, options: ReadOptions) -> Provenance:
    """Hold BASE against the quantized model TRAINED_ON, and both against what ADAPTER recorded.

    Raises:
        BadInputError: TRAINED_ON is not quantized.
        MismatchError: the two have not the same tensors.
    """
    other = dense_view(options.open(trained_on))
    if not isinstance(other.tensors, Dequantized):
        raise BadInputError(
            f"--trained-on {trained_on} is not quantized; an adapter trained on it fits as it is:"
            f" name it as the base"
        )
    original = converted_view(dense_view(base), "mlx", options.original)
    found = provenance_from(other.tensors, original.checkpoint)
    record = provenance_of(dense_view(base), adapter, other)
    if record.status == MISMATCH:  # it was trained on neither
        return record
    return Provenance(found.status, found.message, tuple(found.lines()), trained_on, found.certain)
