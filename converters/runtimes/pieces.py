"""A text read piece by piece: what each call of a model with a cache is given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from ..models import Port, Signature
from ..values import Array
from .base import Arrays

ROLES = ("token_ids", "positions", "token_types")  # what a call takes of its own piece alone
KEPT = "past_key_values"  # what transformers' classes keep of a text
NO_CACHES = ("use_cache", "cache_position")  # say how a cache is used


class NothingKeptError(Exception):
    """A module was asked to keep what it reads, and returned nothing that it kept."""


def names_a_cache(parameter: str) -> bool:
    """Say whether what a call takes as PARAMETER is what was kept of a text.

    >>> [it for it in ("x", "past_key_values", "use_cache", "cache_params") if names_a_cache(it)]
    ['past_key_values', 'cache_params']
    """
    return ("cache" in parameter or "past_" in parameter) and parameter not in NO_CACHES


def kept_by(module: Any) -> tuple[str, str]:
    """Return by which name a PyTorch MODULE takes and returns what it keeps, and why it cannot be used.

    Both are empty where it keeps nothing, and where it is transformers' code alone, by another name.
    """
    taken = [*signature(module.forward).parameters]
    if {KEPT, "use_cache"} <= {*taken}:
        return KEPT, ""
    owners = {type(it).__module__.partition(".")[0] for it in module.modules()}
    name = next(filter(names_a_cache, taken), "") if owners - {"torch", "transformers"} else ""
    return "", name and f"it takes {name}; what can be passed on is {KEPT}, beside use_cache"


def stepped(signature: Signature) -> Port | None:
    """Return the input of SIGNATURE that may be read piece by piece: ids, each with an output.

    >>> from ..models.signature import causal_signature
    >>> stepped(causal_signature({"vocab_size": 9})).name
    'input_ids'
    """
    for port in reversed(signature.inputs):
        if port.role == "token_ids" and per_token(signature, port):
            return port
    return None


def per_token(signature: Signature, port: Port) -> tuple[str, ...]:
    """Return the outputs of SIGNATURE that have a row for every token of PORT."""
    return tuple(it.name for it in signature.outputs if it.shape[: len(port.shape)] == port.shape)


def pieces(
    signature: Signature, inputs: Arrays, sizes: Sequence[int]
) -> Iterator[dict[str, Array]]:
    """Yield the inputs of each call: so many tokens as SIZES says, masks up to there, the rest whole.

    >>> from ..models.signature import causal_signature
    >>> ids = {"input_ids": np.arange(6).reshape(1, 6)}
    >>> calls = pieces(causal_signature({"vocab_size": 9}), ids, (4, 2))
    >>> [call["input_ids"].tolist() for call in calls]
    [[[0, 1, 2, 3]], [[4, 5]]]
    """
    port = stepped(signature)
    shape = port.shape if port else ()
    own = {it.name for it in signature.inputs if it.shape == shape and it.role in ROLES}
    masks = {it.name for it in signature.inputs if it.shape == shape} - own
    for start, stop in pairwise(accumulate(sizes, initial=0)):
        yield {
            name: array[:, start:stop]
            if name in own
            else array[:, :stop]
            if name in masks
            else array
            for name, array in inputs.items()
        }


def joined(signature: Signature, calls: Sequence[Arrays]) -> dict[str, Array]:
    """Return the outputs of CALLS that have a row for every token, one behind the other."""
    port = stepped(signature)
    names = per_token(signature, port) if port else ()
    return {name: np.concatenate([call[name] for call in calls], axis=1) for name in names}
