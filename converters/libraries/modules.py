"""The modules of a live model: what kind each one is, and which parameters it has.

An adapter speaks of modules, a checkpoint of tensors. What PEFT or an MLX library would put an
adapter on, and how the weight there lies, only the class tells.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..checkpoints.base import Header
from ..common import cache
from .apart import apart
from .defaults import key_of
from .floats import document_of
from .target import Target
from .transformers import computed, header, meta_model, quiet, torch_class

Config = Mapping[str, Any]
LINEAR: Final = "linear"  # weight [out, in]
CONV1D: Final = "conv1d"  # transformers' Conv1D, weight [in, out]
EMBEDDING: Final = "embedding"  # weight [vocabulary, dimensions]
EXPERTS: Final = "experts"  # [experts, out, in]
EXPERTS_IN_OUT: Final = "experts_in_out"  # [experts, in, out]: PEFT's own mark, ``is_transposed``
FORMAT: Final = 2  # of the answer that is kept; raise it when what is found out changes
STACKED: Final = 3  # axes of the weight of all experts


@dataclass(frozen=True)
class Modules:
    """What a class of transformers is made of.

    Attributes:
        name: of the class.
        kinds: ``linear``, ``conv1d``, ``embedding``, ``experts`` or ``experts_in_out``, by the name
            of the parameter without a last ``.weight``; modules of other kinds are absent. So a
            module whose weight is called ``weight`` goes by its own path, experts by the path of
            their parameter (``model.layers.0.mlp.experts.gate_up_proj``).
        headers: its state dict, every tied name included; F32 stands for every float.
        prefix: what the bare model's names begin with under a head, such as ``model``.
        ties: for each parameter that is another one by a second name, the name of that one.
        buffers: those names in the state dict that the class computes itself, such as buffers.
    """

    name: str
    kinds: Mapping[str, str]
    headers: Mapping[str, Header]
    prefix: str
    ties: Mapping[str, str]
    buffers: frozenset[str] = frozenset()

    @property
    def tied(self) -> frozenset[str]:
        """The parameters that have more than one name, under each of their names."""
        return frozenset({*self.ties, *self.ties.values()})


def describe(config: Config, name: str = "") -> Modules:
    """Return what the transformers class for CONFIG is made of; kept between runs.

    Args:
        config: a config that transformers reads.
        name: of another class than the one that CONFIG asks for.

    >>> sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 5}
    >>> gpt2 = describe({"model_type": "gpt2", **sizes})
    >>> gpt2.kinds["transformer.h.0.attn.c_attn"], gpt2.ties
    ('conv1d', {'lm_head.weight': 'transformer.wte.weight'})

    Raises:
        BadInputError: transformers does not take the config.
        UnsupportedError: transformers does not know the model type, or is not installed.
    """
    key = [*key_of(document_of(config)), name, FORMAT]
    kept = cache.recall("modules", key)
    if kept is None:
        kept = apart(__name__, "answer", dict(config), name)
        cache.keep("modules", key, kept)
    return from_json(kept)


def answer(config: Config, name: str) -> dict[str, Any]:
    """Return what ``described`` does, as JSON."""
    return as_json(described(config, name))


def described(config: Config, name: str = "") -> Modules:
    """Return what ``describe`` does, found out now."""
    name = name or torch_class(config)
    with quiet():
        model = meta_model(config, name)
    headers = {at: header(tensor, "F32") for at, tensor in model.state_dict().items()}
    buffers = headers.keys() & computed(model)
    kinds, prefix = dict(torch_kinds(model)), str(model.base_model_prefix)
    return Modules(name, kinds, headers, prefix, ties(model), frozenset(buffers))


def as_json(modules: Modules) -> dict[str, Any]:
    """Return MODULES as JSON."""
    headers = {name: [dtype, *shape] for name, (dtype, shape) in modules.headers.items()}
    return {**vars(modules), "headers": headers, "buffers": sorted(modules.buffers)}


def from_json(kept: Mapping[str, Any]) -> Modules:
    """Return the Modules that ``as_json`` wrote."""
    headers = {
        name: Header(dtype, tuple(shape)) for name, (dtype, *shape) in kept["headers"].items()
    }
    return Modules(**{**kept, "headers": headers, "buffers": frozenset(kept["buffers"])})


def torch_kinds(model: Any) -> Iterator[tuple[str, str]]:
    """Yield each parameter of the torch MODEL that an adapter can be put on, and its kind.

    Which modules these are is PEFT's rule (``tuners/lora``): subclasses of Linear, Embedding and
    Conv1D, and 3-D parameters of experts, which are transposed where the module says so.
    """
    import torch
    from transformers.pytorch_utils import Conv1D

    kinds = {torch.nn.Linear: LINEAR, torch.nn.Embedding: EMBEDDING, Conv1D: CONV1D}
    for path, module in model.named_modules(remove_duplicate=False):
        kind = next((word for cls, word in kinds.items() if isinstance(module, cls)), "")
        if kind:
            yield path, kind
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim == STACKED and is_experts(path, module):
                turned = getattr(module, "is_transposed", False)
                kind = EXPERTS_IN_OUT if turned else EXPERTS
                yield f"{path}.{name}".removesuffix(".weight"), kind


def is_experts(path: str, module: Any) -> bool:
    """Say whether the 3-D weights of MODULE, at PATH, are a matrix for each expert.

    Convolutions have 3-D weights too; experts are called so, themselves or what they are part of.
    """
    builtin = type(module).__module__.startswith("torch.nn.")
    return not builtin and "expert" in f"{path} {type(module).__name__}".lower()


def ties(model: Any) -> dict[str, str]:
    """Return the parameters of the torch MODEL that are one, the first name of each by the others.

    Of several names the one that transformers keeps (``all_tied_weights_keys``) comes first.
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    aliases = dict(getattr(model, "all_tied_weights_keys", None) or {})
    found: dict[str, str] = {}
    for group in names.values():
        first, *others = sorted(group, key=lambda name: name in aliases)
        found |= dict.fromkeys(others, first)
    return found


def mlx_kinds(target: Target, config: Config) -> dict[str, str]:
    """Return the kinds of the modules of TARGET's class for CONFIG, an MLX config, by their paths.

    ``linear``, ``embedding`` or ``experts`` (``SwitchLinear``, ``[experts, out, in]``), unquantized.

    Raises:
        BadInputError: the class does not take the config.
        UnsupportedError: the library or a package it needs is not installed.
    """
    found = ((path, mlx_kind(module)) for path, module in target.build(config).named_modules())
    return {path: kind for path, kind in found if kind}


def mlx_kind(module: Any) -> str:
    """Return the kind of one MLX MODULE, empty if it is none that takes an adapter."""
    from mlx import nn

    if isinstance(module, nn.Linear):
        return LINEAR
    if isinstance(module, nn.Embedding):
        return EMBEDDING
    # Each library has a class of this name; importing one to ask would need the library.
    switch = any(cls.__name__ == "SwitchLinear" for cls in type(module).__mro__)
    return EXPERTS if switch else ""
