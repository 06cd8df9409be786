"""Weights on codes in files of several kinds, as a check sees them: their values, and what else they could be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import numpy as np

from ...converters.checkpoints.formats.onnx_model import OnnxFile
from ...converters.models import Model
from ...converters.models.program_files import recorded
from ...converters.values import Array
from .gates import begins, gates
from .source import SourceTensors

if TYPE_CHECKING:
    from pathlib import Path

    from ...converters.captures.mlprogram.closest import Closest, Float64
    from ...converters.gguf.checked.codes import Grid
    from ...converters.gguf.checked.tensors import GgufTensors


class Coded(Protocol):
    """A weight on codes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def zeros(self) -> Array | None:
        """Where it has zeros that no code stands for; ``None`` if it is not sparse."""

    def values(self) -> Array:
        """Return what its codes stand for."""

    def closest(self, wanted: Float64) -> Closest:
        """Return the values nearest to WANTED that it could stand for."""


class CodedFile(NamedTuple):
    """The weights on codes of a file.

    Attributes:
        weights: by name; those that begin recurrent layers are left out.
        manifest: what an export of ours says of the file.
        gates: yields what constants of recurrent layers may be made of.
    """

    weights: Mapping[str, Coded]
    manifest: Mapping[str, Any]
    gates: Callable[[SourceTensors], Iterator[tuple[str, Any]]]


@dataclass(frozen=True)
class OfProgram:
    """A variable of an ML program."""

    variable: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.variable.shape)

    @property
    def zeros(self) -> Array | None:
        """Where it has zeros that no code stands for; ``None`` if it is not sparse."""
        from ...converters.captures.mlprogram.closest import zeros_of

        return zeros_of(self.variable)

    def values(self) -> Array:
        """Return what its codes stand for."""
        from ...converters.captures.mlprogram.evaluator import constant_value

        return np.asarray(constant_value(self.variable))

    def closest(self, wanted: Float64) -> Closest:
        """Return the values nearest to WANTED that it could stand for."""
        from ...converters.captures.mlprogram.closest import closest

        return closest(self.variable, wanted)


@dataclass(frozen=True)
class OfGraph:
    """A weight that an ONNX graph makes of codes, or multiplies by."""

    file: OnnxFile
    name: str
    zeros: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.file.headers[self.name].shape

    def values(self) -> Array:
        """Return what its codes stand for."""
        return self.file.read(self.name)

    def closest(self, wanted: Float64) -> Closest:
        """Return the values nearest to WANTED that it could stand for: one code is worth a step from the next."""
        from ...converters.captures.mlprogram.closest import on_grid

        least, largest = self.file.codes()[self.name]
        low, high = (self.file.at_code(self.name, code) for code in (least, largest))
        scale = (high - low) / (largest - least)
        offset = least - low / np.where(scale == 0, 1.0, scale)
        return on_grid((least, largest), scale, offset, wanted)


@dataclass(frozen=True)
class OfBlocks:
    """A weight of a GGUF file that stands in blocks."""

    tensors: GgufTensors
    name: str
    zeros: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.tensors.headers[self.name].shape

    @cached_property
    def _grid(self) -> Grid:
        return self.tensors.grid(self.name)

    def values(self) -> Array:
        """Return what its codes stand for."""
        return self.tensors.read(self.name)

    def closest(self, wanted: Float64) -> Closest:
        """Return the values nearest to WANTED that it could stand for; those that it has where they are no further."""
        from ...converters.captures.mlprogram.closest import Closest

        grid = self._grid
        inside = np.clip(wanted, grid.low, grid.high)
        near = np.abs(grid.values - inside) <= grid.step / 2 + grid.room
        return Closest(np.where(near, grid.values, inside), grid.step, grid.room)


def coded_in(candidate: Model) -> CodedFile | None:
    """Return the weights of CANDIDATE that are on codes; ``None`` where there are none, or it is no such file."""
    if isinstance(candidate.tensors, OnnxFile):
        file = candidate.tensors
        weights = {name: OfGraph(file, name) for name in file.codes()}
        return CodedFile(weights, recorded(file), lambda _: iter(())) if weights else None
    if candidate.framework == "gguf":
        tensors = cast("GgufTensors", candidate.tensors)
        blocks = {name: OfBlocks(tensors, name) for name in tensors.coded}
        return CodedFile(blocks, {}, lambda _: iter(())) if blocks else None
    if (
        candidate.framework != "mlprogram"
        or not candidate.path
        or not is_compressed(candidate.path)
    ):
        return None
    from ...converters.captures.mlprogram import load_program

    program = load_program(candidate.path)
    found = {
        n: OfProgram(it) for n, it in program.compressed().items() if not begins_with_zeros(it)
    }
    return (
        CodedFile(found, program.manifest, lambda source: gates(program, source)) if found else None
    )


def begins_with_zeros(variable: Any) -> bool:
    """Say whether VARIABLE is zeros with which a recurrent layer begins, which are no weight."""
    return begins(variable) and not np.any(OfProgram(variable).values())


def is_compressed(path: Path) -> bool:
    """Say whether the package at PATH has weights of codes; its program is not loaded for that."""
    from ...converters.captures.mlprogram.package import census, functions, read_package

    package = read_package(path)
    kinds = (kind for name in functions(package) for kind in census(package, name))
    return any(kind.startswith("constexpr_") for kind in kinds)
