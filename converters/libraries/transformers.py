"""What transformers knows of a config: the class that runs it, and the tensors it would write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

from ...errors import BadInputError, UnsupportedError
from ..checkpoints.base import Header
from ..dtypes import FLOATS

Config = Mapping[str, Any]
Headers = dict[str, Header]
Layout = Literal["saved", "hub"]
# Of transformers' tables, the first that knows the model type names the class.
TABLES: Final = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
# Converters that save_pretrained replays although the hub's files do not lie that way.
KEPT_FUSED: Final = {"qwen3_5_moe", "qwen3_5_moe_text"}


def torch_class(config: Config) -> str:
    """Return the name of the transformers class for CONFIG.

    The first of its ``architectures`` that transformers has; else the class for its ``model_type``
    with a language head, with an image-and-text head, without a head.

    >>> torch_class({"model_type": "llama"})
    'LlamaForCausalLM'

    Raises:
        UnsupportedError: transformers does not know the ``model_type``.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    kind = config.get("model_type")
    for name in config.get("architectures") or ():
        if isinstance(getattr(transformers, str(name), None), type):
            return str(name)
    for table in TABLES:
        found = getattr(modeling_auto, table).get(kind)
        if found:
            return str(found if isinstance(found, str) else found[0])
    raise UnsupportedError(
        f"transformers {transformers.__version__} has no class for model_type {kind!r}"
    )


def hub_headers(config: Config, dtype: str = "F32", layout: Layout = "saved") -> Headers:
    """Return the tensors of a checkpoint for CONFIG: names, shapes, DTYPE for every float.

    The model is built on the meta device, so no size of model takes memory.

    Args:
        config: a config that transformers reads.
        dtype: safetensors code given to floating-point tensors.
        layout: ``saved`` as ``save_pretrained`` of this transformers writes it; ``hub`` as the
            published checkpoints of the type lie where that is known to differ (experts of
            ``qwen3_vl_moe`` and ``qwen3_5_moe``, names of ``gpt2``).

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: transformers does not know the model type or cannot undo its conversion.
    """
    model = meta_model(config)
    with hub_conversions(str(config.get("model_type")), layout):
        state = saved_state(model)
    renamed = HUB_NAMES.get(str(config.get("model_type")), str) if layout == "hub" else str
    found = {renamed(name): header(tensor, dtype) for name, tensor in state.items()}
    move = HUB_SHAPES.get(str(config.get("model_type"))) if layout == "hub" else None
    return {name: move(name, head) if move else head for name, head in found.items()}


def header(tensor: Any, dtype: str) -> Header:
    """Return the Header of a torch TENSOR, DTYPE standing in for every floating-point one."""
    import torch

    codes = {torch.bool: "BOOL", torch.uint8: "U8", torch.int32: "I32", torch.int64: "I64"}
    code = dtype if tensor.is_floating_point() else codes[tensor.dtype]
    return Header(code, tuple(tensor.shape))


def transformers_config(config: Config) -> Any:
    """Return the ``PretrainedConfig`` for CONFIG, which it fills with its own defaults.

    Raises:
        BadInputError: the class of configs does not take it.
        UnsupportedError: transformers does not know the ``model_type``.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise UnsupportedError(
            f"transformers {transformers.__version__} does not know model_type {kind!r}"
        )
    plain = {k: v for k, v in config.items() if k not in {"auto_map", "quantization_config"}}
    cls = CONFIG_MAPPING[kind]
    try:
        return cls.from_dict(plain)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadInputError(
            f"config.json does not fit transformers' {cls.__name__}: {said}. Correct config.json"
        ) from error


def meta_model(config: Config) -> Any:
    """Return the transformers model for CONFIG on the meta device: names and shapes, no memory.

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: transformers does not know the model type.
    """
    import torch
    import transformers

    name = torch_class(config)
    known = transformers_config(config)
    try:
        with torch.device("meta"):
            return getattr(transformers, name)._from_config(known)
    except Exception as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise BadInputError(
            f"config.json does not build transformers' {name}: {said}. Correct config.json"
        ) from error


def saved_state(model: Any) -> dict[str, Any]:
    """Return the tensors that ``save_pretrained`` of MODEL would write, by name.

    The same steps as ``PreTrainedModel.save_pretrained`` of transformers 5: ignored keys go, of tied
    weights one stays, the conversion of loading is undone.
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    ignored = set(model._keys_to_ignore_on_save or ())
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
    state = remove_tied_weights_from_state_dict(state, model)
    return dict(revert_weight_conversion(model, state))
