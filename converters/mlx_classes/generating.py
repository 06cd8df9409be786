"""Texts that a decoder goes on with, token by token, and the keys and values that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

Pair = tuple[mx.array, mx.array]
# Settings that change greedy texts and are not done here, and the values that ask for nothing.
NOT_DONE: Mapping[str, tuple[Any, ...]] = {
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "forced_decoder_ids": (None, []),
    "repetition_penalty": (None, 1),
    "encoder_repetition_penalty": (None, 1),
    "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}),
}


class Past:
    """Keys and values of one attention, ``[batch, positions, width]``.

    Attributes:
        grows: each call adds to them; those of an encoder are made once.
        held: both, ``None`` before the first call.
    """

    def __init__(self, *, grows: bool) -> None:
        self.grows = grows
        self.held: Pair | None = None

    def __call__(self, make: Callable[[], Pair]) -> Pair:
        """Return all keys and values, those that MAKE gives among them where they are new."""
        if self.held is None:
            self.held = make()
        elif self.grows:
            old, new = self.held, make()
            self.held = (mx.concatenate([old[0], new[0]], 1), mx.concatenate([old[1], new[1]], 1))
        return self.held


class LayerPast:
    """What a layer of a decoder keeps: of the text so far, and of the encoder."""

    def __init__(self) -> None:
        self.own, self.cross = Past(grows=True), Past(grows=False)

    @property
    def tokens(self) -> int:
        """How many tokens were read."""
        return 0 if self.own.held is None else self.own.held[0].shape[1]


@dataclass(frozen=True)
class Generation:
    """What ``generation_config.json`` says of texts, as far as greedy ones go.

    Attributes:
        start: the tokens that a text begins with.
        stop: those that end it.
        pad: what follows the end where other rows go on.
        banned: tokens that are never chosen.
        banned_first: tokens that are not chosen right after ``start``.
        left: settings that change texts and are not done here.
    """

    start: tuple[int, ...] = ()
    stop: tuple[int, ...] = ()
    pad: int = 0
    banned: tuple[int, ...] = ()
    banned_first: tuple[int, ...] = ()
    left: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Generation:
        """Return what CONFIG, the content of ``generation_config.json``, says."""
        stop = several(config.get("eos_token_id"))
        first = config.get("decoder_start_token_id")
        pad = config.get("pad_token_id")
        return cls(
            several(config.get("bos_token_id") if first is None else first),
            stop,
            (*stop, 0)[0] if pad is None else pad,
            several(config.get("suppress_tokens")),
            several(config.get("begin_suppress_tokens")),
            tuple(name for name, off in NOT_DONE.items() if config.get(name) not in off),
        )

    def greedy(self, step: Callable[[mx.array], mx.array], start: mx.array, count: int) -> mx.array:
        """Return START, ``[batch, tokens]``, and up to COUNT likeliest tokens behind each row.

        Args:
            step: tokens that follow on those it had before -> scores of the next, ``[batch, words]``.
            start: what every text begins with.
            count: how many tokens are added at most; fewer where all rows end.
        """
        found, read = [start], start
        ended = mx.zeros(start.shape[:1], mx.bool_)
        for place in range(count):
            scores = step(read)
            banned = self.banned if place else (*self.banned, *self.banned_first)
            banned = tuple(it for it in banned if 0 <= it < scores.shape[-1])
            if banned:
                scores[:, mx.array(banned)] = -mx.inf
            chosen = mx.where(ended, self.pad, mx.argmax(scores, axis=-1))
            found.append(chosen[:, None])
            ended = ended | mx.any(chosen[:, None] == mx.array([*self.stop, -1]), axis=-1)
            if mx.all(ended).item():
                break
            read = found[-1]
        return mx.concatenate(found, axis=1)

    def first(self, rows: int, start: mx.array | None) -> mx.array:
        """Return START, or for each of ROWS the tokens that a text begins with.

        Raises:
            ValueError: neither is known, or ``generation_config.json`` asks for what is not done here.
        """
        left = [it for it in self.left if start is None or it != "forced_decoder_ids"]
        if left:
            raise ValueError(
                f"{', '.join(left)} of generation_config.json would change the text, and"
                f"{' is' if len(left) == 1 else ' are'} not done here; generate with transformers, or set"
                " model.generation = dataclasses.replace(model.generation, left=())"
            )
        if start is None and not self.start:
            raise ValueError("generation_config.json names no decoder_start_token_id; give start=")
        return mx.array([self.start] * rows) if start is None else start


def several(value: Any) -> tuple[int, ...]:
    """Return VALUE, a token, a list of tokens or nothing, as a tuple.

    >>> several(1), several([1, 2]), several(None)
    ((1,), (1, 2), ())
    """
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (int(value),)
