"""Operations of ours in Core AI's own: tokens written into a state, and linear recurrences over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

WHOLE: Final = 2**31 - 1  # as the end of a slice: as far as the axis goes


def tokens_written(values: Any, node: Any, _: Any) -> Any:
    """Return Core AI's form of ``weighbridge::write_tokens``, a NODE whose inputs are among VALUES."""
    from coreai._compiler.dialects import coreai
    from coreai_torch._aten_to_core import _get_operands

    kept, new, position = _get_operands(values, node, [0, 1, 2])
    sizes = coreai.cast(coreai.get_shape(new), position.type.element_type)
    end = coreai.broadcasting_add(position, coreai.slice_(sizes, [2], [3], [1]))
    first, last = (coreai.concat(0, [a, a, at, a]) for a, at in (([0], position), ([WHOLE], end)))
    return coreai.slice_update(kept, first, last, [1, 1, 1, 1], new)


def scan(values: Any, node: Any, _: Any) -> Any:
    """Return Core AI's form of ``weighbridge::linear_scan``: a loop of one step after the other."""
    from coreai._compiler.dialects import coreai
    from coreai_torch._aten_to_core import _get_operands

    decay, added = _get_operands(values, node, [0, 1])
    dim, steps = node.args[2] % added.type.rank, [1] * added.type.rank
    zero, one = (coreai.constant(np.array([it], np.int32)) for it in (0, 1))

    def ends(at: Any) -> list[Any]:
        pairs: Sequence[tuple[Any, Any]] = ((zero, at), ([WHOLE], coreai.broadcasting_add(at, one)))
        axes = range(len(steps))
        return [coreai.concat(0, [at if it == dim else a for it in axes]) for a, at in pairs]

    sizes = coreai.cast(coreai.get_shape(added), one.type.element_type)
    total = coreai.slice_(sizes, [dim], [dim + 1], [1])
    begun = [one, coreai.slice_(added, *ends(zero), steps), added]
    found, (before, after) = coreai.while_(results=[it.type for it in begun], inits=begun)
    with before:
        given = [*before.arguments]
        unfinished = coreai.broadcasting_greater(total, given[0])
        coreai.condition(coreai.shrink_dims(unfinished, [0]), *given)
    with after:
        at, state, states = after.arguments
        factor, term = (coreai.slice_(it, *ends(at), steps) for it in (decay, added))
        state = coreai.broadcasting_add(coreai.broadcasting_mul(factor, state), term)
        states = coreai.slice_update(states, *ends(at), steps, state)
        coreai.yield_([coreai.broadcasting_add(at, one), state, states])
    return found[2]


LOWERINGS: Final[Mapping[str, Callable[..., Any]]] = {
    "write_tokens": tokens_written,
    "linear_scan": scan,
}
