"""Faults of computation in torch modules, the same in every family: one submodule is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn


class Fault(NamedTuple):
    """A fault of one submodule.

    Attributes:
        plant: changes a model, and returns the path of the site at fault; nothing without such a site.
        kind: what blame calls it.
    """

    plant: Callable[[nn.Module], str]
    kind: str


def last(model: nn.Module, fits: Callable[[str, Any], bool]) -> tuple[str, Any]:
    """Return the last but one of the submodules that fit, or the only one; an empty path for none."""
    found = [(path, child) for path, child in model.named_modules() if path and fits(path, child)]
    return found[max(len(found) - 2, 0)] if found else ("", None)


EPSILON: Final = ("variance_epsilon", "eps", "epsilon")


def epsilon(model: nn.Module) -> str:
    """Give one norm another epsilon."""
    path, norm = last(model, lambda _, it: any(hasattr(it, name) for name in EPSILON))
    for name in EPSILON:
        if hasattr(norm, name):
            setattr(norm, name, 1e-3)
    return path


def activation(model: nn.Module) -> str:
    """Put ReLU, or GELU where that is one, in place of an activation that has no weights."""

    def fits(path: str, child: Any) -> bool:
        return bool(re.search(r"act(ivation)?(_fn)?$", path)) and not list(child.parameters())

    path, old = last(model, fits)
    if path:
        holder, _, name = path.rpartition(".")
        new = nn.GELU() if "relu" in type(old).__name__.lower() else nn.ReLU()
        setattr(model.get_submodule(holder), name, new)
    return path


def scores(model: nn.Module) -> str:
    """Scale the scores of one attention by 1.05."""
    path, attention = last(model, lambda _, it: isinstance(getattr(it, "scaling", None), float))
    if path:
        attention.scaling *= 1.05
    return path


def is_layer(path: str, child: nn.Module) -> bool:
    """Say whether PATH is that of one of a stack of layers."""
    return (
        bool(re.search(r"(^|\.)(layers?|h|blocks?)\.\d+$", path))
        and len(list(child.children())) > 1
    )


def skipped(model: nn.Module) -> str:
    """Return from one layer what came to it."""
    path, layer = last(model, is_layer)
    if path:
        plain = layer.forward

        def forward(hidden: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            out = plain(hidden, *args, **kwargs)
            return (hidden, *out[1:]) if isinstance(out, tuple) else hidden

        layer.forward = forward
    return path


def leaf(model: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> str:
    """Change what one linear layer returns."""
    path, linear = last(model, lambda _, it: isinstance(it, nn.Linear) and it.out_features > 1)
    if path:
        plain = linear.forward
        linear.forward = lambda x: change(plain(x))
    return path


def leaves() -> Iterator[tuple[str, Fault]]:
    """Yield faults of one linear layer's output."""
    changes: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor], str], ...] = (
        ("an output scaled by 1.01", lambda y: y * 1.01, "scale"),
        # Not by one number: a norm behind it would take that away.
        ("an output moved", lambda y: y + 0.1 * torch.arange(y.shape[-1]).cos(), "bias"),
        ("an output through bfloat16", lambda y: y.bfloat16().to(y.dtype), "cast"),
        ("an output's channels moved", lambda y: y.roll(1, -1), "permuted"),
        ("an output not finite", lambda y: y / 0, "non-finite"),
    )
    for name, change, kind in changes:
        yield name, Fault(lambda model, change=change: leaf(model, change), kind)


def reached(model: nn.Module, path: str, run: Callable[[nn.Module], Any]) -> bool:
    """Say whether RUN calls the submodule of MODEL at PATH; some have one that nothing calls."""
    calls: list[bool] = []
    handle = model.get_submodule(path).register_forward_hook(lambda *_: calls.append(True))
    try:
        run(model)
    finally:
        handle.remove()
    return bool(calls)


FAULTS: Final[Mapping[str, Fault]] = {
    "another epsilon in one": Fault(epsilon, "epsilon"),
    "another activation in one": Fault(activation, "activation"),
    "scores of one attention scaled": Fault(scores, "attention"),
    "one layer skipped": Fault(skipped, "skipped"),
    **dict(leaves()),
}
