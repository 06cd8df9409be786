"""One side of an inference: the tensors of a model, with their values where these mean something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...checkpoints.base import Header
from ...common.dtypes import FLOATS
from .evidence.values import Read, Values


@dataclass(frozen=True)
class Side:
    """The tensors of one side.

    Attributes:
        spec: what the user wrote, for messages.
        headers: dtypes and shapes by name, in the order of declaration if that is known.
        read: a tensor by name; ``None`` where values mean nothing.
    """

    spec: str
    headers: Mapping[str, Header]
    read: Read | None = None

    def floats(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the floating-point tensors."""
        return {n: head.shape for n, head in self.headers.items() if head.dtype in FLOATS}

    def values(self) -> Values | None:
        """Return what it holds."""
        dtypes = {name: header.dtype for name, header in self.headers.items()}
        return Values(self.read, dtypes) if self.read else None
