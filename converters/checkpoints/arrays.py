"""The tensors of a checkpoint as a mapping, each read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..values import Array
from .base import Checkpoint


class FileArrays(Mapping[str, Array]):
    """Name -> array, read from CHECKPOINT each time."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    def __getitem__(self, name: str) -> Array:
        """Read tensor NAME."""
        if name not in self.checkpoint.headers:
            raise KeyError(name)
        return self.checkpoint.read(name)

    def __contains__(self, name: object) -> bool:
        """Say whether there is a tensor NAME, which is not read."""
        return name in self.checkpoint.headers

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the checkpoint."""
        return iter(self.checkpoint.headers)

    def __len__(self) -> int:
        """Return how many tensors there are."""
        return len(self.checkpoint.headers)
