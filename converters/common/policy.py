"""How a computation is to be run: one object, passed along, never global."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WHOLE: Final = 100_000_000  # weights up to which a full check reads every probe
PROBES: Final = 1700  # tokens in all of them together
FEWEST: Final = 128  # ... that it reads of any model, however large


def full_tokens(weights: int) -> int | None:
    """Return how many tokens a full check reads of a model with WEIGHTS; ``None`` for all probes.

    Each weight is read once or twice for all of them, so it is the large model's tokens that take time.

    >>> full_tokens(100_000_000), full_tokens(200_000_000), full_tokens(7_000_000_000)
    (None, 425, 128)
    """
    return None if weights <= WHOLE else max(FEWEST, int(PROBES * (WHOLE / weights) ** 2))


@dataclass(frozen=True)
class Policy:
    """Device and precision of a run.

    Attributes:
        device: ``cpu`` or ``gpu`` (Metal or CUDA, whichever the runtime has).
        compute: dtype of activations, a numpy or ml_dtypes name such as ``float32`` or ``bfloat16``.
        parameters: dtype of parameters; ``None`` means the same as ``compute``.
        accumulate: dtype of sums inside an operation where the runtime lets one choose.
    """

    device: str = "cpu"
    compute: str = "float32"
    parameters: str | None = None
    accumulate: str = "float32"

    @property
    def parameter_dtype(self) -> str:
        """The dtype in which parameters are held."""
        return self.parameters or self.compute
