"""Adapters put into a captured module: their parameters beside the weights, and what else is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType

import mlx.core as mx

from .....errors import MismatchError
from ....quantization import Blocks
from ....values import LowRank
from ...specs import AdapterSpec
from ..graph import Step
from ..quantized.value import Quantized, quantized_of
from ..storage.wiring import Wiring
from . import factors
from .forms import Slot, adaptable, is_embedding
from .grids import Rounding


def uses_of(wiring: Wiring) -> dict[str, Step]:
    """Return name -> a step that uses it, for weights that an adapter can change in their steps."""
    reads = wiring.recording.reads
    return {
        reads[value]: step
        for value, step in adaptable(wiring.recording.graph).items()
        if f".{reads.get(value)}".endswith(".weight")
    }


def insert_new(wiring: Wiring, specs: Mapping[str, AdapterSpec], seed: int) -> None:
    """Put an adapter that changes nothing yet at every weight of SPECS."""
    uses, names = uses_of(wiring), sorted(specs)
    factors.check_names(names, uses)
    keys = mx.random.split(mx.random.key(seed), len(names) + 1)
    for name, key in zip(names, keys, strict=False):
        spec, embedding = specs[name], is_embedding(uses[name])
        arrays = factors.initial(
            wiring.shape(name), wiring.dtype(name), spec.rank, key, embedding=embedding
        )
        if spec.dora:
            arrays.append(factors.lengths(wiring.dense(name)))
        _place(wiring, name, arrays, spec.scale, summed=spec.dora and embedding)


def insert_updates(
    wiring: Wiring,
    updates: Mapping[str, LowRank],
    grids: Mapping[str, Blocks] = MappingProxyType({}),
) -> None:
    """Put the adapters of UPDATES in; those of weights that no step can adapt are summed with them.

    So are those of GRIDS, and the sums rounded.
    """
    uses, known = uses_of(wiring), wiring.recording.names
    factors.check_names({**updates, **grids}, {**uses, **known})
    factors.check_shapes(updates, {name: wiring.shape(name) for name in updates})
    roundings = {name: _rounding(wiring, name, blocks) for name, blocks in grids.items()}
    for name, update in updates.items():
        embedding, rounding = name in uses and is_embedding(uses[name]), roundings.get(name)
        summed = name not in uses or (embedding and update.magnitude is not None)
        apart = embedding and not summed and rounding is None
        arrays = factors.of_update(update, wiring.dtype(name), embedding=apart)
        _place(wiring, name, arrays, update.scale, summed=summed, rounding=rounding)


def _rounding(wiring: Wiring, name: str, blocks: Blocks) -> Rounding:
    """Return how the weight called NAME is rounded: as BLOCKS are, which it may consist of itself."""
    own = wiring.value(name)
    if isinstance(own, Quantized):
        return Rounding(replace(own, dtype=mx.float32))
    if wiring.shape(name) != blocks.shape:
        problem = f"{name}: expected {list(wiring.shape(name))}, found {list(blocks.shape)}"
        raise MismatchError("the quantized weights do not fit the captured module", [problem])
    return Rounding(quantized_of(blocks, mx.float32), wiring.location(name))


def _place(
    wiring: Wiring,
    name: str,
    arrays: Sequence[mx.array],
    scale: float,
    *,
    summed: bool,
    rounding: Rounding | None = None,
) -> None:
    """Store ARRAYS beside the weight called NAME, and a slot that says so."""
    keys = [factors.beside(name, part) for part in factors.FACTORS[: len(arrays)]]
    for key, array in zip(keys, arrays, strict=True):
        wiring.place(key, array, trainable=True)
    wiring.slots.pop(name, None)
    wiring.sums.pop(wiring.first(name), None)
    slot = Slot(keys[0], keys[1], scale, "".join(keys[2:]), rounding)
    if summed:
        wiring.sums[wiring.first(name)] = name, slot
    else:
        wiring.slots[name] = slot
    wiring.changed()


def updates_in(wiring: Wiring) -> dict[str, LowRank]:
    """Return weight name -> update, as they are now, in float32."""
    uses = uses_of(wiring)
    found = {}
    for name, slot in [*wiring.slots.items(), *wiring.sums.values()]:
        arrays = [wiring.locations[key].get() for key in slot.parameters]
        embedding = name in wiring.slots and is_embedding(uses[name]) and not slot.rounding
        found[name] = factors.as_update(arrays, slot.scale, embedding=embedding)
    return found


def check_trainable(wiring: Wiring, patterns: Iterable[str]) -> set[str]:
    """Return the parameters that PATTERNS name: by a name of theirs or of a module, perhaps with ``*``.

    Raises:
        MismatchError: patterns that name no parameter that can be trained; all are listed.
    """
    able = [name for name in wiring.recording.names if not wiring.location(name).fixed]
    chosen = {pattern: {name for name in able if _fits(name, pattern)} for pattern in patterns}
    if idle := sorted(pattern for pattern, names in chosen.items() if not names):
        problems = [f"{pattern!r} names no parameter that can be trained" for pattern in idle]
        raise MismatchError("`train` does not fit the captured module", problems)
    return set().union(*chosen.values())


def leave_trainable(wiring: Wiring, patterns: Iterable[str]) -> None:
    """Freeze everything but adapters and the parameters that PATTERNS name, now or before."""
    wiring.trained |= check_trainable(wiring, patterns)
    wiring.root.freeze()
    adapters = [*wiring.slots.values(), *(slot for _, slot in wiring.sums.values())]
    for name in [*wiring.trained, *(key for slot in adapters for key in slot.parameters)]:
        location = wiring.location(name)
        location.branch.hold(location.path, trainable=True)


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
