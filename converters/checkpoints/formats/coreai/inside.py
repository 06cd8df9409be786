"""What happens in the process of an asset: Core AI reads and runs it. Nothing else imports this file.

Core AI's compiler and runtime end the process on some damaged files, so ours never loads them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from coreai.authoring import AIModelAsset
from coreai.runtime import AIModel, NDArray

from ....common.apart.serving import serve
from ....common.dtypes import CODE
from ....values import Array
from .constants import constants
from .watching import GIVEN, NAME, computed, watch
from .widening import is_narrow, widen

NOTHING: Final[Mapping[int, Array]] = MappingProxyType({})


class Inside:
    """One asset, opened; every public method answers one kind of request."""

    def __init__(self, path: str, folder: str) -> None:
        self._asset = AIModelAsset.load(Path(path))
        self._folder = Path(folder)
        self._loop = asyncio.new_event_loop()
        self._arrays: dict[int, Array] = {}
        self._function: Any = None
        self._made: dict[Any, Any] = {}
        self._kept: dict[str, NDArray] = {}

    def constants(self) -> dict[int, tuple[str, tuple[int, ...]]]:
        """Return dtype and shape of every constant whose dtype a tensor file has, by number."""
        program = self._asset.program  # it owns what is read here
        self._arrays = dict(constants(program._module._mlir_module.operation))
        return {number: (CODE[it.dtype], it.shape) for number, it in self._arrays.items()}

    def read(self, number: int) -> Array:
        """Return the constant NUMBER."""
        return self._arrays[number]

    def narrow(self) -> bool:
        """Say whether it computes in float16, all of it or a part."""
        return is_narrow(self._asset.program)

    def ports(self) -> tuple[list[Any], list[Any]]:
        """Return name, dtype and shape of inputs and outputs; -1 where a size varies."""
        described = self._loaded().desc
        sides = (
            (described.input_names, described.input_descriptor),
            (described.output_names, described.output_descriptor),
        )
        inputs, outputs = (
            [(name, str(it.dtype), tuple(it.shape)) for name in names if (it := describe(name))]
            for names, describe in sides
        )
        return inputs, outputs

    def states(self) -> list[str]:
        """Return the names of what it keeps from one call to the next."""
        return list(self._loaded().desc.state_names)

    def run(self, inputs: Mapping[str, Array], *, on: bool = False, **how: Any) -> dict[str, Array]:
        """Return the outputs by name, computed as ``watched`` has it.

        It goes ON with the states of the run before, or begins with zeros.
        """
        return self.watched(inputs, (), {}, on=on, **how)[0]

    def watched(
        self,
        inputs: Mapping[str, Array],
        places: Sequence[int],
        given: Mapping[int, Array],
        *,
        wide: bool = False,
        exact: Mapping[int, Array] = NOTHING,
        on: bool = False,
    ) -> tuple[dict[str, Array], dict[int, Array]]:
        """Return the outputs, and the values at PLACES; those GIVEN are put in their place.

        If WIDE, all is computed in float32 whatever the asset says, with the numbers EXACT of constants.
        """
        self._kept = self._kept if on else {}
        function = self._changed(tuple(places), frozenset(given), exact if wide else None)
        fed = {f"{NAME}{at}{GIVEN}": array for at, array in given.items()}
        found = self._called(function, {**inputs, **fed})
        values = {at: found.pop(f"{NAME}{at}") for at in places}
        return found, values

    def computed(self, inputs: Mapping[str, Array]) -> dict[int, Array]:
        """Return what every operation on INPUTS computes in floating point, by its number."""
        return self.watched(inputs, list(computed(self._asset.program)), {})[1]

    def _changed(
        self, places: tuple[int, ...], given: frozenset[int], exact: Mapping[int, Array] | None
    ) -> Any:
        """Return the function of the program with what is asked for changed, in float32 with EXACT; made once."""
        if not places and exact is None:
            return self._loaded()
        known = exact if exact is None else tuple((at, it.tobytes()) for at, it in exact.items())
        key = (places, given, known)
        if key not in self._made:
            program = self._asset.program
            if exact is not None:
                widen(program, exact)
            if places:
                watch(program, places, given)
            place = self._folder / f"changed-{len(self._made)}.aimodel"
            self._made[key] = self._function_of(program.save_asset(place))
        return self._made[key]

    def _called(self, function: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: NDArray(_fitting(function, name, it)) for name, it in inputs.items()}
        self._kept = self._kept or {
            name: NDArray(np.zeros(it.shape, str(it.dtype)))
            for name in function.desc.state_names
            if (it := function.desc.state_descriptor(name))
        }
        states = [self._kept] if self._kept else []
        found = self._loop.run_until_complete(function(given, *states))
        return {name: np.array(it.numpy()) for name, it in found.items()}

    def operators(self) -> dict[str, int]:
        """Return how many operators of each kind it has, those of its parts included."""
        summary = self._asset.summary()
        return dict(summary.operation_distribution) if summary else {}

    def _loaded(self) -> Any:
        if self._function is None:
            self._function = self._function_of(self._asset)
        return self._function

    def _function_of(self, asset: AIModelAsset) -> Any:
        return self._loop.run_until_complete(self._load(asset))

    async def _load(self, asset: AIModelAsset) -> Any:
        if sys.platform == "darwin":
            model = await AIModel.load(asset.path)
        else:  # as ``AIModelAsset.executable`` does, in a folder that outlives it
            place = self._folder / f"{asset.path.stem}.aimodelx"
            place.mkdir(exist_ok=True)
            asset._write_odix(place)
            model = await AIModel.load(place)
        names = model.function_names
        return model.load_function("main" if "main" in names else names[0])


def _fitting(function: Any, name: str, array: Array) -> Array:
    """Return ARRAY in the dtype that FUNCTION takes as input NAME."""
    if name not in function.desc.input_names:
        return array  # the runtime says which there are
    return np.ascontiguousarray(array, str(function.desc.input_descriptor(name).dtype))


def main() -> None:
    """Open an asset and answer requests, until nobody asks any more."""
    serve(Inside)
