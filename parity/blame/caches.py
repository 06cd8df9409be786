"""Which cache of a file is not what the source keeps of a text, call by call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np

from ...converters.models import Model, Signature
from ...converters.runtimes.pieces import KEPT, kept_by
from ...converters.values import Array
from ..probes.probes import Probe

ALIKE: Final = 1e-2  # of the largest number: other layers and other tokens are further away


class Wrong(NamedTuple):
    """A cache that is not the source's.

    Attributes:
        call: the first after which it is not; counted from 1.
        known: whether it is known what it holds instead.
        words: which it is, and what it holds.
    """

    call: int
    known: bool
    words: str


def name_caches(runner: Any, model: Model | None, signature: Signature, text: Any) -> str:
    """Return in words which caches of RUNNER, a file's, go wrong first as it reads TEXT; empty where that does not tell.

    Args:
        runner: has ``kept_in_pieces`` where its caches can be seen.
        model: the source; its own class says what is to be kept.
        signature: of the source.
        text: a ``decoding.Text``.
    """
    if model is None or not hasattr(runner, "kept_in_pieces"):
        return ""
    wanted = kept_by_source(model, signature, text.probe)
    found = runner.kept_in_pieces(text.probe.inputs, text.plan)
    if len(wanted) != len(found):
        return ""
    pairs = zip(found.items(), wanted, strict=True)
    wrong = [
        it for (name, calls), own in pairs if (it := fault(name, calls, own, wanted, text.plan))
    ]
    if len(wrong) * 2 > len(wanted) and all(it.call == 1 and not it.known for it in wrong):
        return ""  # the file keeps something else, such as keys before they are turned
    first = [it for it in wrong if it.call == min(it.call for it in wrong)]
    return "; ".join(it.words for it in [it for it in first if it.known] or first[:1])


def kept_by_source(model: Model, signature: Signature, probe: Probe) -> dict[str, Array]:
    """Return what MODEL keeps of PROBE, the tokens along the second axis; empty where its class keeps other things."""
    import torch

    from ..reference.reference import feed, float32_module

    module = float32_module(model)
    if not kept_by(module)[0]:
        return {}
    with torch.no_grad():
        kept = getattr(module(**feed(signature, probe, "float32"), use_cache=True), KEPT, None)
    found = {}
    kept = getattr(kept, "self_attention_cache", kept)
    for number, layer in enumerate(getattr(kept, "layers", ())):
        for kind in ("keys", "values"):
            if not isinstance(tensor := getattr(layer, kind, None), torch.Tensor):
                return {}
            found[f"the {kind} of layer {number}"] = tensor.movedim(2, 1).numpy()
    return found


def fault(
    name: str, calls: Sequence[Array], own: str, wanted: Mapping[str, Array], plan: Sequence[int]
) -> Wrong | None:
    """Return what is wrong with cache NAME, which is to be OWN of WANTED, after CALLS of a PLAN; ``None`` for nothing."""
    for number, (array, total) in enumerate(zip(calls, accumulate(plan), strict=False), 1):
        if array.shape[1] != total:
            words = f"after call {number}, {name} holds {array.shape[1]} tokens, {total} were read"
            return Wrong(number, True, words)
        before = total - plan[number - 1]
        for part, what in ((slice(0, before), "read before"), (slice(before, total), "read by it")):
            if not same(array[:, part], wanted[own][:, part]):
                return Wrong(number, *_instead(name, array[:, part], wanted, (number, part, what)))
    return None


def _instead(
    name: str, array: Array, wanted: Mapping[str, Array], where: tuple[int, slice, str]
) -> tuple[bool, str]:
    """Return whether it is known what ARRAY of cache NAME is, and what it is in words."""
    number, part, what = where
    words = f"after call {number}, {name} holds of the tokens {what}"
    other = next((it for it, rows in wanted.items() if same(array, rows[:, part])), "")
    if other:
        return True, f"{words} {other}"
    return False, f"{words} other numbers than the source"


def same(found: Array, wanted: Array) -> bool:
    """Say whether two caches of as many tokens hold the same numbers, as far as float16 tells.

    >>> same(np.ones((1, 2, 3, 4)), np.ones((1, 2, 12))), same(np.ones((1, 2, 8)), np.ones((1, 2, 12)))
    (True, False)
    """
    if found.size != wanted.size or found.shape[:2] != wanted.shape[:2]:
        return False
    pair = [np.asarray(it, np.float32).ravel() for it in (found, wanted)]
    return bool(np.abs(pair[0] - pair[1]).max(initial=0) <= ALIKE * np.abs(pair[1]).max(initial=0))
