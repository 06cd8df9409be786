"""Faults of computation in the classes of mlx-lm, the same in every class: functions they call are exchanged."""

from __future__ import annotations

import contextlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import mlx.core as mx
from mlx import nn


class Fault(NamedTuple):
    """A fault of a class.

    Attributes:
        patches: from the module of the class, what is exchanged: owner, name and what comes instead.
        site: pattern of the sites at fault, all of them.
        kind: what blame calls it.
    """

    patches: Callable[[Any], list[tuple[Any, str, Any]]]
    site: str
    kind: str


def in_module(name: str, change: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """Return the patch that puts CHANGE of the module's function NAME in its place, if it has one."""
    return lambda module: (
        [(module, name, change(getattr(module, name)))] if hasattr(module, name) else []
    )


def blocks(change: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """Return the patch of the call of the module's layers."""

    def patches(module: Any) -> list[Any]:
        found = [
            it for name, it in vars(module).items() if name.endswith(("Block", "DecoderLayer"))
        ]
        own = [it for it in found if getattr(it, "__module__", "") == module.__name__]
        layers = [
            it for it in own if "MoeBlock" not in it.__name__ and "MoEBlock" not in it.__name__
        ]
        return [(it, "__call__", change(it.__call__)) for it in layers]

    return patches


def rotated(change: Callable[[Any, Any, int], Any]) -> Callable[[Any], list[Any]]:
    """Return the patch of rotary positions, of queries alone where their heads are more."""

    def patches(module: Any) -> list[Any]:
        if not any(hasattr(module, name) for name in ("initialize_rope",)):
            return []
        plain = nn.RoPE.__call__
        return [(nn.RoPE, "__call__", lambda self, x, offset=0: change(plain, self, x, offset))]

    return patches


QUERIES: Final = 4  # heads of every tiny model here; of keys there are fewer


def later(plain: Any, self: Any, x: Any, offset: int) -> Any:
    """Rotate queries three positions too far."""
    return plain(self, x, offset=offset + 3 * (x.shape[1] == QUERIES))


def rms(eps: float) -> Callable[[Any, Any], Any]:
    """Return the call of a root mean square norm with another epsilon."""
    return lambda self, x: mx.fast.rms_norm(x, self["weight"], eps)


def shifted_experts(plain: Any) -> Any:
    """Return the call of the experts, each one taken for the one before it."""
    return lambda self, x, indices: plain(self, x, (indices + 1) % self.gate_proj.weight.shape[0])


def epsilon(module: Any) -> list[Any]:
    """Return the patch of every root mean square norm."""
    return [(nn.RMSNorm, "__call__", rms(1e-2))] if "nn.RMSNorm" in text_of(module) else []


def expert_numbers(module: Any) -> list[Any]:
    """Return the patch of a mixture's experts."""
    owner = getattr(module, "SwitchGLU", None)
    return [(owner, "__call__", shifted_experts(owner.__call__))] if owner else []


def text_of(module: Any) -> str:
    """Return the source text of MODULE."""
    return Path(module.__file__).read_text()


ATTENTION: Final = r"^(model\.layers|transformer\.h)\.\d+\.(self_)?attn$"
BLOCK: Final = r"^((model|backbone)\.layers|transformer\.h)\.\d+$"
# In a mixture of experts these functions are those of the shared expert alone.
GATED: Final = r"\.(mlp|mixer)(\.shared_expert)?$"
FAULTS: Final[Mapping[str, Fault]] = {
    "a layer skipped": Fault(blocks(lambda _: lambda self, x, *a, **k: x), BLOCK, "skipped"),
    "no causal mask": Fault(
        in_module("create_attention_mask", lambda _: lambda *a, **k: None), ATTENTION, "mask"
    ),
    "scores scaled by 1.1": Fault(
        in_module(
            "scaled_dot_product_attention",
            lambda plain: lambda *a, scale, **k: plain(*a, scale=scale * 1.1, **k),
        ),
        ATTENTION,
        "attention",
    ),
    "the other half of the gate": Fault(
        in_module("swiglu", lambda plain: lambda gate, x: plain(x, gate)), GATED, "gate"
    ),
    "no activation": Fault(
        in_module("swiglu", lambda plain: lambda gate, x: gate * x), GATED, "activation"
    ),
    "positions of queries": Fault(rotated(later), ATTENTION, "position"),
    "another epsilon in all": Fault(epsilon, r"norm(_f)?$", "epsilon"),
    "expert numbers": Fault(expert_numbers, r"\.mlp(\.experts)?$", "expert"),
}  # fmt: skip


def module_of(directory: Path) -> Any:
    """Return the module of mlx-lm that has the class of the model in DIRECTORY."""
    kind = json.loads((directory / "config.json").read_text())["model_type"]
    return importlib.import_module(f"mlx_lm.models.{kind}")


def counted(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    """Return FUNCTION, which notes each of its calls in CALLS."""

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return function(*args, **kwargs)

    return call


@contextlib.contextmanager
def planted(fault: Fault, directory: Path) -> Iterator[list[int]]:
    """Plant FAULT in the class that runs DIRECTORY; give the calls of what is at fault: none, no fault."""
    with contextlib.ExitStack() as stack:
        calls: list[int] = []
        for owner, name, instead in fault.patches(module_of(directory)):
            stack.enter_context(mock.patch.object(owner, name, counted(instead, calls)))
        yield calls
