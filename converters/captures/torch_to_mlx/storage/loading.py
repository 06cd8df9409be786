"""A state dict of torch, compared with what a captured module holds before anything is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

import torch

from .....errors import MismatchError, UnsupportedError
from .wiring import Wiring


def check(wiring: Wiring, state: Mapping[str, torch.Tensor]) -> None:
    """Check that STATE has the names and shapes of the module of WIRING.

    Raises:
        MismatchError: it has not; all that differs is listed.
        UnsupportedError: weights of the module are quantized.
    """
    if wiring.schemes:
        names = ", ".join(sorted(wiring.schemes)[:3])
        raise UnsupportedError(f"weights are quantized ({names}): load before quantizing")
    problems = list(_problems(wiring, state))
    if problems:
        raise MismatchError("the state dict does not fit the captured module", problems)


def _problems(wiring: Wiring, state: Mapping[str, torch.Tensor]) -> Iterator[str]:
    names = wiring.recording.names
    tied: dict[str, str] = {}
    for name in names:
        if name not in state:
            yield f"{name} is missing"
            continue
        wanted, found = list(wiring.location(name).get().shape), list(state[name].shape)
        if found != wanted:
            yield f"{name}: expected {wanted}, found {found}"
            continue
        other = tied.setdefault(wiring.first(name), name)
        if other != name and not torch.equal(state[other], state[name]):
            yield f"{name}: tied to {other}, with other values"
    for name in sorted(state.keys() - names.keys()):
        near = get_close_matches(name, names, 1)
        yield f"{name} is unexpected" + (f", did you mean {near[0]}?" if near else "")
