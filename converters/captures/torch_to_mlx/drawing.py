"""Which operations draw random numbers: no two of their calls are one, and none may be computed twice."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

_NAMES: Final = re.compile(
    r"rand|normal|uniform|bernoulli|multinomial|binomial|poisson|dropout|exponential|cauchy"
    r"|geometric|standard_gamma|sample_dirichlet|rrelu_with_noise"
)


def draws(name: str) -> bool:
    """Tell whether the operation or function of this NAME draws.

    >>> draws("aten.normal.Tensor_float"), draws("aten.add.Tensor")
    (True, False)
    """
    return _NAMES.search(name) is not None


def is_drawn(target: Any) -> bool:
    """Tell whether TARGET, what a node calls, draws: torch marks most that do, ``binomial`` and ``random`` not."""
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()) or draws(str(target))
