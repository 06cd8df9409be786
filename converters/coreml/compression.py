"""How the weights of a package are compressed, as a user asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError

GRIDS: Final = ("int8", "int4")
BLOCK: Final = 32  # columns that share a scale, where codes have 4 bits
TABLES: Final = (1, 2, 3, 4, 6, 8)  # bits of an index
LEAST: Final = (
    2048  # numbers of a weight that is compressed; coremltools asks for more than its own 2048
)
OLD_TABLES: Final = frozenset(TABLES) - {3}


@dataclass(frozen=True)
class Compression:
    """How weights are compressed; what is given is done together, in this order.

    Attributes:
        prune: the part of a weight's numbers that become zeros, the smallest ones.
        palettize: bits of an index into a table of each weight, found by k-means.
        quantize: ``int8``, by channel, or ``int4``; after PALETTIZE it is the table that is quantized.
        block: columns that share a scale; ``None`` for whole channels of int8 and 32 columns of int4.
        activations: ``int8``: what layers read is rounded too.
        calibrate: a file of inputs that say how large that becomes; by default those of a check.
    """

    prune: float | None = None
    palettize: int | None = None
    quantize: str | None = None
    block: int | None = None
    activations: str | None = None
    calibrate: Path | None = None

    @property
    def weights(self) -> bool:
        """Whether any weights are compressed."""
        return any((self.prune, self.palettize, self.quantize))

    def __bool__(self) -> bool:
        """Say whether anything is compressed."""
        return self.weights or self.activations is not None

    def __str__(self) -> str:
        """Print it as ``40% zeros, table of 16``."""
        parts = [f"{self.prune:.0%} zeros"] if self.prune else []
        parts += [f"table of {2**self.palettize}"] if self.palettize else []
        parts += [self._grid] if self.quantize else []
        parts += [f"activations in {self.activations}"] if self.activations else []
        return ", ".join(parts)

    @property
    def _grid(self) -> str:
        where = "table in " if self.palettize else ""
        return f"{where}{self.quantize}" + (f" in blocks of {self._size}" if self._size else "")

    @property
    def _size(self) -> int | None:
        return (
            None if self.palettize else self.block or (BLOCK if self.quantize == "int4" else None)
        )

    def require(self) -> None:
        """Refuse what does not go together.

        Raises:
            BadInputError: it says what.
        """
        if self.calibrate and not self.activations:
            raise BadInputError(
                "--calibrate is for --activations: weights are rounded by themselves"
            )
        if self.block and (not self.quantize or self.palettize):
            raise BadInputError("--block goes with --quantize alone: its blocks share a scale")
        if self.palettize and self.quantize == "int4":
            raise BadInputError("the numbers of a table are quantized to int8, not to int4")

    @property
    def oldest(self) -> str:
        """The oldest system that runs it."""
        return "iOS18" if self.newest else "iOS17" if self.activations else "iOS16"

    @property
    def newest(self) -> bool:
        """Whether it needs iOS 18."""
        several = sum(map(bool, (self.prune, self.palettize, self.quantize))) > 1
        old = self.palettize is None or self.palettize in OLD_TABLES
        return several or not old or self._size is not None

    def passes(self, compression: Any) -> Iterator[Callable[[Any], Any]]:
        """Yield what does it, of coremltools' module COMPRESSION."""
        if self.prune:
            pruner = compression.OpMagnitudePrunerConfig(target_sparsity=self.prune)
            yield _pass(compression.prune_weights, compression, pruner)
        if self.palettize:
            tables = compression.OpPalettizerConfig(mode="kmeans", nbits=self.palettize)
            yield _pass(compression.palettize_weights, compression, tables, joint=bool(self.prune))
        if self.quantize:
            by: dict[str, Any] = {"granularity": "per_tensor"} if self.palettize else {}
            by = {"granularity": "per_block", "block_size": self._size} if self._size else by
            grid = compression.OpLinearQuantizerConfig(dtype=self.quantize, **by)
            joint = bool(self.prune or self.palettize)
            yield _pass(compression.linear_quantize_weights, compression, grid, joint=joint)


def _pass(
    function: Any, compression: Any, operation: Any, *, joint: bool = False
) -> Callable[[Any], Any]:
    more = {"joint_compression": True} if joint else {}
    operation.weight_threshold = LEAST - 1  # of the dense weight, where something is done already
    config = compression.OptimizationConfig(operation)
    return lambda model: function(model, config, **more)
