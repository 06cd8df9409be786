"""Adapters in a model that nobody recorded: found by their values, where an unmerged model is at hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from math import prod, sqrt
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ...converters.adapters.merging.affected import blocks, with_change
from ...converters.checkpoints import Checkpoint
from ...converters.common.dtypes import unit_roundoff
from ...converters.common.repositories import recorded_path
from ...converters.maps.execution.view import Mapped
from ...converters.models import Model
from ...converters.models import open as open_model
from ...converters.models.specs import exists, split_adapter
from ...converters.planning.adapter_names import crossing
from ...converters.planning.manifest import manifest_of
from ...converters.planning.view import dense_view
from ...converters.quantization import Dequantized
from ...converters.quantization.rounding import round_once
from ...converters.values import LowRank
from ...errors import MismatchError, WeighbridgeError
from .base import Provenance
from .merged_before import adapters_in

ENOUGH: Final = 8  # weights that are looked at, the smallest ones
SIGMAS: Final = 6.0


class Share(NamedTuple):
    """How much of an update is in a weight already.

    With ``D`` the update and ``R`` what the weight has moved from its original, as parts of ``<D, D>``:

    Attributes:
        found: ``<R, D>``.
        whole: what it would be right after a merge, whose rounding is computed: about 1.
        bound: how far the two may be apart. What else has moved the weight, its rounding and other
            updates, knows nothing of ``D``: of a vector of length ``r`` in ``n`` dimensions about
            ``r / sqrt(n)`` lies along ``D`` by chance, and six times that is allowed; besides two
            unit roundoffs of the dtype, for programs that round the update before they add it.
    """

    found: float
    whole: float
    bound: float

    @property
    def tells(self) -> bool:
        """Whether a merged update could be distinguished from none."""
        return self.bound <= self.whole / 2

    @property
    def merged(self) -> bool:
        """Whether the update is in the weight."""
        return self.tells and abs(self.found - self.whole) <= self.bound


def refuse_unrecorded(model: Model, provenance: Provenance, *named: Model) -> None:
    """Refuse to merge the adapter live on MODEL if its values show that it is in MODEL already.

    Nothing is refused where no unmerged model is at hand: one NAMED by the user, or one that
    PROVENANCE, the adapter or the manifest names and that lies on this disk. Where the manifest records what was
    merged, it is believed: what is in the model may be much like the adapter, and another one.

    Raises:
        MismatchError: it is; tells the weights.
    """
    if provenance.status == "same" or adapters_in(model):
        return
    for original in (*named, *originals_of(model, provenance)):
        with suppress(WeighbridgeError):
            found = shares(model, original)
            if is_merged(found):
                break
    else:
        return
    assert model.adapter is not None  # noqa: S101
    count = sum(it.merged for it in found.values())
    raise MismatchError(
        f"{model.adapter.path}, or one much like it, is merged into {model.path} already: in {count} of"
        f" {len(found)} weights looked at, its update is in what has changed since {original.spec};"
        " use the merged model as it is",
        [
            f"{name}: {it.found:.3f} of the update is in it ({it.whole:.3f} expected, give or take"
            f" {it.bound:.3f})"
            for name, it in found.items()
            if it.merged
        ],
    )


def is_merged(found: dict[str, Share]) -> bool:
    """Say whether most of the weights that can tell have the update in them."""
    telling = [it for it in found.values() if it.tells]
    return 2 * sum(it.merged for it in telling) > len(telling)


def originals_of(model: Model, provenance: Provenance) -> Iterator[Model]:
    """Yield the models on this disk that MODEL or its adapter is recorded to come from, dequantized."""
    assert model.adapter is not None  # noqa: S101
    seen = {model.path.resolve()} if model.path else set()
    for spec in named_by(model, provenance):
        with suppress(WeighbridgeError, OSError, ValueError):
            if Path(spec).is_dir() and (place := Path(spec).resolve()) not in seen:
                seen.add(place)
                yield dense_view(open_model(spec))


def named_by(model: Model, provenance: Provenance) -> Iterator[str]:
    """Yield the names of models that MODEL or its adapter may come from."""
    assert model.adapter is not None  # noqa: S101
    manifest = manifest_of(model)
    names = [provenance.trained_on, *model.adapter.named_bases]
    if manifest.get("merged"):  # BASE+ADAPTER, of a version that recorded no more
        source = recorded_path(manifest.get("source", {}))
        with suppress(WeighbridgeError):
            names.append(str(split_adapter(source)[0]))
    yield from (on_disk(name) for name in names if isinstance(name, str))


def on_disk(spec: str) -> str:
    """Return SPEC, or of a repository of the hub its directory in the cache; nothing is downloaded."""
    return spec if exists(spec) else recorded_path({"spec": spec, "revision": "main"})


def shares(model: Model, original: Model) -> dict[str, Share]:
    """Return how much of the adapter live on MODEL is in MODEL, by the difference to ORIGINAL.

    Raises:
        WeighbridgeError: no map leads from one to the other.
    """
    assert model.adapter is not None  # noqa: S101
    legs = crossing(original, model.framework)
    before = Mapped(legs[0].plan, original.checkpoint) if legs else original.checkpoint
    updates, headers = model.adapter.updates, model.checkpoint.headers
    alike = (
        name
        for name in sorted(updates, key=lambda it: (prod(headers[it].shape), it))
        if name in before.headers and before.headers[name].shape == headers[name].shape
    )
    each = ((name, share(name, updates[name], model.checkpoint, before)) for name in alike)
    return dict(islice(((name, it) for name, it in each if it is not None), ENOUGH))


def share(name: str, update: LowRank, base: Checkpoint, original: Checkpoint) -> Share | None:
    """Return how much of UPDATE is in the weight NAME of BASE; ``None`` for an update of nothing."""
    old, new = original.read(name), base.read(name)
    stored = not (isinstance(base, Dequantized) and name in base.schemes)
    size = found = whole = rest = 0.0
    for place in blocks(old.shape):
        before, now = old[place].astype(np.float64), new[place].astype(np.float64)
        after = with_change(update, place, before)
        made = round_once(after, new.dtype).astype(np.float64) if stored else after
        delta = after - before
        size += float(np.vdot(delta, delta))
        found += float(np.vdot(now - before, delta))
        whole += float(np.vdot(made - before, delta))
        rest += float(np.vdot(now - made, now - made))
    if not size > 0:
        return None
    bound = SIGMAS * sqrt(rest / (old.size * size)) + 2 * unit_roundoff(new.dtype.name)
    return Share(found / size, whole / size, bound)
