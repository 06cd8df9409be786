"""Where low-rank adapters go, and the values that every backend starts them with."""

from __future__ import annotations

import difflib
import fnmatch
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from ..converters.values import Array, LowRank
from ..errors import MismatchError

NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")  # of a layer, in a name
MANY: Final = 20  # names that a message lists


def select(names: Iterable[str], patterns: Sequence[str], what: str, setting: str) -> list[str]:
    """Return the dotted NAMES that a pattern means: equal to it, ending in ``.pattern``, or by ``*``.

    Args:
        names: what there is.
        patterns: what is asked for.
        what: what the names are, for the error.
        setting: that has the patterns, likewise.

    Raises:
        MismatchError: patterns that mean nothing, with the nearest name.

    >>> select(["layer.0.query", "layer.0.key"], ["query"], "linear modules", "adapter.targets")
    ['layer.0.query']
    """
    names = list(names)
    found = {pattern: [name for name in names if _means(pattern, name)] for pattern in patterns}
    problems = []
    for pattern in (pattern for pattern, matches in found.items() if not matches):
        deeper = f"*.{pattern}"
        near = [deeper] if any(_means(deeper, name) for name in names) else []
        near = near or _nearest(pattern.strip("*"), names)
        hint = f"did you mean {near[0]}?" if near else f"there are {_listed(names)}"
        problems.append(f"{pattern}: {hint}")
    if problems:
        raise MismatchError(f"{setting}: no {what} have these names", problems)
    chosen = {name for matches in found.values() for name in matches}
    return [name for name in names if name in chosen]


def _nearest(wanted: str, names: Iterable[str]) -> list[str]:
    """Return what in NAMES is nearest to WANTED, of as many parts, if something is near.

    >>> _nearest("layer.0.qeury", ["layer.0.query", "layer.0.key"])
    ['layer.0.query']
    """
    size = wanted.count(".") + 1
    split = [name.split(".") for name in names]
    runs = {".".join(it[at : at + size]) for it in split for at in range(len(it) - size + 1)}
    return difflib.get_close_matches(wanted, sorted(it for it in runs if not it.isdigit()), n=1)


def _listed(names: Sequence[str]) -> str:
    """Return NAMES as a person reads them: numbers of layers stand for one another.

    >>> _listed(["layer.0.query", "layer.1.query", "head"])
    'layer.*.query, head'
    """
    found = list(dict.fromkeys(NUMBER.sub("*", name) for name in names))
    more = f" and {len(found) - MANY} more" if len(found) > MANY else ""
    return ", ".join(found[:MANY]) + more


def select_parameters(names: Iterable[str], patterns: Sequence[str], setting: str) -> set[str]:
    """Return the parameters NAMES that PATTERNS of SETTING mean; one without ``*`` means all that contain it.

    Raises:
        MismatchError: patterns that mean nothing.

    >>> sorted(select_parameters(["norm.weight", "head.bias", "head.weight"], ["norm", "*.bias"], "train"))
    ['head.bias', 'norm.weight']
    """
    wide = [pattern if "*" in pattern else f"*{pattern}*" for pattern in patterns]
    return set(select(names, wide, "parameters", setting)) if patterns else set()


def initial_updates(
    shapes: Mapping[str, tuple[int, int]], *, rank: int, scale: float, seed: int
) -> dict[str, LowRank]:
    """Return first values by weight name: A uniform in +-1/sqrt(in), B zero (Hu et al. 2021, 4.1).

    Every weight has a generator of its own, so that neither its order nor its neighbours matter.

    Args:
        shapes: weight name to ``(out, in)``.
        rank: the inner dimension.
        scale: the multiplier of every update.
        seed: of the run.
    """
    return {
        name: LowRank(
            _generator(seed, name)
            .uniform(-(size**-0.5), size**-0.5, (rank, size))
            .astype(np.float32),
            np.zeros((out, rank), np.float32),
            scale,
        )
        for name, (out, size) in shapes.items()
    }


def with_magnitudes(
    updates: Mapping[str, LowRank], weights: Mapping[str, Any]
) -> dict[str, LowRank]:
    """Return UPDATES with the lengths of the rows of the torch WEIGHTS, as DoRA begins."""
    lengths = {name: weights[name].detach().norm(dim=1).numpy() for name in updates}
    return {name: replace(update, magnitude=lengths[name]) for name, update in updates.items()}


def parameters_of(updates: Mapping[str, LowRank], prefix: str = "") -> dict[str, Array]:
    """Return UPDATES as trainable parameters: ``<module>.lora_a`` (in, r), ``.lora_b`` (r, out).

    With DoRA also ``.lora_m`` (out,).
    """
    parameters: dict[str, Array] = {}
    for name, update in updates.items():
        module = prefix + name.removesuffix(".weight")
        parameters[f"{module}.lora_a"] = np.ascontiguousarray(update.a.T)
        parameters[f"{module}.lora_b"] = np.ascontiguousarray(update.b.T)
        if update.magnitude is not None:
            parameters[f"{module}.lora_m"] = update.magnitude
    return parameters


def updates_of(
    parameters: Mapping[str, Array], scale: float, prefix: str = ""
) -> dict[str, LowRank]:
    """Return trainable parameters as updates by weight name; undoes :func:`parameters_of`."""
    modules = [name.removesuffix(".lora_a") for name in parameters if name.endswith(".lora_a")]
    return {
        f"{module.removeprefix(prefix)}.weight": LowRank(
            parameters[f"{module}.lora_a"].T,
            parameters[f"{module}.lora_b"].T,
            scale,
            parameters.get(f"{module}.lora_m"),
        )
        for module in modules
    }


def probe_values(
    parameters: Mapping[str, Array], seed: int, beside: float = 0.0
) -> dict[str, Array]:
    """Return PARAMETERS with every factor of zeros replaced by small noise, and others by as much as BESIDE of them.

    The gradient of ``lora_a`` is a multiple of ``lora_b``, which is zero at the start, and therefore
    zero, whether the model is right or not; with noise of 0.01 it says something. Where weights lie
    ``[in, out]`` it is the other way round.
    """

    def probe(name: str, value: Array) -> Array:
        zero = name.endswith((".lora_a", ".lora_b")) and not value.any()
        if not (zero or beside):
            return value
        noise = _generator(seed, name).standard_normal(value.shape)
        moved: Array = (0.01 * noise if zero else value * (1 + beside * noise)).astype(value.dtype)
        return moved

    return {name: probe(name, value) for name, value in parameters.items()}


def linear_shapes(module: Any) -> dict[str, tuple[int, int]]:
    """Return ``(out, in)`` of every linear layer in MODULE, by module path."""
    import torch

    return {
        name: tuple(layer.weight.shape[::-1] if in_out(layer) else layer.weight.shape)
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear) or in_out(layer)
    }


def in_out(layer: Any) -> bool:
    """Return whether LAYER is the Conv1D of transformers: a linear layer whose weight lies ``[in, out]``.

    Whoever made one has imported its class.
    """
    known = sys.modules.get("transformers.pytorch_utils")
    return known is not None and isinstance(layer, known.Conv1D)


def sharing(module: Any) -> dict[str, list[str]]:
    """Return which other modules have the weight of each linear layer in MODULE too, such as a tied head's.

    >>> import torch
    >>> both = torch.nn.ModuleDict({"up": torch.nn.Linear(2, 3), "head": torch.nn.Linear(2, 3)})
    >>> both["head"].weight = both["up"].weight
    >>> sharing(both)["head"]
    ['up']
    """
    owners: dict[int, list[str]] = defaultdict(list)
    for name, layer in module.named_modules():
        for own in layer.parameters(recurse=False):
            owners[id(own)].append(name)
    weights = {name: module.get_submodule(name).weight for name in linear_shapes(module)}
    return {name: [it for it in owners[id(own)] if it != name] for name, own in weights.items()}


def turned(updates: Mapping[str, LowRank], module: Any) -> dict[str, LowRank]:
    """Return UPDATES between the form of linear layers and that of the weights of the torch MODULE, both ways.

    Raises:
        UnsupportedError: an update of DoRA, whose lengths are of rows, has to be turned.
    """
    layers = {name: module.get_submodule(name.removesuffix(".weight")) for name in updates}
    return {name: it.transposed() if in_out(layers[name]) else it for name, it in updates.items()}


def _means(pattern: str, name: str) -> bool:
    return name == pattern or name.endswith(f".{pattern}") or fnmatch.fnmatchcase(name, pattern)


def _generator(seed: int, name: str) -> np.random.Generator:
    return np.random.default_rng([seed, *name.encode()])
