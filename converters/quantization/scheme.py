"""How a weight is quantized: width of a code, columns that share a scale, and what a code means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...errors import UnsupportedError

# What MLX offers by mode: bits, then group sizes; the first of each is its default
# (`mlx/ops.cpp`, `quantization_params_from_mode`, and `mlx/nn/layers/quantized.py`).
OFFERED: Final[Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "affine": ((4, 2, 3, 5, 6, 8), (64, 32, 128)),
    "mxfp4": ((4,), (32,)),
    "mxfp8": ((8,), (32,)),
    "nvfp4": ((4,), (16,)),
}


@dataclass(frozen=True)
class Scheme:
    """How one weight is quantized, in MLX's words.

    Attributes:
        bits: width of a code.
        group_size: columns that share one scale.
        mode: ``affine`` (``scale * code + bias``), ``mxfp4``, ``mxfp8`` or ``nvfp4``.

    >>> str(Scheme(4, 64))
    '4-bit affine, groups of 64'
    """

    bits: int
    group_size: int
    mode: str = "affine"

    def __post_init__(self) -> None:
        bits, sizes = OFFERED.get(self.mode, ((), ()))
        if self.bits not in bits or self.group_size not in sizes:
            known = "; ".join(
                f"{mode}: bits {_listed(bits)} in groups of {_listed(sizes)}"
                for mode, (bits, sizes) in OFFERED.items()
            )
            raise UnsupportedError(f"quantization {self} is unknown; MLX has {known}")

    def __str__(self) -> str:
        return f"{self.bits}-bit {self.mode}, groups of {self.group_size}"

    @property
    def affine(self) -> bool:
        """Whether codes are integers on a line, with scales and biases in a float dtype."""
        return self.mode == "affine"

    @property
    def record(self) -> dict[str, Any]:
        """The scheme as ``config.json`` has it.

        >>> Scheme(8, 32, "mxfp8").record
        {'group_size': 32, 'bits': 8, 'mode': 'mxfp8'}
        """
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Scheme:
        """Return the scheme that RECORD of ``config.json`` means; a mode fills in what it lacks.

        Raises:
            UnsupportedError: MLX has no such scheme.

        >>> str(Scheme.of({"mode": "nvfp4"})), str(Scheme.of({"bits": 8}))
        ('4-bit nvfp4, groups of 16', '8-bit affine, groups of 64')
        """
        mode = record.get("mode") or "affine"
        bits, sizes = OFFERED.get(mode, ((0,), (0,)))
        wanted, size = record.get("bits"), record.get("group_size")
        wanted, size = bits[0] if wanted is None else wanted, sizes[0] if size is None else size
        return cls(wanted, size, mode)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, sorted(numbers)))
