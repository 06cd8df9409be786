"""Which map leads from a model's own names to those of another framework."""

from __future__ import annotations

from ..converters.maps import WeightMap
from ..converters.maps.sources import choose
from ..converters.models import Model
from ..errors import BadInputError

map_of = choose.map_of
IDENTITY = "weighbridge map 1\n{**} <-> same\n"


def directed_map(model: Model, to: str) -> WeightMap:
    """Return MODEL's map from its own names to TO's; the identity where they are the same.

    Raises:
        BadInputError: no map is known for it.
    """
    if model.framework == to:
        return WeightMap.parse(IDENTITY, "identity")
    forward = map_of(model)
    if forward is None:
        if not model.factory:
            model.signature  # noqa: B018  # raises, and says what is unknown
        raise BadInputError(f"{model.spec}: no map is known for it; give one with --map FILE.wmap")
    return forward if to == "mlx" else forward.inverse()
