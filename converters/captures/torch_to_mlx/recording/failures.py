"""What to say when ``torch.export`` fails: the reason, the model's own line, and the known cure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from .....errors import UnsupportedError, WeighbridgeError, legible
from ....common.memory import pass_on_shortage
from .places import lines_of

_LONGEST: Final = 300  # characters of torch's own reason
_CURES: Final = {
    r"DataDependent|data-dependent|_local_scalar_dense|unbacked|unhinted": (
        "the code decides by a tensor's values: write it with torch.where, or feed what it decides "
        "by as a constant; where it asks whether a mask shows anything, and x[mask] of no rows does no "
        "harm, do not ask"
    ),
    r"Cache|not a known type": (
        "the module returns an object that is no tensor: return a tuple or a dictionary of tensors, "
        "or turn it off (use_cache=False)"
    ),
    r"flash_attn|flex_attention|FlashAttention": (
        'load the model with attn_implementation="sdpa" or "eager"'
    ),
    r"grouped_mm|histc|experts": 'load the model with experts_implementation="batched_mm"',
    r"missing .* argument|unexpected keyword|required positional|specify either": (
        "give the arguments of forward as inputs, by name or in order"
    ),
    r"must be a specific|Constraints violated|specialized|marked .* as dynamic": (
        "the code fixes a size: leave that axis out of `dynamic`"
    ),
    r"constant's list|\.data\b|not require grad": (
        "use .detach() in place of .data, and no tensor kept from before; take a derivative in forward by"
        " torch.func.grad, not torch.autograd.grad"
    ),
    r"Couldn't swap": "forward moves a module to another dtype (`.to`, `.half`): convert what it is called with, or the module before",
    r"functorch|vmap|attribute 'constant'": (
        "take every derivative in forward by torch.func.grad and none by torch.autograd.grad, or write it out"
    ),
}
_OTHERWISE: Final = "rewrite that line, or choose another implementation of it"


def refuse(error: Exception, what: str) -> NoReturn:
    """Raise what recording WHAT failed for: a refusal of ours, a shortage of memory, or ERROR explained.

    Raises:
        UnsupportedError: with torch's reason, the lines that led to it and a cure.
    """
    pass_on_shortage(error)
    chain = list(causes(error))
    for cause in chain:
        if isinstance(cause, WeighbridgeError):
            raise cause
    reason = legible(_reason(error), _LONGEST)
    lines = next((found for cause in chain if (found := lines_of(cause.__traceback__))), [])
    places = [f"{'at' if i == 0 else 'called in'} {line}" for i, line in enumerate(lines)]
    text = " ".join([type(error).__name__, str(error)[:2000], *lines])
    raise UnsupportedError(
        f"torch.export cannot record {what}: {type(error).__name__}: {reason}",
        [*places, f"cure: {_cure(text)}"],
    ) from error


def causes(error: BaseException | None) -> Iterator[Any]:
    """Yield ERROR, what caused it, what caused that, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _reason(error: BaseException) -> str:
    """Return the first line of ERROR that says something."""
    return next((line for line in str(error).splitlines() if line.strip()), "no reason given")


def _cure(text: str) -> str:
    known = (cure for pattern, cure in _CURES.items() if re.search(pattern, text))
    return next(known, _OTHERWISE)
