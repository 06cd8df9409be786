"""The models that a configuration names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...converters.models import Model
from ...converters.models.factories import looks_like_factory
from ...converters.models.specs import exists
from ...converters.planning.opening import open as open_model
from ...errors import BadInputError
from ..config import TrainConfig


def opened(config: TrainConfig) -> Model:
    """Open the model of CONFIG.

    Raises:
        WeighbridgeError: there is none, or it is not what the configuration says.
    """
    code = config.trust_code or looks_like_factory(config.model)
    if config.model_options and not code:
        raise BadInputError(
            "model_options: only a model that is MODULE:FUNCTION takes them, and this one is a"
            " directory; leave them out"
        )
    with naming("model", config.model, config.trust_code):
        return open_model(config.model, trust_code=config.trust_code, options=config.model_options)


@contextmanager
def naming(key: str, spec: str, trust_code: str | None) -> Iterator[None]:
    """Add the KEY that SPEC is the value of to the error of the block that there is no such directory."""
    try:
        yield
    except BadInputError as error:
        if trust_code or looks_like_factory(spec) or exists(spec):
            raise
        raise BadInputError(f"{error}; --set {key}=DIRECTORY") from None
