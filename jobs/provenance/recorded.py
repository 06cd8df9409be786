"""A model held against what an adapter recorded of the weights that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...converters.adapters import Adapter
from ...converters.checkpoints import Checkpoint
from ...converters.common.dtypes import CODE, NUMPY
from ...converters.maps.binding.quantized import CannotMoveError, quantized_plan
from ...converters.maps.execution.view import Mapped
from ...converters.models import Model
from ...converters.models import open as open_model
from ...converters.planning.adapter_names import crossing
from ...converters.planning.transcoding import Parts
from ...converters.quantization import Dequantized
from ...converters.quantization.fingerprints import compare, fingerprint
from ...converters.values import Array
from ...errors import WeighbridgeError

if TYPE_CHECKING:
    from ...parity.weights.sketches.recorded import Likeness

WIDEST: Final = "F32"  # no weights are trained in a wider dtype, so nothing was rounded to this one
USUAL: Final = ("F32", "BF16", "F16")  # dtypes that weights are cast to


class Held(NamedTuple):
    """What came of it.

    Attributes:
        cast: dtypes of the weights that are those recorded, in another dtype.
        other: weights that are not those recorded, and why, a line each.
        unclear: weights of which nobody can tell.
    """

    cast: frozenset[str]
    other: tuple[str, ...]
    unclear: tuple[str, ...]


def held(model: Model, adapter: Adapter) -> Held | None:
    """Hold MODEL against the record of ADAPTER; ``None`` if no map leads to the recorded names."""
    try:
        view = View(model, adapter)
    except WeighbridgeError:
        return None
    differs = compare(adapter.base["tensors"], view.stored)
    found = {name: view.likeness(name) for name in differs}
    alike = [name for name, it in found.items() if it.name == "SAME"]
    return Held(
        frozenset(view.seen.headers[name].dtype for name in alike),
        tuple(f"{name}: {differs[name]}" for name, it in found.items() if it.name == "OTHER"),
        tuple(name for name, it in found.items() if it.name == "UNCLEAR"),
    )


@dataclass(frozen=True, eq=False)
class View:
    """MODEL's weights under the names that ADAPTER recorded.

    Raises:
        WeighbridgeError: no map leads there.
    """

    model: Model
    adapter: Adapter

    def __post_init__(self) -> None:
        """Find the map at once."""
        _ = self.legs

    @cached_property
    def legs(self) -> tuple[Any, ...]:
        """The way to the recorded framework; none if MODEL is in it."""
        return crossing(self.model, str(self.adapter.base.get("framework")))

    @cached_property
    def seen(self) -> Checkpoint:
        """The weights in the recorded framework, carried as they are read."""
        checkpoint = self.model.checkpoint
        return Mapped(self.legs[0].plan, checkpoint) if self.legs else checkpoint

    @cached_property
    def stored(self) -> Checkpoint:
        """The same, quantized weights as codes and scales where the way there moves these as they are."""
        tensors = self.model.tensors
        if not self.legs or not isinstance(tensors, Dequantized):
            return self.seen
        parts = Parts(self.model.checkpoint, tensors)
        try:
            moved = quantized_plan(self.legs[0].plan, parts.headers, tensors.schemes)
        except CannotMoveError:
            return self.seen
        return Mapped(moved.plan, parts)

    @cached_property
    def computed(self) -> frozenset[str]:
        """Weights that are carried by arithmetic, not by moving numbers alone."""
        steps = [step for leg in self.legs for step in leg.plan.steps if not step.exact]
        return frozenset(name for step in steps for name in step.target_names)

    @cached_property
    def records(self) -> Mapping[str, Any]:
        """What is known of the recorded weights besides their hashes, by name."""
        return self.adapter.base.get("weights") or records_on_disk(self.adapter)

    def likeness(self, name: str) -> Likeness:
        """Say what the weight NAME, of which the bytes differ, is to the recorded one."""
        from ...parity.weights.sketches.recorded import Likeness, likeness, quantized_likeness

        if name not in self.seen.headers:
            return Likeness.UNCLEAR if self.legs else Likeness.OTHER
        packed = name in self.packed
        if self.adapter.base.get("quantization") or (packed and not self.legs):
            return Likeness.OTHER  # codes that are not those recorded
        array, wanted = self.seen.read(name), self.adapter.base["tensors"][name]
        if not packed and any(fingerprint(it) == wanted for it in casts(array)):
            return Likeness.SAME
        if (record := self.records.get(name)) is not None:
            if packed:
                return quantized_likeness(array, record)
            return likeness(array, record, exact=name not in self.computed)
        rounded = CODE[array.dtype] != WIDEST and bool(self.legs)
        known = not (rounded or packed or name in self.computed)
        return Likeness.OTHER if known else Likeness.UNCLEAR

    @cached_property
    def packed(self) -> frozenset[str]:
        """Weights that MODEL stores quantized."""
        tensors = self.model.tensors
        if not isinstance(tensors, Dequantized):
            return frozenset()
        if not self.legs:
            return frozenset(tensors.schemes)
        steps = [step for leg in self.legs for step in leg.plan.steps]
        quantized = (
            step for step in steps if not tensors.schemes.keys().isdisjoint(step.source_names)
        )
        return frozenset(name for step in quantized for name in step.target_names)


def casts(array: Array) -> list[Array]:
    """Return ARRAY in the dtypes that weights are cast to, besides its own."""
    from ...parity.weights.sketches.casts import cast

    return [cast(array, code) for code in USUAL if NUMPY[code] != array.dtype]


def records_on_disk(adapter: Adapter) -> Mapping[str, Any]:
    """Return what is known of the weights recorded by ADAPTER, if its base lies where it did."""
    from ...parity.weights.sketches.recorded import weight_records

    spec, recorded = adapter.base.get("spec"), adapter.base["tensors"]
    try:
        model = open_model(spec) if spec and Path(spec).is_dir() else None
        if model and model.framework == adapter.base.get("framework"):
            unchanged = not compare(recorded, model.checkpoint)
            return weight_records(model.checkpoint, recorded) if unchanged else {}
    except (OSError, WeighbridgeError):
        pass
    return {}
