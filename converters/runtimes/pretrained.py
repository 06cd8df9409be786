"""Classes of transformers, built and filled as transformers itself fills them, but strictly.

What a checkpoint holds is not always what a module holds: transformers 5 stacks experts, fuses
projections and renames on loading. Its own conversion does that here, so the module computes what
``from_pretrained`` would make of the files; what that would leave at random is an error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...errors import MismatchError, UnsupportedError
from ..checkpoints.base import require_unwrapped
from ..libraries.transformers import computed, no_progress_bar, torch_class, transformers_config
from ..models import Model

if TYPE_CHECKING:
    import torch

# Plain loops and matrix products: other kernels leave out soft caps and sinks, or have no float64.
PLAIN: Final = {"attn_implementation": "eager", "experts_implementation": "eager"}


def empty_pretrained(model: Model) -> Any:
    """Build the class of transformers that runs MODEL, weights at random, caches off.

    Raises:
        BadInputError: transformers does not take the configuration.
        UnsupportedError: transformers does not know the ``model_type``, or needs a package for it.
    """
    import transformers

    config = transformers_config(torch_config(model))
    row = model.family.torch_class if model.family else ""
    cls = getattr(transformers, row or torch_class(torch_config(model)))
    config.use_cache = False  # a cache among the outputs cannot be captured
    if not row:
        config._attn_implementation = PLAIN["attn_implementation"]
        config._experts_implementation = PLAIN["experts_implementation"]
    try:
        return cls(config)
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0]
        raise UnsupportedError(f"{model.spec}: {cls.__name__} cannot be built: {reason}") from error


def giving(module: torch.nn.Module, outputs: tuple[str, ...]) -> torch.nn.Module:
    """Return what of MODULE gives OUTPUTS: what is below its head of words where hidden states are asked for.

    What says aloud what another part of it thinks is left out; such a class calls none of its parts.
    """
    own: Any = getattr(module, "thinker", module)
    head = getattr(own, "get_output_embeddings", None)
    headed = outputs == ("last_hidden_state",) and head is not None and head() is not None
    found: torch.nn.Module = own.base_model if headed else own
    return found


def torch_config(model: Model) -> Mapping[str, Any]:
    """Return MODEL's configuration as transformers reads it; an MLX directory's is translated back."""
    if model.framework != "mlx" or (model.family and model.family.map):
        return model.config
    from ..configs import to_torch

    return to_torch(model.config, model.config_changes or None).config


def load_pretrained(
    module: Any,
    tensors: Mapping[str, torch.Tensor],
    where: str,
    *,
    towers: bool = False,
    device: str = "cpu",
) -> dict[str, str | None]:
    """Load TENSORS, named as in a checkpoint, into MODULE, a model of transformers.

    Args:
        module: what to fill.
        tensors: by checkpoint name.
        where: whose they are, for messages.
        towers: whether whole towers may be absent, as from an MLX language model. They are filled
            with NaN: an output that needs one cannot pass for right.
        device: of TENSORS; ``meta`` where only names and shapes are to be checked.

    Returns:
        The weight of MODULE that each of TENSORS is in; ``None`` for one that is passed over.

    Raises:
        WeighbridgeError: a weight is missing, unexpected, of another shape or of whole numbers; all are listed.
    """
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    plan = LoadStateDictConfig(weight_mapping=changes_for(module, device), device_map={"": device})
    with no_progress_bar():
        info, _ = convert_and_load_state_dict_in_model(module, dict(tensors), plan)
    module.tie_weights(missing_keys=info.missing_keys, recompute_mapping=False)
    # What transformers would leave at random is an error; a buffer has what its module computed.
    absent = info.missing_keys - computed(module)
    absent -= close_towers(module, absent) if towers else set()
    module._adjust_missing_and_unexpected_keys(info)
    whole = whole_numbers(module, tensors, found := places(module, tensors))
    if problems := [*missing(module, absent), *loading_problems(info), *whole]:
        require_unwrapped(tensors, where)
        raise MismatchError(f"{where} does not fit {type(module).__name__}", problems)
    return found


def whole_numbers(
    module: Any, tensors: Mapping[str, torch.Tensor], found: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield which of TENSORS, FOUND in floating-point parameters of MODULE as they are, are whole numbers."""
    parameters = dict(module.named_parameters())
    for name, tensor in tensors.items():
        parameter = parameters.get(found.get(name) or "")
        if parameter is None or tensor.is_floating_point() or tensor.shape != parameter.shape:
            continue
        if parameter.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            yield (
                f"{name} is {kind}, codes of a quantization that config.json does not name"
                " (quantization_config), or rounded by mistake; save it as floating-point numbers"
            )


def changes_for(module: Any, device: str) -> Any:
    """Return what transformers makes of a checkpoint's tensors for MODULE, on DEVICE all of it.

    Some it makes on the CPU alone, for want of memory, of which nothing is taken on ``meta``.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping

    changes: Any = get_model_conversion_mapping(module)
    for change in changes:
        if device == "meta" and getattr(change, "force_cpu", False):
            change.force_cpu = False
    return changes


def loading_problems(info: Any) -> Iterator[str]:
    """Yield what INFO reports besides missing weights."""
    yield from (f"{name} is unexpected" for name in sorted(info.unexpected_keys))
    for name, found, expected in sorted(info.mismatched_keys):
        yield f"{name}: expected {list(expected)}, found {list(found)}"
    yield from (f"{name}: {error}" for name, error in sorted(info.conversion_errors.items()))
    yield from info.error_msgs


def missing(module: Any, absent: Collection[str]) -> Iterator[str]:
    """Yield a line for each weight ABSENT of MODULE, one for all of a tower."""
    towers = absent_towers(module, absent)
    for tower in sorted({*towers.values()}):
        names = [name for name in sorted(towers) if towers[name] == tower]
        count, first = len(names), ", ".join(names[:2])
        yield f"{tower}.*: all {count} weights are missing ({first}{', ...' if count > 2 else ''})"
    yield from (f"{name} is missing" for name in sorted(absent) if name not in towers)


def absent_towers(module: Any, absent: Collection[str]) -> dict[str, str]:
    """Return the towers of MODULE that those of its weights ABSENT belong to, by weight.

    A tower is a submodule near the top, of several weights, none of which was there.
    """
    there = {part for name in module.state_dict().keys() - {*absent} for part in heads(name)}
    of = {name: next((part for part in heads(name) if part not in there), "") for name in absent}
    counts = Counter(of.values())
    return {name: tower for name, tower in of.items() if tower and counts[tower] > 1}


def close_towers(module: Any, absent: Collection[str]) -> set[str]:
    """Fill with NaN those weights ABSENT of MODULE that belong to a tower; return their names."""
    own, closed = module.state_dict(), absent_towers(module, absent)
    for name in closed:
        own[name].fill_(math.nan)
    return {*closed}


def heads(name: str) -> list[str]:
    """Return the names of the submodules near the top that the weight NAME is in.

    >>> heads("model.visual.blocks.0.bias")
    ['model', 'model.visual']
    """
    parts = name.split(".")[:-1]
    return [".".join(parts[:end]) for end in range(1, min(len(parts), 2) + 1)]


def places(module: Any, names: Iterable[str]) -> dict[str, str | None]:
    """Return which weight of MODULE each checkpoint tensor of NAMES is loaded into, or ``None``.

    The names are changed as in transformers' ``convert_and_load_state_dict_in_model``. Of several
    weights that one tensor is cut into it is the first.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    own = module.state_dict()
    changes = get_model_conversion_mapping(module)
    renamings = [it for it in changes if isinstance(it, WeightRenaming)]
    converters = [it for it in changes if isinstance(it, WeightConverter)]
    prefix = module.base_model_prefix
    found: dict[str, str | None] = {}
    for name in names:
        changed, _ = rename_source_key(name, renamings, converters, prefix, own)
        prefixed, _ = rename_source_key(name, [], [], prefix, own)
        found[name] = next((new for new in (changed, prefixed) if new in own), None)
    return found
