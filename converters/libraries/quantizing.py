"""Which modules of a model are quantized and how: decided by the library that has its class."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...errors import BadInputError
from ..common.memory import pass_on_shortage
from ..quantization.scheme import Scheme
from .functions import function
from .packages import module as library_module
from .target import Target

if TYPE_CHECKING:
    from mlx import nn

Config = Mapping[str, Any]
Wish = Callable[[str], Scheme | bool]  # module path -> a scheme; False to keep it; True: no wish
Predicate = Callable[[str, Any], Any]
SECTION: Final = "quantization"


class Decided(NamedTuple):
    """What a library would quantize.

    Attributes:
        config: of the quantized model, as the library writes it.
        schemes: by path of the module.
        shapes: of the weights of all modules that can be quantized, by path.
    """

    config: dict[str, Any]
    schemes: dict[str, Scheme]
    shapes: dict[str, tuple[int, ...]]


def decide(target: Target, config: Config, scheme: Scheme, wish: Wish) -> Decided:
    """Return what the library of TARGET quantizes in a model of CONFIG, and what its config says then.

    The class is built and quantized as the library does it, with nothing evaluated.

    Args:
        target: the class.
        config: of a model that is not quantized.
        scheme: of modules for which neither WISH nor the class has another.
        wish: what is wanted of single modules.

    Raises:
        BadInputError: the class does not take the config, or the library does not quantize it.
        UnsupportedError: the library or a package it needs is not installed.
    """
    model = target.build(config)
    shapes = dict(weights_of(model))
    ways = {"mlx-embeddings": by_mlx_embeddings, "mlx-vlm": by_mlx_vlm}
    way = ways.get(target.library, by_mlx_lm)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            made = way(model, dict(config), scheme, wish)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
        pass_on_shortage(error)
        raise BadInputError(f"{target} cannot be quantized as {scheme}: {error}") from error
    return Decided(made, dict(schemes_of(model)), shapes)


def weights_of(model: nn.Module) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield path and shape of the weight of every module of MODEL that can be quantized."""
    for path, module in model.named_modules():
        if hasattr(module, "to_quantized") and "weight" in module:
            yield path, tuple(module.weight.shape)


def schemes_of(model: nn.Module) -> Iterator[tuple[str, Scheme]]:
    """Yield path and scheme of every quantized module of MODEL."""
    for path, module in model.named_modules():
        if "scales" in module and hasattr(module, "bits"):
            yield path, Scheme(module.bits, module.group_size, getattr(module, "mode", "affine"))


def obeying(wish: Wish, usual: Predicate | None) -> Predicate:
    """Return a predicate as the libraries take it: WISH, and where that has none the USUAL one."""

    def predicate(path: str, module: Any) -> Any:
        wanted = wish(path)
        if isinstance(wanted, Scheme) and hasattr(module, "to_quantized"):
            require_divided(path, module.weight.shape, wanted)
            return wanted.record
        return wanted and (usual is None or usual(path, module))

    return predicate


def require_divided(path: str, shape: Sequence[int], scheme: Scheme) -> None:
    """Refuse a SCHEME whose groups do not fit the weight of the module PATH.

    Raises:
        BadInputError: its columns are no multiple of them.
    """
    if shape[-1] % scheme.group_size:
        raise BadInputError(
            f"{path} {list(shape)} cannot be quantized as {scheme}: {shape[-1]} columns are no multiple"
            f" of {scheme.group_size}; choose a smaller group for it"
        )


def by_mlx_lm(model: nn.Module, config: Config, scheme: Scheme, wish: Wish) -> dict[str, Any]:
    """Quantize MODEL as ``mlx_lm.convert`` does; return its config."""
    quantize = function("mlx-lm", "utils.py", "quantize_model")
    predicate = obeying(wish, getattr(model, "quant_predicate", None))
    sizes = scheme.group_size, scheme.bits
    _, made = quantize(model, config, *sizes, mode=scheme.mode, quant_predicate=predicate)
    return dict(made)


def by_mlx_vlm(model: nn.Module, config: Config, scheme: Scheme, wish: Wish) -> dict[str, Any]:
    """Quantize MODEL as ``mlx_vlm.convert`` does, towers left as they are; return its config."""
    quantize = library_module("mlx_vlm.quant_utils").quantize_model
    skips = function("mlx-vlm", "utils.py", "skip_multimodal_module")
    own = getattr(model, "quant_predicate", None)

    def usual(path: str, module: Any) -> Any:
        return not skips(path) and (own is None or own(path, module))

    config = {"vision_config": {}, **config}
    sizes = scheme.group_size, scheme.bits
    predicate = obeying(wish, usual)
    _, made = quantize(model, config, *sizes, mode=scheme.mode, quant_predicate=predicate)
    return dict(made)


def by_mlx_embeddings(
    model: nn.Module, config: Config, scheme: Scheme, wish: Wish
) -> dict[str, Any]:
    """Quantize MODEL as ``mlx_embeddings.convert`` does; return its config.

    That has no place for a predicate of ours, so its own is led through one.
    """
    own = function("mlx-embeddings", "convert.py", "get_class_predicate")
    named: dict[str, Any] = {}

    def predicate_of(**settings: Any) -> Predicate:
        obeyed = obeying(wish, own(**settings))

        def predicate(path: str, module: Any) -> Any:
            chosen = hasattr(module, "to_quantized") and obeyed(path, module)
            named.update({path: chosen} if isinstance(chosen, dict) else {})
            return chosen

        return predicate

    others = {"get_class_predicate": predicate_of}
    quantize = function("mlx-embeddings", "convert.py", "quantize_model", others)
    _, made = quantize(model, config, scheme.group_size, scheme.bits, mode=scheme.mode)
    return {**made, SECTION: {**made[SECTION], **named}}
