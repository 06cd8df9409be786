"""The model that a configuration names."""

from __future__ import annotations

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
    try:
        return open_model(config.model, trust_code=config.trust_code, options=config.model_options)
    except BadInputError as error:
        if code or exists(config.model):
            raise
        raise BadInputError(f"{error}; --set model=DIRECTORY") from None
