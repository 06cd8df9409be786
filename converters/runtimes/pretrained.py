"""Classes of transformers, built and filled as transformers itself fills them, but strictly.

What a checkpoint holds is not always what a module holds: transformers 5 stacks experts, fuses
projections and renames on loading. Its own conversion does that here, so the module computes what
``from_pretrained`` would make of the files; what that would leave at random is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ...errors import MismatchError
from ..libraries.transformers import torch_class, transformers_config
from ..models import Model

if TYPE_CHECKING:
    import torch

# Plain loops and matrix products: other kernels leave out soft caps and sinks, or have no float64.
PLAIN: Final = {"attn_implementation": "eager", "experts_implementation": "eager"}


def empty_pretrained(model: Model) -> Any:
    """Build the class of transformers that runs MODEL, weights at random, caches off.

    Raises:
        BadInputError: transformers does not take the configuration.
        UnsupportedError: transformers does not know the ``model_type``.
    """
    import transformers

    config = transformers_config(torch_config(model))
    row = model.family.torch_class if model.family else ""
    cls = getattr(transformers, row or torch_class(torch_config(model)))
    config.use_cache = False  # a cache among the outputs cannot be captured
    if not row:
        config._attn_implementation = PLAIN["attn_implementation"]
        config._experts_implementation = PLAIN["experts_implementation"]
    return cls(config)


def torch_config(model: Model) -> Mapping[str, Any]:
    """Return MODEL's configuration as transformers reads it; an MLX directory's is translated back."""
    if model.framework != "mlx" or (model.family and model.family.map):
        return model.config
    from ..configs import to_torch

    return to_torch(model.config, model.config_changes or None).config


def load_pretrained(module: Any, tensors: Mapping[str, torch.Tensor], where: str) -> frozenset[str]:
    """Load TENSORS, named as in a checkpoint, into MODULE, a model of transformers.

    Args:
        module: what to fill.
        tensors: by checkpoint name.
        where: whose they are, for messages.

    Returns:
        The names that transformers passes over in checkpoints of this class.

    Raises:
        MismatchError: a weight is missing, unexpected or of another shape; all are listed.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    plan = LoadStateDictConfig(weight_mapping=get_model_conversion_mapping(module))
    info, _ = convert_and_load_state_dict_in_model(module, dict(tensors), plan)
    unasked = frozenset(info.unexpected_keys)
    module.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    # What transformers would leave at random here, ``_keys_to_ignore_on_load_missing``, is an error;
    # a buffer has the values that its module computed.
    computed = {name for name, _ in module.named_buffers()}
    problems = [f"{name} is missing" for name in sorted(info.missing_keys - computed)]
    module._adjust_missing_and_unexpected_keys(info)
    problems += [f"{name} is unexpected" for name in sorted(info.unexpected_keys)]
    problems += [
        f"{name}: expected {list(expected)}, found {list(found)}"
        for name, found, expected in sorted(info.mismatched_keys)
    ]
    problems += [f"{name}: {error}" for name, error in sorted(info.conversion_errors.items())]
    problems += list(info.error_msgs)
    if problems:
        raise MismatchError(f"{where} does not fit {type(module).__name__}", problems)
    patterns = tuple(module._keys_to_ignore_on_load_unexpected or ())
    own = module.state_dict().keys()
    return frozenset(
        name
        for name in tensors
        if name not in own and (name in unasked or any(re.search(it, name) for it in patterns))
    )
