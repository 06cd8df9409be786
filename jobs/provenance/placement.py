"""Put an adapter on the base that it is to be merged into; another base or a second merge is refused."""

from __future__ import annotations

from pathlib import Path

from ...converters.adapters import Adapter
from ...converters.common.hints import command, unused
from ...converters.common.repositories import local
from ...converters.models import Model
from ...converters.models.specs import split_adapter
from ...converters.planning.opening import with_adapter
from ...errors import BadInputError
from .base import Provenance, adapter_for, provenance_of, require_right_base, unrounded
from .merged_before import refuse_recorded
from .unrecorded import refuse_unrecorded


def placed(model: Model, adapter: Adapter, provenance: Provenance, *originals: Model) -> Model:
    """Return MODEL, dequantized, with ADAPTER live on it, to be merged.

    Args:
        model: the base, without an adapter.
        adapter: as read.
        provenance: what MODEL is to the base that ADAPTER was trained on.
        originals: what MODEL was made from, as far as the user named it.

    Raises:
        MismatchError: ADAPTER is partial, or in MODEL already, or was trained on another base.
    """
    live = with_adapter(model, adapter)
    refuse_recorded(live)
    require_right_base(provenance)
    refuse_unrecorded(live, provenance, *originals)
    return live


def live_on(model: Model, path: Path) -> tuple[Model, Provenance]:
    """Return MODEL, dequantized, with the adapter at PATH live on it, and what it is to its base.

    Raises:
        MismatchError: as :func:`placed`.
    """
    adapter = adapter_for(model, path)
    provenance = provenance_of(model, adapter)._replace(unrounded=unrounded(adapter))
    return placed(model, adapter, provenance), provenance


def base_and_adapter(spec: str, adapter: Path | None = None) -> tuple[str, Path | None]:
    """Return the base that SPEC names and the adapter to be merged: of ``BASE+ADAPTER``, or ADAPTER.

    Raises:
        BadInputError: there are two.
    """
    base, named = split_adapter(local(spec)) if "+" in spec else (None, None)
    if named and adapter:
        between = unused(str(base), "-merged")
        raise BadInputError(
            f"{spec} names an adapter, and {adapter} is another; merge them one after the other:"
            f" {command('merge', str(base), named, between)}, and then the other into {between}"
        )
    return (str(base), named) if named else (spec, adapter)
