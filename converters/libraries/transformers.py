"""What transformers knows of a config: the class that runs it, and the tensors it would write."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

from ...errors import BadInputError, UnsupportedError
from ..checkpoints.base import Header
from ..common.arrays import from_torch, to_torch
from ..common.memory import pass_on_shortage
from ..common.users_code import described
from ..values import Array
from .floats import decoded, document_of, own_keys
from .hub import FUSED, HUB

Config = Mapping[str, Any]
_filled: dict[tuple[str, str], Any] = {}  # the last config, which a check asks for many times
Headers = dict[str, Header]
Layout = Literal["saved", "hub"]
# Of transformers' tables, the first that knows the model type names the class.
LANGUAGE: Final = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
IMAGE_AND_TEXT: Final = "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES"
BARE: Final = "MODEL_MAPPING_NAMES"


def torch_class(config: Config) -> str:
    """Return the name of the transformers class for CONFIG.

    The first of its ``architectures`` that transformers has; else the class for its ``model_type``
    with a language head, with an image-and-text head (this one first where the config has a
    ``text_config``), without a head.

    >>> torch_class({"model_type": "llama"})
    'LlamaForCausalLM'

    Raises:
        UnsupportedError: transformers does not know the ``model_type``.
    """
    import transformers
    from transformers.models.auto import modeling_auto

    kind = str(config.get("model_type"))
    for name in config.get("architectures") or ():
        if isinstance(getattr(transformers, str(name), None), type):
            return str(name)
    wrapper = "text_config" in config  # several wrappers also have a class for their text alone
    order = (IMAGE_AND_TEXT, LANGUAGE, BARE) if wrapper else (LANGUAGE, IMAGE_AND_TEXT, BARE)
    tables = [getattr(modeling_auto, name) for name in order]
    found = [table[name] for table in tables for name in names(kind) if name in table]
    if found:
        return str(found[0] if isinstance(found[0], str) else found[0][0])
    raise UnsupportedError(
        f"transformers {transformers.__version__} has no class for model_type {kind!r}"
    )


def names(kind: str) -> list[str]:
    """Return the model type KIND, then the others whose configs are read by the same class."""
    from transformers.models.auto import configuration_auto

    readers = configuration_auto.CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]
    return [kind, *(name for name, reader in readers.items() if reader == readers.get(kind))]


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
    kind = str(config.get("model_type"))
    published = layout == "hub"
    with quiet():
        state = saved_state(meta_model(config), fused=published and kind in FUSED)
    found = {name: header(tensor, dtype) for name, tensor in state.items()}
    if not published or kind not in HUB:
        return found
    return dict(pair for name, head in found.items() for pair in HUB[kind](config, name, head))


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

    kind = str(config.get("model_type"))
    if kind not in CONFIG_MAPPING:
        raise UnsupportedError(
            f"transformers {transformers.__version__} does not know model_type {kind!r}"
        )
    key = kind, document_of(config)
    found = _filled.get(key)
    if found is None:
        found = filled(CONFIG_MAPPING[kind], config)
        _filled.clear()
        _filled[key] = found
    return copy.deepcopy(found)


def filled(cls: Any, config: Config) -> Any:
    """Return the config that CLS makes of CONFIG.

    Raises:
        BadInputError: it does not take it.
    """
    try:
        return cls.from_dict(decoded(own_keys(config)))
    except Exception as error:
        pass_on_shortage(error)
        raise BadInputError(
            f"config.json does not fit transformers' {cls.__name__}: {described(error)}. Correct config.json"
        ) from error


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keep transformers from drawing progress bars of its own."""
    from transformers.utils import logging as transformers_logging

    library: Any = transformers_logging
    shown = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bar()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from logging warnings about a model that is built for its shapes alone."""
    from transformers.utils.logging import get_verbosity, set_verbosity

    before = get_verbosity()
    set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        set_verbosity(before)


def meta_model(config: Config, name: str = "") -> Any:
    """Return the transformers model for CONFIG on the meta device: names and shapes, no memory.

    Args:
        config: a config that transformers reads.
        name: of another class than the one that CONFIG asks for.

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: transformers does not know the model type, or lacks a package for it.
    """
    import torch
    import transformers

    name = name or torch_class(config)
    known = transformers_config(config)
    try:
        with torch.device("meta"):
            return getattr(transformers, name)._from_config(known)
    except ImportError as error:
        pass_on_shortage(error)
        reason = " ".join(str(error).split())[:200]
        raise UnsupportedError(
            f"transformers' {name} needs what is not installed: {reason}"
        ) from error
    except Exception as error:
        pass_on_shortage(error)
        raise BadInputError(
            f"config.json does not build transformers' {name}: {described(error)}. Correct config.json"
        ) from error


def saved_state(model: Any, *, fused: bool = False) -> dict[str, Any]:
    """Return the tensors that ``save_pretrained`` of MODEL would write, by name.

    The same steps as ``PreTrainedModel.save_pretrained`` of transformers 5: ignored keys go, of tied
    weights one stays, the conversion of loading is undone (FUSED: its renamings alone).
    """
    from transformers.core_model_loading import revert_weight_conversion
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    ignored = set(model._keys_to_ignore_on_save or ())
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in ignored}
    state = remove_tied_weights_from_state_dict(state, model)
    if fused:
        model._weight_conversions = renamings(model)
    return dict(revert_weight_conversion(model, state))


def computed(model: Any) -> frozenset[str]:
    """Return the names in the state dict of MODEL that it computes itself: buffers, and what is never saved."""
    buffers = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    return frozenset({*buffers, *model._keys_to_ignore_on_save})


def own_headers(model: Any) -> Headers:
    """Return the tensors of MODEL by its own names, which those of its checkpoints may differ from."""
    from transformers.modeling_utils import remove_tied_weights_from_state_dict

    state = remove_tied_weights_from_state_dict(model.state_dict(), model)
    return {name: header(tensor, "F32") for name, tensor in state.items()}


def as_saved(model: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return ARRAYS, by the names of MODEL, under the names and in the shapes of its checkpoints."""
    from transformers.core_model_loading import revert_weight_conversion

    state = revert_weight_conversion(model, {name: to_torch(it) for name, it in arrays.items()})
    return {name: from_torch(tensor) for name, tensor in state.items()}


def renamings(model: Any) -> list[Any]:
    """Return the conversions of loading MODEL that only rename; prefixes as when saving it."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange, WeightConverter

    found = get_model_conversion_mapping(model, add_legacy=False)
    return [step for step in found if not isinstance(step, (PrefixChange, WeightConverter))]
