"""How far correct 16-bit runs of a mixture of experts lie apart: where two experts are nearly equal.

A router takes the best experts. Where the last taken and the first left out differ by less than the
rounding of the dtype, correct implementations choose differently, and the outputs of that token part
by much more than rounding. One run of the source shows the choices of one rounding; so it is run
again, the outputs of its layers rounded in other ways, and errs as much as the worst of these runs.
So it is with outputs of a few numbers, such as the logits of two images and two texts: one run may be
nearly exact by chance.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ...converters.common.dtypes import unit_roundoff
from ...converters.values import Array
from ..check.distances import Distance

if TYPE_CHECKING:
    from torch import nn

FEW: Final = 64  # numbers; the mean square of as many errors is known to a fifth
RUNS: Final = 8  # a choice that is as likely as not is seen in all but one of 256 recordings


def is_few(output: Array) -> bool:
    """Say whether OUTPUT has so few numbers that the error of one run says little.

    >>> import numpy as np
    >>> is_few(np.ones((2, 2))), is_few(np.ones((16, 24)))
    (True, False)
    """
    return output.size < FEW


def has_few(outputs: Mapping[str, Array]) -> bool:
    """Say whether one of OUTPUTS has few numbers."""
    return any(map(is_few, outputs.values()))


def has_experts(module: nn.Module) -> bool:
    """Say whether MODULE chooses among experts."""
    return any("experts" in path.split(".") for path, _ in module.named_modules())


@contextlib.contextmanager
def chosen_experts(module: nn.Module) -> Iterator[dict[str, set[int]]]:
    """Record which experts of each mixture in MODULE are chosen while it runs, by path."""
    import torch

    found: dict[str, set[int]] = {}

    def note(path: str, given: Any) -> None:
        for value in given:
            if isinstance(value, torch.Tensor) and not value.is_floating_point():
                found[path] |= set(value.flatten().tolist())
                return

    with contextlib.ExitStack() as stack:
        for path, part in module.named_modules():
            if path.endswith("experts") and isinstance(getattr(part, "num_experts", None), int):
                found[path] = set()
                see = partial(lambda at, _, args, kwargs: note(at, [*args, *kwargs.values()]), path)
                stack.callback(part.register_forward_pre_hook(see, with_kwargs=True).remove)
        yield found


def never_chosen(module: nn.Module, chosen: Mapping[str, set[int]]) -> list[str]:
    """Return in one line which experts of MODULE are not among the CHOSEN; nothing where all are."""
    lost = {
        path: sorted({*range(module.get_submodule(path).num_experts)} - found)  # type: ignore[arg-type]
        for path, found in chosen.items()
    }
    count = sum(map(len, lost.values()))
    if not count:
        return []
    path, first = next((path, them[0]) for path, them in lost.items() if them)
    total = sum(len(them) + len(chosen[path]) for path, them in lost.items())
    return [
        f"{count} of {total} experts, which no token of a probe chose (such as {first} in {path})"
    ]


@contextlib.contextmanager
def other_rounding(module: nn.Module, dtype: str, seed: int) -> Iterator[None]:
    """Move the outputs of MODULE's leaves by up to one unit roundoff of DTYPE, at random."""
    import torch

    each = (
        threading.local()
    )  # probes that run in threads of their own get the same numbers each time
    unit = unit_roundoff(dtype)

    def move(_: Any, __: Any, out: Any) -> Any:
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return None
        if not hasattr(each, "random"):
            each.random = torch.Generator().manual_seed(seed)
        noise = torch.rand(out.shape, generator=each.random, dtype=torch.float32) * 2 - 1
        return (out.double() * (1 + unit * noise.double())).to(out.dtype)

    leaves = [child for child in module.modules() if not list(child.children())]
    handles = [leaf.register_forward_hook(move) for leaf in leaves]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def worst_of(rows: list[dict[str, Distance]]) -> dict[str, Distance]:
    """Return the largest errors of several runs on one probe, output by output.

    >>> worst_of([{"y": Distance(1.0, 4.0)}, {"y": Distance(2.0, 3.0)}])
    {'y': Distance(whole=2.0, worst=4.0)}
    """
    return {
        name: Distance(max(row[name].whole for row in rows), max(row[name].worst for row in rows))
        for name in rows[0]
    }
