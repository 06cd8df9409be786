"""Merge an adapter into its base, whatever the base's bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...converters.common.hints import command, unused
from ...converters.models import Model
from ...converters.planning.dense import METHOD, PACKING
from ...converters.planning.transcoding import quantized_view
from ...converters.planning.view import dense_view
from ...converters.quantization import Dequantized
from ...errors import BadInputError, UnsupportedError
from ..adapter_check import change_of_base
from ..converting import move
from ..options import Options
from ..pipeline import Outcome
from ..provenance.base import Provenance, adapter_for, proven, provenance_of, unrounded
from ..provenance.placement import base_and_adapter, placed
from .quantized import merge_quantized


def merge(
    base: str,
    adapter: Path,
    target: Path,
    *,
    promote: bool = False,
    trained_on: str | None = None,
    options: Options = Options(),
) -> Outcome:
    """Merge ADAPTER into BASE, names and layouts as they are.

    Args:
        base: spec of the model.
        adapter: directory of the adapter, in any dialect.
        target: directory to write.
        promote: keep layers of a quantized BASE at more bits where the update would be lost.
        trained_on: the quantized sibling of BASE that the adapter was trained on.
        options: as for every verb that writes; ``original`` is what a quantized BASE was made from.

    Raises:
        WeighbridgeError: bad input, or an update would be rounded away; nothing is left behind.
    """
    place = options.begin(target, "model", base, adapter, trained_on)
    base, _ = base_and_adapter(base, adapter)
    original = dense_view(options.open(options.original)) if options.original else None
    model, provenance = live(base, adapter, original, trained_on, options)
    if isinstance(model.tensors, Dequantized):
        ways: dict[str, Any] = {"promote": promote, "original": original}
        outcome = merge_quantized(model, place, options, provenance=provenance, **ways)
    else:
        refuse_ways(base, promote=promote, original=options.original)
        assert model.adapter is not None  # noqa: S101  (it is merged)
        provenance = provenance._replace(unrounded=unrounded(model.adapter))
        outcome = move(model, place, model.framework, options, provenance)
        outcome = with_figures(outcome, model, trained_on, options) if trained_on else outcome
    return noted(outcome, provenance)


def live(
    base: str, adapter: Path, original: Model | None, trained_on: str | None, options: Options
) -> tuple[Model, Provenance]:
    """Open BASE with ADAPTER live on it; return what BASE is to the model that it was trained on.

    Raises:
        MismatchError: ADAPTER is for another model, or in BASE or ORIGINAL already.
    """
    whole = options.open(base)
    _require_ours(whole)
    dense = dense_view(whole)
    read = adapter_for(dense, adapter)
    others = [original] if original else []
    if trained_on:
        provenance = proven(whole, read, trained_on, options)
    else:
        provenance = provenance_of(dense, read, *others)
    return placed(dense, read, provenance, *others), provenance


def _require_ours(base: Model) -> None:
    """Refuse a BASE whose codes are stored in a format that no merge writes, such as GPTQ.

    Raises:
        UnsupportedError: it is one; says what else there is.
    """
    if base.framework == "torch" and quantized_view(base) is not base:
        raise UnsupportedError(
            f"{base.spec} is quantized as {base.config[PACKING][METHOD]}, and codes of that format are not"
            " merged into; keep the adapter live, or merge it into the MLX form of this model:"
            f" {command('convert', 'torch-to-mlx', base.spec, unused(base.spec, '-mlx'))}"
        )


def refuse_ways(base: str, *, promote: bool, original: str | None) -> None:
    """Refuse what is for quantized bases only.

    Raises:
        BadInputError: one of them was asked for.
    """
    if promote or original:
        asked = "--promote" if promote else "--original"
        raise BadInputError(f"{base} is not quantized, so {asked} does not apply; leave it away")


def noted(outcome: Outcome, provenance: Provenance) -> Outcome:
    """Return OUTCOME with what is to be reported of the base."""
    known = provenance.status in {"same", "unknown"}
    lines = [it for it in ("" if known else provenance.message, provenance.unrounded) if it]
    plan = (*outcome.plan, *(f"note: {it}" for it in lines))
    notes = [*outcome.facts.get("notes", ()), *lines]
    facts = {**outcome.facts, "notes": notes} if lines else outcome.facts
    return replace(outcome, plan=plan, facts=facts)


def with_figures(outcome: Outcome, model: Model, trained_on: str, options: Options) -> Outcome:
    """Return OUTCOME with how far the live adapter on TRAINED_ON is from the one on MODEL."""
    if outcome.verdict is None:
        return outcome
    assert model.adapter is not None  # noqa: S101  (it was merged)
    figures = change_of_base(replace(model, adapter=None), model.adapter, trained_on, options)
    return replace(outcome, facts={**outcome.facts, "figures": figures})
