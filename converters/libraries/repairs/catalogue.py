"""Which faults the classes of mlx-lm have, by model type, and what the repair of each has to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class Repair:
    """A fault of a class that a part of ``model.py`` mends.

    Attributes:
        part: the file in ``parts/``; its class is called so too.
        fields: of config.json that the library's class does not keep, with their defaults.
        settings: attributes of the model by which the part knows this class.
    """

    part: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def activation(key: str, *layers: str, default: str = "") -> Repair:
    """Return the repair of feed-forward LAYERS whose activation KEY names; without DEFAULT it is KEY."""
    settings = {"activation": key, "feed_forward": layers}
    return Repair("activation", {key: default} if default else {}, settings)


WINDOW: Final = Repair("window", {"sliding_window": None, "layer_types": ()})
NESTED_WINDOW: Final = Repair("window")

# Model type -> the repairs of mlx-lm's class for it, the outermost first.
REPAIRS: Final[dict[str, tuple[Repair, ...]]] = {
    "gemma": (activation("gelu_pytorch_tanh", "gate_proj", "up_proj", "down_proj"),),
    "gemma2": (WINDOW,),
    "gpt_bigcode": (
        activation("activation_function", "c_fc", "c_proj", default="gelu_pytorch_tanh"),
    ),
    "gpt_neox": (activation("hidden_act", "dense_h_to_4h", "dense_4h_to_h", default="gelu"),),
    "llava": (NESTED_WINDOW,),
    "ministral3": (WINDOW,),
    "mistral": (WINDOW,),
    "mistral3": (NESTED_WINDOW,),
    "mixtral": (WINDOW,),
    "phi3": (WINDOW,),
    "phimoe": (WINDOW,),
    "starcoder2": (
        WINDOW,
        activation("hidden_act", "c_fc", "c_proj", default="gelu_pytorch_tanh"),
    ),
}


def parts(kind: str) -> frozenset[str]:
    """Return the parts that mend the class for model type KIND.

    >>> sorted(parts("starcoder2")), parts("llama")
    (['activation', 'window'], frozenset())
    """
    return frozenset(repair.part for repair in REPAIRS.get(kind, ()))


def declared(kind: str) -> frozenset[str]:
    """Return the fields that these parts read beside those of the library's class.

    >>> declared("gpt_neox")
    frozenset({'hidden_act'})
    """
    return frozenset(name for repair in REPAIRS.get(kind, ()) for name in repair.fields)
