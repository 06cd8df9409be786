"""How a computation is to be run: one object, passed along, never global."""

from __future__ import annotations

from dataclasses import dataclass


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
