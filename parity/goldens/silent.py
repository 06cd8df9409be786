"""A source that gives NaN whatever it is asked: what is to blame, its weights or the inputs."""

from __future__ import annotations

import numpy as np

from ...converters.common.dtypes import FLOATS
from ...converters.models import Model
from ...errors import BadInputError
from ..weights.weights import base_weights

SHOWN = 3  # names


def gives_nan(model: Model) -> BadInputError:
    """Return what is raised for a MODEL that gives NaN on every probe."""
    broken = not_finite(model)
    more = f" and {len(broken) - SHOWN} more" if len(broken) > SHOWN else ""
    why = f"its own weights are not finite: {', '.join(broken[:SHOWN])}{more}"
    return BadInputError(
        f"{model.spec}: the source itself gives NaN on every probe, so there is nothing to compare"
        f" with; {why if broken else 'give inputs it can take (--inputs)'}"
    )


def not_finite(model: Model) -> list[str]:
    """Return the names of MODEL's weights that hold NaN or an infinity."""
    weights = base_weights(model)
    floats = (name for name, it in weights.headers.items() if it.dtype in FLOATS)
    return [name for name in floats if not np.isfinite(weights.read(name)).all()]
