"""Faults of weights and settings, planted by what a tensor is and not by whose it is.

Names are PyTorch's: a candidate in MLX is converted from the planted checkpoint, so the truth about
which weights are wrong is known in every layout.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

Tensors = dict[str, torch.Tensor]
Edit = Callable[[torch.Tensor], torch.Tensor | None]

NORM: Final = r"(norm\d?|LayerNorm|ln_\d|normalization)\.weight$"
EMBEDDING: Final = r"(embed_tokens|word_embeddings|wte|shared|backbone\.embeddings)\.weight$"
TABLES: Final = r"embed|wte|wpe|shared|relative_attention_bias|lm_head"  # looked up, not multiplied


class Fault(NamedTuple):
    """A fault of weights.

    Attributes:
        plant: changes tensors in place; false where a model has nothing of that kind.
        kind: what a line must say that names the kind of the fault, as a pattern.
    """

    plant: Callable[[Tensors], bool]
    kind: str


def middle(tensors: Tensors, fits: Callable[[str, torch.Tensor], bool]) -> str | None:
    """Return the middle one of the floating-point TENSORS that fit."""
    found = [it for it, w in sorted(tensors.items()) if w.is_floating_point() and fits(it, w)]
    return found[len(found) // 2] if found else None


def edited(fits: Callable[[str, torch.Tensor], bool], edit: Edit, kind: str) -> Fault:
    """Return a fault: EDIT applied in float32 to the middle tensor that fits."""

    def plant(tensors: Tensors) -> bool:
        name = middle(tensors, fits)
        changed = None if name is None else edit(tensors[name].float().clone())
        if name is None or changed is None:
            return False
        before, tensors[name] = tensors[name], changed.to(tensors[name].dtype).contiguous()
        return not torch.equal(before, tensors[name])

    return Fault(plant, kind)


def called(pattern: str) -> Callable[[str, torch.Tensor], bool]:
    """Return what fits a tensor whose name has PATTERN."""
    return lambda name, _: re.search(pattern, name) is not None


def is_matrix(name: str, array: torch.Tensor) -> bool:
    """Say whether a linear layer multiplies by ARRAY."""
    return array.ndim == 2 and min(array.shape) > 3 and not re.search(TABLES, name)


def is_square(name: str, array: torch.Tensor) -> bool:
    """Say whether ARRAY may be transposed unseen by its shape."""
    return is_matrix(name, array) and array.shape[0] == array.shape[1]


def is_kernel(name: str, array: torch.Tensor) -> bool:
    """Say whether ARRAY is convolved with, over more than one place."""
    return array.ndim > 2 and "experts" not in name and array.shape[-1] > 1


def is_bias(name: str, array: torch.Tensor) -> bool:
    """Say whether ARRAY is added to what a layer computes."""
    return name.endswith(".bias") and array.ndim == 1


def exchanged(array: torch.Tensor) -> torch.Tensor:
    """Return ARRAY with its first two rows exchanged."""
    return torch.cat([array[1:2], array[:1], array[2:]])


def set_at(edit: Callable[[torch.Tensor], torch.Tensor]) -> Edit:
    """Return what edits one number of an array, one of ordinary size."""

    def change(array: torch.Tensor) -> torch.Tensor:
        flat = array.flatten()
        at = (flat.abs() - flat.abs().mean()).abs().argmin()
        flat[at] = edit(flat[at])
        return flat.reshape(array.shape)

    return change


def zero_row(array: torch.Tensor) -> torch.Tensor:
    """Return ARRAY with a row of zeros, the last but one."""
    array[-2] = 0
    return array


def in_fewer_bits(array: torch.Tensor) -> torch.Tensor:
    """Return ARRAY rounded to 8 bits for each row, as a quantized copy is."""
    step = array.abs().amax(-1, keepdim=True) / 127
    return (array / step).round() * step


def other_layer(tensors: Tensors) -> bool:
    """Exchange a matrix with that of the same name in another layer."""
    for name in sorted(it for it, w in tensors.items() if is_matrix(it, w)):
        other = re.sub(r"(layers?|h|block|blocks)\.1\.", r"\1.0.", name)
        if other != name and other in tensors and tensors[other].shape == tensors[name].shape:
            tensors[name], tensors[other] = tensors[other], tensors[name]
            return True
    return False


def experts(tensors: Tensors) -> bool:
    """Exchange two experts as wholes; the router does not know."""
    found = [it for it in tensors if re.search(r"experts\.(0\.|gate_up_proj|down_proj)", it)]
    layer = max((re.split(r"experts", it)[0] for it in found), default="-")
    for name in [it for it in found if it.startswith(layer)]:
        if ".0." not in name.removeprefix(layer):
            tensors[name] = exchanged(tensors[name]).contiguous()
            continue
        other = layer + name.removeprefix(layer).replace(".0.", ".1.", 1)
        tensors[name], tensors[other] = tensors[other], tensors[name]
    return bool(found)


ONE: Final = r"\b1 of \d+|element|one number|rows? \d+ "
MOVED: Final = r"<-|moved|order|shuffled|rows? \d+"
FAULTS: Final[Mapping[str, Fault]] = {
    "a bias of zeros": edited(is_bias, lambda w: w * 0, "zero|bias"),
    "a bias of another layer's sign": edited(is_bias, lambda w: -w, "scaled|-1|bias"),
    "a norm scaled by 1.01": edited(called(NORM), lambda w: w * 1.01, r"1\.0[01]|scale"),
    "a norm less 1": edited(called(NORM), lambda w: w - 1, r"-1|offset"),
    "a number of a norm off by 5 %": edited(called(NORM), set_at(lambda w: w * 1.05), ONE),
    "a matrix scaled by 1.01": edited(is_matrix, lambda w: w * 1.01, r"1\.0[01]|scale"),
    "a square matrix transposed": edited(is_square, lambda w: w.T, "transpos|permuted"),
    "two rows exchanged": edited(is_matrix, exchanged, MOVED),
    "halves of rows exchanged": edited(is_matrix, lambda w: w.roll(len(w) // 2, 0), MOVED),
    "columns moved by one": edited(is_matrix, lambda w: w.roll(1, 1), MOVED + "|columns"),
    "a sign flipped": edited(is_matrix, set_at(lambda w: -w), ONE),
    "a number moved by a tenth": edited(is_matrix, set_at(lambda w: w * 1.1), ONE),
    "a matrix in 8 bits": edited(is_matrix, in_fewer_bits, "bits|round"),
    "a matrix turned round": edited(is_matrix, lambda w: w.flip(0, 1), "turned round"),
    "a row of zeros": edited(called(EMBEDDING), zero_row, "zero"),
    "embeddings moved by one": edited(called(EMBEDDING), lambda w: w.roll(1, 0), MOVED),
    "a kernel reversed": edited(is_kernel, lambda w: w.flip(-1), "flip|revers|" + MOVED),
    "a kernel scaled by 0.99": edited(is_kernel, lambda w: w * 0.99, r"0\.99|scale"),
    "a variance of ones": edited(called("running_var"), torch.ones_like, "unexplained|differs"),
    "a decay scaled by 1.01": edited(called("A_log"), lambda w: w * 1.01, r"1\.0[01]|scale"),
    "a time step's bias of zeros": edited(called("dt_bias|dt_proj.bias"), torch.zeros_like, "zero"),
    "the router's rows exchanged": edited(called(r"(mlp|moe)\.gate\.weight"), exchanged, MOVED),
    "a matrix of another layer": Fault(other_layer, "carries|instead|other|not|swapped|expected"),
    "two experts exchanged": Fault(experts, "carries|instead|expert|<-|not"),
}  # fmt: skip

EPSILONS: Final = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")
ACTIVATIONS: Final = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")


def setting(keys: tuple[str, ...], edit: Callable[[Any], Any]) -> Callable[[dict[str, Any]], str]:
    """Return what changes the first of KEYS that a configuration has, and returns it or nothing."""

    def plant(config: dict[str, Any]) -> str:
        key = next((it for it in keys if config.get(it) is not None), "")
        if key:
            config[key] = edit(config[key])
        return key

    return plant


def other_theta(config: dict[str, Any]) -> str:
    """Change the base of rotary positions, where transformers reads it and where mlx-lm does."""
    parts = [config, config.get("rope_parameters") or {}]
    theta = next((it["rope_theta"] for it in parts if it.get("rope_theta")), None)
    if theta is None:
        return ""
    for part in parts:
        part["rope_theta"] = theta * 1.1
    return "rope"


# Changed in the configuration of a candidate whose weights are right. An activation is named only in
# PyTorch's configurations: a class of mlx-lm has its own.
SETTINGS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    "another epsilon": setting(EPSILONS, lambda eps: 1e-3),
    "another theta": other_theta,
    "an expert more a token": setting(("num_experts_per_tok",), lambda count: count + 1),
    "another renormalisation": setting(("norm_topk_prob",), lambda norm: not norm),
    "another scale of experts": setting(("routed_scaling_factor",), lambda scale: scale / 2),
    "another activation": setting(ACTIVATIONS, lambda act: "relu" if act != "relu" else "gelu"),
}
