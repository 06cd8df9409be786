"""What a reader of data may need besides its section."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """What a reader may need besides its section.

    Attributes:
        tokenizer: the directory of the tokenizer, if there is one.
        vocabulary: how many token ids the model has rows for; ``None`` where it does not say.
        positions: how many positions it has; likewise.
    """

    tokenizer: Path | None = None
    vocabulary: int | None = None
    positions: int | None = None
