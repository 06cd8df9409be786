"""What a module in MLX keeps of a text between calls, as mlx-lm's generation makes it."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mlx import nn

SEES: Final = "mlx_vlm"  # its generation calls the language model inside, with caches of its own


def takes_cache(module: nn.Module) -> bool:
    """Say whether generation calls MODULE with a cache that mlx-lm makes."""
    makes = hasattr(module, "make_cache") or hasattr(module, "layers")
    takes = "cache" in inspect.signature(type(module).__call__).parameters
    seeing = type(module).__module__.partition(".")[0] == SEES
    return makes and takes and not seeing and find_spec("mlx_lm") is not None


def new_cache(module: nn.Module) -> list[Any]:
    """Return an empty cache for MODULE, which takes one."""
    from mlx_lm.models.cache import make_prompt_cache

    cache: list[Any] = make_prompt_cache(module)
    return cache


def kinds(cache: list[Any]) -> str:
    """Return the classes in CACHE, each once, such as ``KVCache, RotatingKVCache``."""
    inner = [part for it in cache for part in getattr(it, "caches", (it,))]
    return ", ".join(sorted({type(it).__name__ for it in inner if it is not None}))
