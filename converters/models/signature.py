"""What a model takes and gives: names, dtypes, symbolic shapes and roles."""

from __future__ import annotations

from dataclasses import dataclass

Dimension = int | str


@dataclass(frozen=True)
class Port:
    """One input or output of a model.

    Attributes:
        name: the name callers use.
        dtype: a numpy name, such as ``int64`` or ``float32``.
        shape: sizes; a string names a size that may vary (``("batch", "sequence")``).
        role: what the numbers mean: ``token_ids``, ``attention_mask``, ``series``, ``hidden`` ...
        upper: the largest size of each named dimension, and for ``token_ids`` the vocabulary size
            under the key ``vocabulary``.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...]
    role: str
    upper: tuple[tuple[str, int], ...] = ()

    def limit(self, dimension: str, default: int) -> int:
        """Return the largest size of DIMENSION, or DEFAULT where the model sets none."""
        return dict(self.upper).get(dimension, default)


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a model, in call order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @property
    def dynamic(self) -> dict[str, dict[int, str]]:
        """Return ``{input: {axis: dimension}}`` for every size that may vary.

        >>> port = Port("ids", "int64", ("batch", "sequence"), "token_ids")
        >>> Signature((port,), ()).dynamic
        {'ids': {0: 'batch', 1: 'sequence'}}
        """
        return {
            port.name: {axis: size for axis, size in enumerate(port.shape) if isinstance(size, str)}
            for port in self.inputs
        }
