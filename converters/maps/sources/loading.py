"""Follow tensors through the loading of transformers: where each number of a checkpoint ends up.

What ``from_pretrained`` does to tensors is code: renamings, stacks, joins, transpositions, kept in a
table by class. It is run here on tensors without numbers, each of which knows the pieces of the
checkpoint that it is made of; so the table need not be understood, only what comes out is read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, Final

import torch

from ....errors import UnsupportedError
from ...checkpoints.base import Header
from ...libraries.transformers import meta_model, quiet
from ..learn.trace.forms import Form, joined, whole
from ..learn.trace.pieces import Unfit

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


@contextlib.contextmanager
def no_progress_bar() -> Any:
    """Keep transformers from drawing progress bars of its own."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


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


class Traced(torch.Tensor):
    """A tensor without numbers that knows what it is made of."""

    form: Form

    @staticmethod
    def __new__(cls, form: Form, dtype: torch.dtype) -> Traced:
        """Return a tensor of the shape of FORM; nothing is allocated."""
        made: Traced = torch.Tensor._make_wrapper_subclass(
            cls, form.shape, dtype=dtype, device=torch.device("cpu")
        )
        made.form = form
        return made

    def __init__(self, form: Form, dtype: torch.dtype) -> None:
        """Take what ``__new__`` took."""

    def __repr__(self) -> str:  # type: ignore[override]
        """Print the shape; there are no numbers."""
        return f"Traced{self.form.shape}"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Do to the forms what FUNCTION would do to the tensors.

        Raises:
            Unfit: it does more than move numbers.
        """
        name = function._schema.name.removeprefix("aten::")
        if name not in MOVES:
            raise Unfit(f"loading calls torch's {name}, which computes with the numbers")
        first = args[0][0] if isinstance(args[0], list | tuple) else args[0]
        dtype = (kwargs or {}).get("dtype") or first.dtype
        made = MOVES[name](*args)
        forms = made if isinstance(made, list) else [made]
        found = [Traced(form, dtype) for form in forms]
        return found if isinstance(made, list) else found[0]


def _axis_of(tensor: Traced, dim: int) -> int:
    return dim % max(tensor.ndim, 1)


def _same(tensor: Traced, *_: Any) -> Form:
    return tensor.form


def _viewed(tensor: Traced, shape: Sequence[int]) -> Form:
    known = torch.empty(tensor.shape, device="meta").reshape(list(shape))
    return tensor.form.reshaped(tuple(known.shape))


def _permuted(tensor: Traced, dims: Sequence[int]) -> Form:
    return tensor.form.transposed([_axis_of(tensor, dim) for dim in dims])


def _transposed(tensor: Traced, one: int = 0, other: int = 1) -> Form:
    order = list(range(tensor.ndim))
    one, other = _axis_of(tensor, one), _axis_of(tensor, other)
    order[one], order[other] = other, one
    return tensor.form.transposed(order)


def _unsqueezed(tensor: Traced, dim: int) -> Form:
    shape = list(tensor.shape)
    shape.insert(dim % (tensor.ndim + 1), 1)
    return tensor.form.reshaped(shape)


def _squeezed(tensor: Traced, dims: int | Sequence[int] | None = None) -> Form:
    """Return the form without the axes DIMS that have size 1, all such axes by default."""
    chosen = range(tensor.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
    gone = {_axis_of(tensor, dim) for dim in chosen}
    shape = [size for at, size in enumerate(tensor.shape) if size != 1 or at not in gone]
    return tensor.form.reshaped(shape)


def _sliced(
    tensor: Traced, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Form:
    axis = _axis_of(tensor, dim)
    return tensor.form.sliced(axis, *slice(start, end, step).indices(tensor.shape[axis]))


def _selected(tensor: Traced, dim: int, index: int) -> Form:
    axis = _axis_of(tensor, dim)
    at = index % tensor.shape[axis]
    shape = [size for other, size in enumerate(tensor.shape) if other != axis]
    return tensor.form.sliced(axis, at, at + 1).reshaped(shape)


def _cut(tensor: Traced, sizes: int | Sequence[int], dim: int = 0) -> list[Form]:
    """Return the form in parts of SIZES, or of one size each, along an axis."""
    axis = _axis_of(tensor, dim)
    total = tensor.shape[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, total - low) for low in range(0, total, sizes)]
    bounds = [0, *accumulate(sizes)]
    return [tensor.form.sliced(axis, low, high) for low, high in pairwise(bounds)]


def _unbound(tensor: Traced, dim: int = 0) -> list[Form]:
    return [_selected(tensor, dim, at) for at in range(tensor.shape[_axis_of(tensor, dim)])]


def _catenated(tensors: Sequence[Traced], dim: int = 0) -> Form:
    return joined([tensor.form for tensor in tensors], _axis_of(tensors[0], dim))


def _stacked(tensors: Sequence[Traced], dim: int = 0) -> Form:
    forms = [_unsqueezed(tensor, dim) for tensor in tensors]
    return joined(forms, dim % len(forms[0].shape))


# What torch is asked for, underneath its methods, by the name of the operation.
MOVES: Final[dict[str, Callable[..., Form | list[Form]]]] = {
    **dict.fromkeys(("alias", "clone", "contiguous", "detach", "lift_fresh", "_to_copy"), _same),
    **dict.fromkeys(("_reshape_alias", "_unsafe_view", "reshape", "view"), _viewed),
    **dict.fromkeys(("split", "split_with_sizes"), _cut),
    "cat": _catenated,
    "permute": _permuted,
    "select": _selected,
    "slice": _sliced,
    "squeeze": _squeezed,
    "stack": _stacked,
    "t": _transposed,
    "transpose": _transposed,
    "unbind": _unbound,
    "unsqueeze": _unsqueezed,
}
