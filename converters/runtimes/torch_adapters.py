"""Adapters live in PyTorch: what a layer returns is changed, its weight never.

So a live run is independent of the merge that it is compared with. Updates lie as the parameters
that they change; PEFT's forward passes (``peft/tuners/lora/layer.py``) are the same computations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from ...errors import MismatchError, UnsupportedError
from ..common.arrays import from_torch, to_torch
from ..values import Array, LowRank

Places = Mapping[str, str | None]  # tensor of a checkpoint -> weight of a module
OWN: Final = (
    "torch.nn."  # a parameter of such a module is used in ways of its own, as by a convolution
)
MERGE: Final = "merge it into its base first (weighbridge merge --help)"


class Live(Protocol):
    """A low-rank update at work in a layer."""

    def __init__(self, layer: Any, update: LowRank) -> None: ...

    def __call__(self, layer: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        """Return what LAYER gave OUT for ARGS, with the update in it: a forward hook."""
        ...


class LiveLinear:
    """``y + scale * (x @ a) @ b``; with DoRA magnitudes m ``m / ||W + delta||`` times that."""

    def __init__(self, layer: nn.Linear, update: LowRank) -> None:
        dtype = layer.weight.dtype
        self.down = to_torch(update.a.T).to(dtype)
        self.up = to_torch(update.b.T).to(dtype)
        self.scale = update.scale
        self.factor: torch.Tensor | None = None
        if update.magnitude is not None:
            total = from_torch(layer.weight.double()) + update.delta()
            norms = np.linalg.norm(total, axis=1)
            self.factor = to_torch(update.magnitude.astype(np.float64) / norms).to(dtype)

    def __call__(self, layer: nn.Linear, args: Any, out: torch.Tensor) -> torch.Tensor:
        """Return OUT with the update in it."""
        added: torch.Tensor = (args[0] @ self.down) @ self.up * self.scale
        if self.factor is None:
            return out + added
        own: torch.Tensor | None = layer.bias
        bias = 0.0 if own is None else own
        scaled: torch.Tensor = (out - bias + added) * self.factor + bias
        return scaled


class LiveConv1D:
    """The same for GPT-2's Conv1D, whose weight is the other way round, ``[in, out]``."""

    def __init__(self, layer: Any, update: LowRank) -> None:
        refuse_magnitude(layer, update)
        dtype = layer.weight.dtype
        self.down, self.up = to_torch(update.b).to(dtype), to_torch(update.a).to(dtype)
        self.scale = update.scale

    def __call__(self, _: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        """Return OUT with the update in it."""
        added: torch.Tensor = (args[0] @ self.down) @ self.up * self.scale
        return out + added


class LiveEmbedding(LiveConv1D):
    """``y + scale * b[ids] @ a``, times the layer's own factor where it has one, as Gemma's."""

    def __call__(self, layer: nn.Embedding, args: Any, out: torch.Tensor) -> torch.Tensor:
        """Return OUT with the update in it."""
        added = functional.embedding(args[0], self.down) @ self.up * self.scale
        own: Any = getattr(layer, "embed_scale", None)
        scaled: torch.Tensor = added if own is None else added * own
        return out + scaled


class LiveParameter:
    """A parameter that reads ``W + scale * b @ a`` while the layer that has it runs.

    The experts of a layer are one parameter, and which rows of it meet which input only their
    module knows. The sum stands in for the parameter during calls and is gone after the last of those
    that are under way in several threads: names and values of the parameters stay as they are.
    """

    def __init__(self, layer: nn.Module, leaf: str, update: LowRank) -> None:
        refuse_magnitude(layer, update)
        dtype = layer.get_parameter(leaf).dtype
        self.leaf, self.scale, self.calls = leaf, update.scale, 0
        self.a, self.b = to_torch(update.a).to(dtype), to_torch(update.b).to(dtype)

    def attach(self, layer: nn.Module) -> None:
        """Let LAYER see the sum in every call from now on."""
        layer.register_forward_pre_hook(self.enter)
        layer.register_forward_hook(self.leave, always_call=True)

    def enter(self, layer: nn.Module, _: Any) -> None:
        """Put the sum before the parameter: an attribute of the object hides one of the module."""
        self.calls += 1  # first: reading the parameter lets other threads go on
        own = layer.get_parameter(self.leaf)
        vars(layer)[self.leaf] = own + self.b @ self.a * self.scale

    def leave(self, layer: nn.Module, *_: Any) -> None:
        """Take the sum away again, if no other call needs it."""
        self.calls -= 1
        if not self.calls:
            vars(layer).pop(self.leaf, None)


def forms() -> dict[type[nn.Module], type[Live]]:
    """Return which modules are called with what an update applies to, and how it is live there."""
    found: dict[type[nn.Module], type[Live]] = {nn.Linear: LiveLinear, nn.Embedding: LiveEmbedding}
    try:
        from transformers.pytorch_utils import Conv1D
    except ImportError:
        return found
    return {**found, Conv1D: LiveConv1D}


def attach_adapter(module: nn.Module, updates: Mapping[str, LowRank]) -> None:
    """Put UPDATES, by parameter of MODULE, to work in what MODULE computes.

    Linear layers, GPT-2's Conv1D and embeddings add the product of both factors to their output;
    parameters of other modules (the experts of a layer, a router) read the sum while these run.

    Args:
        module: what runs; its parameters stay as they are.
        updates: each in the layout of its parameter.

    Raises:
        MismatchError: an update has no parameter or another shape; all of them are listed.
        UnsupportedError: an update of what a live adapter is not defined for; says which.
    """
    check(module, updates)
    known = forms()
    for name, update in updates.items():
        layer, leaf = owner(module, name)
        form = next((form for kind, form in known.items() if isinstance(layer, kind)), None)
        if form is None or leaf != "weight":
            LiveParameter(layer, leaf, update).attach(layer)
        else:
            layer.register_forward_hook(form(layer, update))


def owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Return the submodule of MODULE that has the parameter NAME, and what it calls it."""
    path, _, leaf = name.rpartition(".")
    return module.get_submodule(path), leaf


def check(module: nn.Module, updates: Mapping[str, LowRank]) -> None:
    """Refuse UPDATES that cannot be live in MODULE; see :func:`attach_adapter`."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    shapes = {name: tuple(parameters[name].shape) for name in updates if name in parameters}
    problems = [f"{name} is no parameter" for name in sorted(set(updates) - set(shapes))]
    problems += [
        f"{name}: expected an update of {list(shape)}, found {list(updates[name].shape)}"
        for name, shape in sorted(shapes.items())
        if shape != updates[name].shape
    ]
    if problems:
        raise MismatchError(f"the adapter does not fit {type(module).__name__}", problems)
    shared = Counter(map(id, parameters.values()))
    refused = [
        f"{name}: {why}"
        for name in sorted(updates)
        if (why := refusal(*owner(module, name), tied=shared[id(parameters[name])] > 1))
    ]
    if refused:
        raise UnsupportedError(f"a live adapter cannot run on {'; '.join(refused)}. {MERGE}")


def refusal(layer: nn.Module, leaf: str, *, tied: bool) -> str:
    """Say why no update of the parameter LEAF of LAYER can be live, if none can."""
    if tied:
        return "tied with another parameter, which a live adapter would not change"
    if isinstance(layer, NonDynamicallyQuantizableLinear):
        return "torch's MultiheadAttention reads this weight without calling its layer"
    kinds = tuple(forms())
    if not isinstance(layer, kinds) and type(layer).__module__.startswith(OWN):
        return f"a {leaf} of {type(layer).__name__}"
    return ""


def refuse_magnitude(layer: nn.Module, update: LowRank) -> None:
    """Refuse DoRA where it is not of the rows of a linear layer."""
    if update.magnitude is not None:
        raise UnsupportedError(f"live DoRA on {type(layer).__name__} is not supported; {MERGE}")


def whole_places(
    module: nn.Module, arrays: Mapping[str, Array], found: Places
) -> dict[str, str] | None:
    """Return which parameter of MODULE each of ARRAYS is; ``None`` unless all are one as they lie.

    Decided by value: FOUND says where an array went, not whether it was stacked or turned on the way.
    """
    own = dict(module.named_parameters(remove_duplicate=False))
    names: dict[str, str] = {}
    for name, array in arrays.items():
        there = found.get(name)
        if there is None or there not in own or own[there].shape != array.shape:
            return None
        plain = getattr(getattr(own[there], "weight", None), "plain", None)  # of one on disk
        if plain != name and not torch.equal(own[there], to_torch(array).to(own[there].dtype)):
            return None
        names[name] = there
    return names
