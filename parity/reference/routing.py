"""Mixtures of experts: which of them a source has, and which no token chose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


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
