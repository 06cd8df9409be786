"""Merge an adapter into its base, whatever the base's bits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..converters.adapters import read_adapter
from ..converters.models import Model
from ..converters.quantization import Dequantized
from .adapter_weighing import change_of_base
from .bases import dense_view, live_on, require_kin
from .convert import move
from .kinship import proven
from .merging import merge_quantized
from .options import Options, Outcome, open_with


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
    whole, read = open_with(base, options), read_adapter(adapter)
    if trained_on:
        require_kin(proven(whole, read, trained_on, options))
    model = live_on(dense_view(whole), read, proven=bool(trained_on))
    if not isinstance(model.tensors, Dequantized):
        outcome = move(model, target, model.framework, options)
        return with_figures(outcome, model, trained_on, options) if trained_on else outcome
    original = dense_view(open_with(options.original, options)) if options.original else None
    return merge_quantized(
        model, target, options, promote=promote, force=options.force, original=original
    )


def with_figures(outcome: Outcome, model: Model, trained_on: str, options: Options) -> Outcome:
    """Return OUTCOME with how far the live adapter on TRAINED_ON is from the one on MODEL."""
    if outcome.verdict is None:
        return outcome
    assert model.adapter is not None  # noqa: S101  (it was merged)
    figures = change_of_base(replace(model, adapter=None), model.adapter, trained_on, options)
    return replace(outcome, facts={**outcome.facts, "figures": figures})
