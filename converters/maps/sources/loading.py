"""Follow tensors through the loading of transformers: where each number of a checkpoint ends up.

What ``from_pretrained`` does to tensors is code: renamings, stacks, joins, transpositions, kept in a
table by class. It is run here on tensors without numbers, each of which knows the pieces of the
checkpoint that it is made of; so the table need not be understood, only what comes out is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import torch

from ....errors import UnsupportedError
from ...checkpoints.base import Header
from ...libraries.transformers import meta_model, no_progress_bar, quiet
from ..learn.trace.forms import Form, whole
from ..learn.trace.pieces import Unfit
from .traced import Traced

DTYPES: Final = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}  # floats are all float32 here: a map keeps dtypes


@dataclass(frozen=True)
class Followed:
    """What loading does to a checkpoint.

    Attributes:
        name: of the class.
        forms: what each parameter that was loaded is made of; of several names of one parameter
            the first only.
        missing: names in the class's state dict that nothing was loaded into.
    """

    name: str
    forms: Mapping[str, Form]
    missing: frozenset[str]


def follow(config: Mapping[str, Any], headers: Mapping[str, Header], name: str = "") -> Followed:
    """Return what transformers makes of a checkpoint with HEADERS when it loads CONFIG's class.

    Args:
        config: a config that transformers reads.
        headers: the checkpoint.
        name: of another class than the one that CONFIG asks for.

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: it does not know the type, a tensor has another shape than the class asks
            for, or it does more to one than move its numbers.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import convert_and_load_state_dict_in_model
    from transformers.modeling_utils import LoadStateDictConfig

    with quiet(), no_progress_bar():
        model = meta_model(config, name)
        aliases = dict(getattr(model, "all_tied_weights_keys", None) or {})
        tensors = {
            at: Traced(whole(at, h.shape), DTYPES.get(h.dtype, torch.float32))
            for at, h in headers.items()
        }
        changes: Any = get_model_conversion_mapping(model)
        plan = LoadStateDictConfig(weight_mapping=changes)
        info, _ = convert_and_load_state_dict_in_model(model, tensors, plan)
    class_name = type(model).__name__
    if problem := next(_problems(info), None):
        raise UnsupportedError(f"{class_name} does not load this checkpoint: {problem}")
    forms = loaded(model, aliases)
    return Followed(class_name, forms, frozenset(model.state_dict().keys() - forms.keys()))


def _problems(info: Any) -> Iterator[str]:
    """Yield what went wrong by the INFO of transformers."""
    for at, found, expected in sorted(info.mismatched_keys):
        yield f"{at}: expected {list(expected)}, found {list(found)}"
    yield from (f"{at}: {last_line(text)}" for at, text in sorted(info.conversion_errors.items()))
    yield from map(str, info.error_msgs)


def last_line(text: str) -> str:
    """Return the message in TEXT, a traceback and what transformers adds to it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    message = next((line for line in reversed(lines) if line.startswith(MARK)), lines[-1])
    return message.removeprefix(MARK)[:200]


MARK: Final = f"{Unfit.__module__}.{Unfit.__qualname__}: "


def loaded(model: Any, aliases: Mapping[str, str]) -> dict[str, Form]:
    """Return the form of every parameter and saved buffer of MODEL that a tensor was loaded into.

    Those in ALIASES count only if they became another tensor than what they are tied to.
    """
    named = chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )
    tensors = {name: value for name, value in named if isinstance(value, Traced)}
    saved = model.state_dict().keys()
    seen: set[int] = set()
    found = {}
    for name in sorted(tensors.keys() & saved, key=lambda name: name in aliases):
        if id(tensors[name]) not in seen:
            seen.add(id(tensors[name]))
            found[name] = tensors[name].form
    return {name: found[name] for name in saved if name in found}
