"""What the classes share: their configuration, activations, attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

import mlx.core as mx
from mlx import nn

Own = TypeVar("Own", bound="Args")
Weights = dict[str, mx.array]
Outputs = dict[str, mx.array]
ACTIVATIONS: Final[Mapping[str, Callable[[mx.array], mx.array]]] = {
    "gelu": nn.gelu,
    "gelu_new": nn.gelu_approx,
    "gelu_pytorch_tanh": nn.gelu_approx,
    "quick_gelu": nn.gelu_fast_approx,
    "relu": nn.relu,
    "silu": nn.silu,
    "swish": nn.silu,
    "tanh": mx.tanh,
}


class Args:
    """A configuration: the keys of ``config.json`` that a class reads."""

    @classmethod
    def from_dict(cls: type[Own], config: Mapping[str, Any]) -> Own:
        """Return the configuration in CONFIG; what the class does not read is left out."""
        known = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{key: value for key, value in config.items() if key in known})


def head_of(architectures: list[str] | None) -> str:
    """Return what the first of ARCHITECTURES ends in: ``ForCTC``, or nothing for a bare model.

    >>> head_of(["Wav2Vec2ForCTC"]), head_of(["ViTModel"]), head_of(None)
    ('ForCTC', '', '')
    """
    name = (architectures or [""])[0]
    return name[name.index("For") :] if "For" in name else ""


def labels_of(id2label: Mapping[str, str] | None, num_labels: int | None) -> int:
    """Return how many labels a classifier has; two where nothing says it, as in transformers.

    Raises:
        ValueError: it has none, and so is no layer.
    """
    if id2label is not None and not id2label:
        raise ValueError("a classifier without labels is not supported here")
    return len(id2label) if id2label is not None else num_labels or 2


def activation(name: str) -> Callable[[mx.array], mx.array]:
    """Return the function that transformers calls NAME.

    Raises:
        ValueError: it is none of those that are known here.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def sides(size: int | list[int]) -> tuple[int, int]:
    """Return height and width of SIZE, one number for both or two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def attention(
    queries: mx.array,
    keys: mx.array,
    values: mx.array,
    heads: int,
    scale: float,
    mask: mx.array | str | None = None,
) -> mx.array:
    """Let every head of QUERIES look at KEYS and gather VALUES.

    Args:
        queries: ``[batch, targets, heads * size]``.
        keys: ``[batch, sources, heads * size]``.
        values: ``[batch, sources, heads * size]``.
        heads: how many there are.
        scale: what the products are multiplied with.
        mask: added to the products, ``[batch, heads, targets, sources]`` or as broadcasts to that;
            or ``causal``.
    """
    q, k, v = (
        it.reshape(*it.shape[:2], heads, -1).transpose(0, 2, 1, 3) for it in (queries, keys, values)
    )
    found = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)
    return found.transpose(0, 2, 1, 3).reshape(*queries.shape[:2], -1)


def without(weights: Weights, *names: str, prefix: str = "") -> Weights:
    """Return WEIGHTS with PREFIX cut off their names, and without those whose name begins with NAMES."""
    bare = {name.removeprefix(prefix): array for name, array in weights.items()}
    return {name: array for name, array in bare.items() if not name.startswith(names)}
