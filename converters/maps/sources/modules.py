"""The map from a checkpoint's tensors to the parameters of the live transformers module.

PEFT speaks of modules as they run: experts in one tensor, projections fused, the class's own prefix.
Adapters and live runtimes go through this map, both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...checkpoints.base import Header
from ...common import cache
from ...libraries.apart import apart
from ...libraries.defaults import key_of
from ...libraries.floats import document_of
from ..binding.weightmap import WeightMap
from ..headers import listed
from .learned import digest, revision

Config = Mapping[str, Any]
Headers = Mapping[str, Header]
KIND: Final = "module-map"


def module_map(
    config: Config, headers: Headers, name: str = "", *, partial: bool = False
) -> WeightMap:
    """Return the map from a torch checkpoint's names to those of the class that runs it; kept.

    It leads to every parameter of the class, so that ``module_map(...).bind(headers, config=config)``
    has the names and shapes of ``describe(config, name).headers``, without second names of tied
    parameters and without buffers that the class computes.

    Args:
        config: a config that transformers reads; give it to ``bind`` too.
        headers: the checkpoint's, from ``save_pretrained``, the hub, or of the class with another head.
        name: of another class than the one that CONFIG asks for, such as ``BertModel``.
        partial: let the class have parameters that the checkpoint lacks, such as a head, or experts
            that it holds in a quantized form. The map does not lead to them.

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: the class finds some of its parameters missing, or loading does more than
            a map can say.
    """
    key = [*key_of(document_of(config)), name, partial, revision(), digest(headers)]
    text = cache.recall(KIND, key)
    if text is None:
        text = apart(
            f"{__package__}.followed", "answer", dict(config), listed(headers), name, partial
        )
        cache.keep(KIND, key, text)
    return WeightMap.parse(text, f"{name or 'transformers'} (its loading)")
