"""Classes of the MLX libraries, loaded from a directory as the libraries themselves load them.

Such a class reads MLX's layout without any map of ours: an independent check of a map's layout.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ....errors import MismatchError, WeighbridgeError
from ...checkpoints import Header
from ...checkpoints.base import different
from ...common.arrays import to_mlx
from ...libraries.protocols import beside
from ...libraries.target import CODES, OWN
from ...models import Model
from ...values import Array
from .caches import answers, new_cache, read_on, reason_unread, sees, taken

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn


# Inputs of transformers' classes -> what classes of the MLX libraries call them.
RENAMED: Final = {"decoder_input_ids": "canvas_ids"}
# The same of outputs.
GIVEN: Final = {"logits": "pred_logits"}


def layout_reader(model: Model) -> str | None:
    """Return which class of an MLX library reads MODEL's directory; ``None`` where none does.

    Names and shapes of the files go through the library's own loading, values are not read.

    >>> layout_reader(Model("x", "torch", None, {})) is None
    True
    """
    return (
        None if misfits(model) else f"{model.library}: its own class loads and runs the directory"
    )


def misfits(model: Model) -> list[str]:
    """Return why no class of an MLX library reads MODEL's directory; empty where one does."""
    if model.framework != "mlx" or model.factory is not None or model.path is None:
        return [f"{model.spec} is not a directory in MLX's layout"]
    if model.library is None:
        return [f"no MLX library here has model_type {model.config.get('model_type')}"]
    try:
        lazy = {name: unread(head) for name, head in model.checkpoint.headers.items()}
        return list(differences(*loaded(model, lazy)))
    except WeighbridgeError as error:
        return [str(error)]


def unread(head: Header) -> mx.array:
    """Return an array with the dtype and shape of HEAD that takes no memory until it is read."""
    import mlx.core as mx

    names = {code: name for name, code in CODES.items()}
    return mx.zeros(head.shape, getattr(mx, names.get(head.dtype, "float32")))


def loaded(model: Model, weights: Mapping[str, mx.array]) -> tuple[nn.Module, dict[str, mx.array]]:
    """Return the library's class for MODEL, unfilled, and WEIGHTS as its loading completes and renames them.

    The one object that sanitizes also runs: some classes drop a layer of their own while they do.
    """
    parts = list(model.library.parts(class_config(model))) if model.library else []
    renamed = {**weights, **(beside(model.path, model.library.library) if model.library else {})}
    for part in parts:
        if hasattr(part, "sanitize"):
            renamed = dict(part.sanitize(renamed))
    return parts[0], renamed


def parameter_names(model: Model) -> dict[str, str]:
    """Return which parameter of the library's class each tensor of MODEL is, whole and as it lies.

    Tensors that the class's loading changes, other than in name, are left out.
    """
    lazy = {name: unread(head) for name, head in model.checkpoint.headers.items()}
    own = {id(array): name for name, array in loaded(model, lazy)[1].items()}
    return {name: own[id(array)] for name, array in lazy.items() if id(array) in own}


def differences(
    module: nn.Module, weights: Mapping[str, mx.array] | Mapping[str, Header]
) -> Iterator[str]:
    """Yield how names and shapes of WEIGHTS differ from MODULE's parameters."""
    from mlx.utils import tree_flatten

    parameters: Any = tree_flatten(module.parameters())
    return different(dict(parameters), weights)


def library_module(model: Model, read: Mapping[str, Array]) -> nn.Module:
    """Return MODEL's library class with the weights READ, strictly.

    Raises:
        MismatchError: names or shapes differ; all of them are listed.
    """
    module, weights = loaded(model, {name: to_mlx(array) for name, array in read.items()})
    if problems := list(differences(module, weights)):
        raise MismatchError(f"{model.spec} does not fit {model.library}", problems)
    module.load_weights(list(weights.items()), strict=True)
    return module


@contextlib.contextmanager
def sixteen_bit_experts() -> Iterator[None]:
    """Let MLX's CPU multiply gathered matrices in 16 bits: in float32, the result rounded once.

    MLX has that kernel for GPUs in every dtype, and for CPUs in float32 alone (0.32).
    """
    import mlx.core as mx

    plain = mx.gather_mm

    def widened(a: mx.array, b: mx.array, *args: Any, **options: Any) -> mx.array:
        if a.dtype == mx.float32 or mx.default_device() != mx.Device(mx.cpu):
            return plain(a, b, *args, **options)
        wide = plain(a.astype(mx.float32), b.astype(mx.float32), *args, **options)
        return wide.astype(a.dtype)

    mx.gather_mm = widened
    try:
        yield
    finally:
        mx.gather_mm = plain


def call_native(module: nn.Module, feed: Mapping[str, mx.array]) -> Any:
    """Call a library's MODULE: the first input by place, others by name, what it insists on as None.

    One of mlx-vlm is called as its generation does: it may keep positions of the text before otherwise.
    """
    if sees(module) and taken(module) and (answers(module) or not reason_unread(module)):
        return read_on(module, feed, new_cache(module), module.get_input_embeddings)
    (name, first), *others = feed.items()
    if name == "pixel_values" and sees(module):
        first = first.transpose(0, 2, 3, 1)  # mlx-vlm's classes of pictures have channels last
    parameters = list(inspect.signature(type(module).__call__).parameters.values())[2:]
    asked = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    named = dict.fromkeys(p.name for p in asked) | dict(others)
    named |= {own: named[name] for name, own in RENAMED.items() if name in named}
    found = module(first, **{p.name: named[p.name] for p in parameters if p.name in named})
    if not isinstance(found, dict):
        return found
    return {name: found[own] for name, own in GIVEN.items() if own in found} | found


def has_own_class(model: Model) -> bool:
    """Say whether a class that comes with Weighbridge is for MODEL, a directory in MLX's layout."""
    if model.framework != "mlx" or model.factory is not None or model.path is None:
        return False
    return model.library is not None and model.library.library == OWN


def class_config(model: Model) -> Mapping[str, Any]:
    """Return the configuration that MODEL's class is made from.

    Where the class is ours it names what the files hold, which is known of a tabled family and which
    ``architectures`` need not say.
    """
    if model.family is None or not has_own_class(model):
        return model.config
    return {**model.config, "architectures": [model.family.torch_class]}


def refusal(model: Model) -> str:
    """Return why the class of MODEL does not take its configuration; empty where it does."""
    try:
        if model.library is not None:
            next(model.library.parts(class_config(model)))
    except WeighbridgeError as error:
        return str(error)
    return ""
