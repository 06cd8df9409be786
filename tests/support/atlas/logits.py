"""Logits of the same tokens from both libraries, and how far they may be apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from weighbridge.parity.probes.probes import STANDS_FOR
from weighbridge.parity.reference.several import RUNS, other_rounding

Logits = npt.NDArray[np.float64]

# Of the largest logit. The bar is measured: so many times what transformers itself errs in float32, the worst
# of several runs that round otherwise. One run alone says little: processors, threads and oneDNN moved it by up
# to 7 times, and the worst of nine by 1.3. Right rows are at most 3.0 times as far, and known faults
# 50 times and more, but for the floor of decays that mlx-vlm has off Metal.
FLOOR, TIMES = 2e-6, 4.0
# Rows and tokens; the long text is past every window, chunk and number of keys in sizes.py.
SHORT, LONG = (2, 12), (2, 96)


class Reference(NamedTuple):
    """What transformers computes, in float64 and, several times, in float32."""

    singles: tuple[Logits, ...]
    double: Logits

    @property
    def own(self) -> float:
        """How far float32 is from float64 at worst, relative to the largest logit."""
        return max(error(it, self.double) for it in self.singles)

    @property
    def bar(self) -> float:
        """How far another float32 implementation may be from float64."""
        return max(FLOOR, TIMES * self.own)


def tokens(shape: tuple[int, int] = SHORT, vocabulary: int = 100) -> npt.NDArray[np.int64]:
    """Return the token ids that every model reads, none of them special."""
    return np.random.default_rng(3).integers(3, vocabulary, shape)


def reference(model: Any, shape: tuple[int, int] = SHORT) -> Reference:
    """Run the torch MODEL in float32, then in float64; MODEL stays in float64."""
    import torch

    ids = torch.from_numpy(tokens(shape))
    return in_both(model, lambda _: model(ids, use_cache=False).logits.numpy())


def in_both(model: Any, run: Callable[[Any], Any]) -> Reference:
    """Return what RUN makes of MODEL in float32 and float64, given the dtype; MODEL stays in float64.

    In float32 it runs as it is, then with the outputs of its layers moved by up to one rounding at random.
    """
    import torch

    def made(dtype: Any) -> Logits:
        return np.asarray(run(dtype), np.float64)

    with torch.no_grad():
        model.float()  # complex buffers stay so
        singles = [made(torch.float32)]
        with other_rounding(model, "float32") as moved:
            singles += [moved(seed, lambda: made(torch.float32)) for seed in range(RUNS)]
        model.double()
        return Reference(tuple(singles), made(torch.float64))


def native(model: Any, shape: tuple[int, int] = SHORT) -> Logits:
    """Run an mlx-lm MODEL as mlx-lm does, with a cache: some classes share keys through it."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    found = model(mx.array(tokens(shape)), cache=make_prompt_cache(model))
    return np.array(found.astype(mx.float32)).astype(np.float64)


def placeholders(config: Any) -> list[int]:
    """Return the ids of CONFIG, of transformers, that stand for pictures and sound.

    In a text alone they mean nothing: transformers looks up no embedding of theirs, other classes do.
    """
    whole = config.to_dict()
    parts = [whole, *(it for it in whole.values() if isinstance(it, dict))]
    named = {value for it in parts for key, value in it.items() if STANDS_FOR.fullmatch(str(key))}
    return sorted(it for it in named if isinstance(it, int))


def greedy(
    model: Any, prompt: npt.NDArray[np.int64], without: Sequence[int] = (), count: int = 64
) -> npt.NDArray[np.int64]:
    """Return the COUNT tokens that mlx-lm generates after PROMPT, with the cache that it makes.

    Those WITHOUT which it is to do are never chosen.
    """
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    def barred(_: mx.array, logits: mx.array) -> mx.array:
        logits[..., mx.array(without)] = -mx.inf
        return logits

    how = {"logits_processors": [barred]} if without else {}
    found = generate_step(mx.array(prompt), model, max_tokens=count, **how)
    return np.array([token for token, _ in found], np.int64)


def behind(
    model: Any,
    prompt: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
    without: Sequence[int] = (),
) -> float:
    """Return how far the worst of the tokens CHOSEN is behind the torch MODEL's own choice, in float64.

    0 where all are its own; a tie is behind by no more than rounding, relative to the largest logit.
    Those WITHOUT which it is to do as well are nobody's choice.
    """
    import torch

    ids = torch.from_numpy(np.concatenate([prompt, chosen]))[None]
    with torch.no_grad():
        logits = model.double()(ids, use_cache=False).logits[0, len(prompt) - 1 : -1].numpy()
    own = np.take_along_axis(logits, chosen[:, None], axis=1)[:, 0]
    best = np.delete(logits, without, axis=1).max(axis=1)
    return float((best - own).max() / np.abs(logits).max())


def mlx_lm(folder: Path) -> Any:
    """Load FOLDER as mlx-lm itself loads it, strictly; a ``model.py`` in it is ours."""
    from mlx_lm.utils import load_model

    return load_model(Path(folder), strict=True, trust_remote_code=True)[0]


def error(found: Logits, wanted: Logits) -> float:
    """Return the largest difference relative to the largest wanted value."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())
