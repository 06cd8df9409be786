"""A model on its way to a framework: its map, its configuration and its origin, each found out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import BadInputError
from ..checkpoints import Header
from ..configs import Translation
from ..maps import WeightMap
from ..maps.sources.choose import map_of
from ..models import Model
from .config import translated
from .sidecar import source_headers

IDENTITY = "weighbridge map 1\n{**} <-> same\n"


@dataclass(frozen=True)
class Conversion:
    """A model, the framework it is to be seen in, and what has to be known for that.

    Attributes:
        model: the source.
        to: the framework of the target.
        original: directory or hub name of the checkpoint that an MLX model comes from; ``none`` to
            do without what only it has.
    """

    model: Model
    to: str
    original: str | None = None

    @cached_property
    def map(self) -> WeightMap | None:
        """The map between torch and MLX names, whatever the direction; ``None`` where none is known."""
        return map_of(self.model)

    @cached_property
    def directed(self) -> WeightMap:
        """The map from the model's own names to the target's; the identity where they are the same.

        Raises:
            BadInputError: no map is known.
        """
        model = self.model
        if model.framework == self.to:
            return WeightMap.parse(IDENTITY, "identity")
        if self.map is None:
            if not model.factory:
                model.signature  # noqa: B018  # raises, and says what is unknown
            kind = model.config.get("model_type")
            if model.family is not None and self.to == "mlx":
                raise BadInputError(
                    f"{model.spec}: no MLX library that is installed has a class for model_type {kind},"
                    " so there is nothing to convert it to; give --map FILE.wmap for a class of your own. As it"
                    " is it runs in MLX by weighbridge.capture and trains there by weighbridge train"
                )
            raise BadInputError(
                f"{model.spec}: no map is known for {f'model_type {kind}' if kind else 'it'}; give one"
                " with --map FILE.wmap, or run the PyTorch class itself in MLX with weighbridge.capture"
            )
        return self.map if self.to == "mlx" else self.map.inverse()

    @cached_property
    def translation(self) -> Translation | None:
        """The configuration as the target's framework reads it; ``None`` where it stays as it is."""
        model, to, original = self.model, self.to, self.original
        return model.once(("config", to, original), lambda: translated(model, to, original))

    @property
    def config(self) -> Mapping[str, Any]:
        """The target's configuration."""
        return self.translation.config if self.translation else self.model.config

    @property
    def sizes_from(self) -> Mapping[str, Any]:
        """The configuration that a map's sizes are taken from: MLX's, which has all of them."""
        return self.config if self.to == "mlx" else self.model.config

    @cached_property
    def origin(self) -> Mapping[str, Header] | None:
        """The headers of the checkpoint that the model was made from, if it is to be one again."""
        model, original = self.model, self.original
        if (model.framework, self.to) != ("mlx", "torch"):
            return None
        return model.once(("origin", original), lambda: source_headers(model, original))


def conversion_of(model: Model, to: str, original: str | None = None) -> Conversion:
    """Return how MODEL is seen in the framework TO; nothing is found out before it is asked for.

    What is found out stays with MODEL: whoever asks later in the same job is given the same answer.
    """
    return Conversion(model, to, original)
