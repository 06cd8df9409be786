"""Several parameters of one module: PEFT puts a wrapper around a wrapper.

The parameter that the class registers first is wrapped first, so it lies deepest: of experts with
``gate_up_proj`` and ``down_proj`` the file has ``experts.base_layer.lora_A.weight`` for the former
and ``experts.lora_A.weight`` for the latter. A name says how deep a tensor lies, and only the class
says which parameter that is (``peft/tuners/tuners_utils.py``, ``_inject_parameters``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from typing import Final

from ...values import LowRank
from ..config import Config
from ..forms import PEFT_EXPERTS
from .targets import parameters_of, terms_of

WRAPPER: Final = ".base_layer"
LAST: Final = ("down_proj", "w2", "output_linear")  # what experts of transformers register last
MOST: Final = 6  # parameters of one module: their orders are tried


def split(path: str) -> tuple[str, int]:
    """Return PATH without its wrappers, and how many they were.

    >>> split("mlp.experts.base_layer")
    ('mlp.experts', 1)
    """
    depth = 0
    while path.endswith(WRAPPER):
        path, depth = path.removesuffix(WRAPPER), depth + 1
    return path, depth


def deepest_first(names: Iterable[str]) -> list[str]:
    """Return NAMES of parameters from the deepest to the outermost, as far as names can tell.

    ``fit`` corrects the order by the base.

    >>> deepest_first(["down_proj", "gate_up_proj"])
    ['gate_up_proj', 'down_proj']
    """
    return sorted(names, key=lambda name: name in LAST)


def in_order_of(
    updates: Mapping[str, LowRank],
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    nested: Iterable[str],
) -> dict[str, LowRank]:
    """Return UPDATES with those of NESTED parameters under the names that the base gives them.

    Args:
        updates: as read, by parameter.
        config: of the adapter.
        shapes: of the parameters of the base, in the order in which its class registers them.
        nested: names of parameters that lie in wrappers, those of a module from the deepest on.
    """
    result = dict(updates)
    for module, names in _by_module(nested).items():
        there = [f"{module}.{leaf}" for leaf in parameters_of(config, module)]
        wanted = [name for name in shapes if name in there]
        if len(wanted) != len(names) or not 1 <= len(names) <= MOST or wanted == names:
            continue
        order = _order(updates, names, wanted, config, shapes)
        for name in names:
            del result[name]
        result |= {
            new: _reordered(updates[old], config, new)
            for old, new in zip(names, order, strict=True)
        }
    return result


def _by_module(names: Iterable[str]) -> dict[str, list[str]]:
    modules: dict[str, list[str]] = defaultdict(list)
    for name in names:
        modules[name.rpartition(".")[0]].append(name)
    return modules


def _order(
    updates: Mapping[str, LowRank],
    names: Sequence[str],
    wanted: Sequence[str],
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
) -> Sequence[str]:
    """Return WANTED as it belongs to NAMES: in the order of the base, or the one that shapes allow."""

    def fits(order: Sequence[str]) -> bool:
        pairs = zip(names, order, strict=True)
        return all(_can_be(updates[old], config, new, shapes[new]) for old, new in pairs)

    if fits(wanted):
        return wanted
    possible = [order for order in permutations(wanted) if fits(order)]
    return possible[0] if len(possible) == 1 else wanted


def _can_be(update: LowRank, config: Config, name: str, shape: tuple[int, ...]) -> bool:
    a, _ = PEFT_EXPERTS.write(update)
    if a.shape[0] % terms_of(config, name).rank:
        return False
    found = _reordered(update, config, name).shape
    return sorted(found[-2:]) == sorted(shape[-2:]) and found[:-2] in (shape[:-2], ())


def _reordered(update: LowRank, config: Config, name: str) -> LowRank:
    """Return UPDATE as it is read if it belongs to the parameter NAME."""
    terms = terms_of(config, name)
    a, b = PEFT_EXPERTS.read(*PEFT_EXPERTS.write(update), terms.rank)
    return LowRank(a, b, terms.scale)
