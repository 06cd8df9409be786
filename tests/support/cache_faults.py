"""Classes of mlx-lm whose caches have a fault: read at once they are right, read piece by piece they are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
from mlx import nn
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import ArraysCache, RotatingKVCache
from mlx_lm.utils import load_model


class Kept:
    """Keys and values of all tokens, written anew; a correct cache whose parts a fault exchanges."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None
        self.tokens = self.calls = 0

    @property
    def offset(self) -> int:
        """The position of the next token."""
        return self.tokens

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keep KEYS and VALUES and return all that are kept."""
        self.tokens, self.calls = self.tokens + keys.shape[2], self.calls + 1
        self.keys, self.values = self.behind(self.keys, keys), self.behind(self.values, values)
        return self.keys, self.values

    def behind(self, kept: mx.array | None, new: mx.array) -> mx.array:
        """Return NEW behind what is KEPT."""
        return new if kept is None else mx.concatenate([kept, new], axis=2)

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        """Return which tokens each of COUNT new ones sees."""
        return create_causal_mask(count, self.tokens, window_size=window_size)


class Ahead(Kept):
    """Every position after the first call is one too large."""

    @property
    def offset(self) -> int:
        return self.tokens + (self.tokens > 0)


class Behind(Kept):
    """Every position after the first call is one too small."""

    @property
    def offset(self) -> int:
        return self.tokens - (self.tokens > 0)


class Standing(Kept):
    """Positions begin at 0 in each call."""

    offset = 0  # type: ignore[assignment]


class ByCalls(Kept):
    """Positions count calls, not tokens."""

    @property
    def offset(self) -> int:
        return self.calls


class DropsOldest(Kept):
    """The first token is forgotten by every later call; the second stands for it."""

    def behind(self, kept: mx.array | None, new: mx.array) -> mx.array:
        if kept is not None:
            kept = mx.concatenate([kept[:, :, 1:2], kept[:, :, 1:]], axis=2)
        return super().behind(kept, new)


class RowsExchanged(Kept):
    """What was kept of one row of the batch is used for another."""

    def behind(self, kept: mx.array | None, new: mx.array) -> mx.array:
        return super().behind(None if kept is None else kept[::-1], new)


class Stale(Kept):
    """Values of single tokens are not kept: the last value of before stands for them."""

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self.values is not None and keys.shape[2] == 1:
            values = self.values[:, :, -1:]
        return super().update_and_fetch(keys, values)


class SeesAll(Kept):
    """In a later call every token sees those behind it."""

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        mask = super().make_mask(count, return_array, window_size)
        return mx.ones_like(mask) if self.tokens else mask


class SeesItself(Kept):
    """In a later call no token sees those of its own call before it."""

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        mask = super().make_mask(count, return_array, window_size)
        own = mx.arange(count)[:, None] == mx.arange(count)[None]
        return mx.concatenate([mask[:, : self.tokens], own], axis=1) if self.tokens else mask


class FromTheLeft(Kept):
    """In a later call the triangle of the mask begins at the first key."""

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        rows, columns = mx.arange(count)[:, None], mx.arange(self.tokens + count)[None]
        return columns <= rows


class Wide(RotatingKVCache):
    """Rotates one token too late, and no mask hides it."""

    def __init__(self, max_size: int, keep: int = 0) -> None:
        super().__init__(max_size + 1, keep)

    def make_mask(self, *sizes: Any, **options: Any) -> Any:
        return super().make_mask(*sizes, **{**options, "window_size": None})


class Narrow(RotatingKVCache):
    """Rotates one token too early."""

    def __init__(self, max_size: int, keep: int = 0) -> None:
        super().__init__(max_size - 1, keep)


class Sinks(RotatingKVCache):
    """Never lets go of the first four tokens."""

    def __init__(self, max_size: int, keep: int = 0) -> None:
        super().__init__(max_size, 4)


class OutOfOrder(RotatingKVCache):
    """Takes rotated keys for such as lie in the order of time."""

    def _temporal_order(self, v: mx.array) -> mx.array:
        return v


class NeverForgets(Kept):
    """Keeps all tokens and shows all to a single one, whatever the window."""

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> Any:
        return None if count == 1 else super().make_mask(count, return_array, window_size)


class Forgetful(ArraysCache):
    """Keeps some of the states only."""

    dropped = 0

    def __setitem__(self, index: int, value: Any) -> None:
        super().__setitem__(index, None if index == self.dropped else value)


class ForgetsStates(Forgetful):
    """Keeps no state of the recurrence, but the convolution's."""

    dropped = 1


class FirstState(ArraysCache):
    """Keeps the state of the first call and never another."""

    def __setitem__(self, index: int, value: Any) -> None:
        if self[index] is None:
            super().__setitem__(index, value)


class OneRow(ArraysCache):
    """Keeps the states of the first row for all of the batch."""

    def __setitem__(self, index: int, value: Any) -> None:
        super().__setitem__(index, mx.broadcast_to(value[:1], value.shape))


Make = Callable[[Any], Any]


def of_all(kind: type[Any], cache: Any) -> Any:
    """Return a KIND in place of CACHE, whatever that is."""
    return kind()


def of_windows(kind: type[Any], cache: Any) -> Any:
    """Return a KIND in place of CACHE where it has a window."""
    window = getattr(cache, "max_size", None)
    if window is None:
        return cache
    return kind() if issubclass(kind, Kept) else kind(window)


def of_states(kind: type[Any], cache: Any) -> Any:
    """Return a KIND as large as CACHE."""
    return kind(len(cache.cache))


FAULTS: Final[dict[str, dict[str, Make]]] = {
    "llama": {
        it.__name__: partial(of_all, it)
        for it in (
            Ahead,
            Behind,
            Standing,
            ByCalls,
            DropsOldest,
            RowsExchanged,
            Stale,
            SeesAll,
            SeesItself,
            FromTheLeft,
        )
    },
    "cohere2": {
        it.__name__: partial(of_windows, it)
        for it in (Wide, Narrow, Sinks, OutOfOrder, NeverForgets)
    },
    "mamba": {
        it.__name__: partial(of_states, it) for it in (Forgetful, ForgetsStates, FirstState, OneRow)
    },
}
RIGHT: Final[dict[str, Make]] = {
    "llama": partial(of_all, Kept),
    "cohere2": lambda cache: cache,
    "mamba": partial(of_states, ArraysCache),
}


class Reader(nn.Module):
    """A model of mlx-lm with a cache of MAKE's.

    It is called by the names of a reference's inputs.
    """

    def __init__(self, model: Any, make: Make) -> None:
        super().__init__()
        self.model, self._make = model, make

    def make_cache(self) -> list[Any]:
        """Return an empty cache, each part in the place of the class's own."""
        from mlx_lm.models.cache import make_prompt_cache

        return [self._make(it) for it in make_prompt_cache(self.model)]

    def __call__(self, input_ids: mx.array, cache: Any = None) -> mx.array:
        """Return logits, shape ``(batch, tokens, vocabulary)``."""
        logits: mx.array = self.model(input_ids, cache=cache)
        return logits


class AtOnce(nn.Module):
    """A model that takes no cache."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def __call__(self, input_ids: mx.array) -> mx.array:
        """Return logits, shape ``(batch, tokens, vocabulary)``."""
        logits: mx.array = self.model(input_ids)
        return logits


class Closed(nn.Module):
    """A model whose call takes a cache that only it can make."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def __call__(self, input_ids: mx.array, cache: Any = None) -> mx.array:
        """Return logits, shape ``(batch, tokens, vocabulary)``."""
        logits: mx.array = self.model(input_ids, cache=cache)
        return logits


def reader(folder: Path, make: Make) -> Reader:
    """Return the model of the MLX directory FOLDER with a cache of MAKE's."""
    return Reader(load_model(folder)[0], make)
