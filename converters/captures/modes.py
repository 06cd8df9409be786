"""Train and eval mode of torch modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def in_mode(module: Any, training: bool) -> Iterator[Any]:
    """Run MODULE in the block in train mode, its parts as each was left, or all of it in eval mode."""
    before = {part: part.training for part in module.modules()}
    try:
        yield module.eval() if not training else module
    finally:
        for part, mode in before.items():
            part.training = mode
