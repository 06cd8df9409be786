"""Write an adapter for PEFT: every module by its full path, ranks and alphas exact.

Format: ``peft/tuners/lora/config.py``, ``peft/tuners/lora/layer.py``, ``peft/tuners/tuners_utils.py``.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....errors import UnsupportedError
from ...values import Array, LowRank
from ..adapter import module_of
from ..forms import PEFT_EMBEDDING, PEFT_EXPERTS, PEFT_LINEAR, Form
from ..open import PEFT_TENSORS
from ..writing import commonest, write_files
from .nesting import WRAPPER, deepest_first
from .reader import DIALECT, PREFIX
from .targets import ends

METADATA: Final = {"format": "pt"}
TRANSPOSED: Final = ("conv1d", "embedding", "experts_in_out")  # weights that lie [in, out]
STACKED: Final = ("experts", "experts_in_out")
# PEFT rewrites targets that end so, on families whose experts transformers 5 fused: it takes them
# for those experts (``transformers_weight_conversion.py``, ``_MOE_TARGET_MODULE_MAPPING``).
FUSED: Final = ("gate", "w1", "w2", "w3", "gate_proj", "up_proj", "down_proj")
FULL: Final = (
    "a full fine-tune is weights of a model, not an adapter: merge it into its base"
    " (weighbridge merge --help) and take the merged model"
)


class Placed(NamedTuple):
    """An update as PEFT has it.

    Attributes:
        parameter: what it changes.
        update: in PEFT's layout.
        kind: of the module.
        whole: whether ``target_parameters`` names it, and not ``target_modules``.
    """

    parameter: str
    update: LowRank
    kind: str
    whole: bool

    @property
    def target(self) -> str:
        """What the configuration calls it."""
        return self.parameter if self.whole else module_of(self.parameter)


def write_peft(
    folder: Path,
    updates: Mapping[str, LowRank],
    *,
    kinds: Mapping[str, str] | None,
    saved: Mapping[str, Array] | None = None,
    base: str | None = None,
) -> None:
    """Write UPDATES as a PEFT adapter.

    Each update keeps its rank; ``lora_alpha`` is scale times rank. Nothing is written narrower than
    it came. For programs that ignore ``rank_pattern``, bring them to one rank and scale before, with
    ``writing.uniform``.

    Args:
        folder: the directory to write.
        updates: by parameter of the live class, aligned with it.
        kinds: of the base's modules, in the order in which its class registers them; without them a
            weight of two axes is taken for a linear layer's, and one of three for experts'.
        saved: tensors of ``modules_to_save``.
        base: what the adapter is for; ``base_model_name_or_path``.

    Raises:
        UnsupportedError: PEFT has no form for these updates; everything is named.
    """
    saved = saved or {}
    if problems := unwritable(updates, kinds, saved):
        raise UnsupportedError(f"PEFT has no form for this adapter: {'; '.join(problems)}")
    placed = [_place(name, update, kinds) for name, update in sorted(updates.items())]
    arrays = {PREFIX + name: array for name, array in _whole(saved, updates).items()}
    for path, item in _levels(placed, kinds).items():
        arrays |= _arrays(path, item)
    own = _config(placed, saved, kinds) | {"base_model_name_or_path": base}
    write_files(folder, PEFT_TENSORS[0], arrays, {**_DEFAULTS, **own}, METADATA)


def unwritable(
    updates: Mapping[str, LowRank], kinds: Mapping[str, str] | None, saved: Mapping[str, Array]
) -> list[str]:
    """Return what of an adapter PEFT has no form for."""
    placed = [(name, update, kind_of(name, update, kinds)) for name, update in updates.items()]
    norms = [name for name, update, _ in placed if update.magnitude is not None]
    problems = [] if updates else [FULL if saved else "there is nothing to write"]
    problems += _unordered(updates, kinds)
    if norms and len(norms) != len(updates):
        problems.append(f"{len(norms)} of {len(updates)} updates are DoRA; all must be, or none")
    for name, update, kind in sorted(placed, key=lambda item: item[0]):
        if len(update.lead) > 1:
            problems.append(f"{name} has {len(update.shape)} axes")
        if update.magnitude is not None and (kind != "linear" or _mistaken(name, kinds)):
            problems.append(f"{name} has DoRA norms, which go on linear layers only; merge it")
    return problems


def _unordered(updates: Mapping[str, LowRank], kinds: Mapping[str, str] | None) -> list[str]:
    """Name parameters of one module that nobody says the order of, which the wrappers depend on."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name in updates:
        modules[name.rpartition(".")[0]].append(name)
    return [
        f"{name} is one of several parameters of its module, and in which order is not known"
        for names in modules.values()
        for name in sorted(names)
        if len(names) > 1 and kinds is not None and module_of(name) not in kinds
    ]


def kind_of(name: str, update: LowRank, kinds: Mapping[str, str] | None) -> str:
    """Return the kind of the parameter NAME: as KINDS say, or ``parameter`` if it has none."""
    if kinds is not None:
        return kinds.get(module_of(name), "parameter")
    if update.lead:
        return "experts"
    return "linear" if name.endswith(".weight") else "parameter"


def _mistaken(name: str, kinds: Mapping[str, str] | None) -> bool:
    """Say whether PEFT would take the linear layer of NAME for experts, by the end of its name."""
    fused = any(kind in STACKED for kind in (kinds or {}).values())
    return fused and module_of(name).rpartition(".")[2] in FUSED


def _place(name: str, update: LowRank, kinds: Mapping[str, str] | None) -> Placed:
    kind = kind_of(name, update, kinds)
    aligned = update.transposed() if kind in TRANSPOSED else update
    if kind == "linear" and _mistaken(name, kinds):
        return Placed(name, aligned, "parameter", whole=True)
    return Placed(name, aligned, kind, whole=kind in (*STACKED, "parameter"))


def _levels(placed: Iterable[Placed], kinds: Mapping[str, str] | None) -> dict[str, Placed]:
    """Return PLACED by where their tensors lie: one wrapper deeper for each later parameter."""
    order = {name: place for place, name in enumerate(kinds or {})}
    modules: dict[str, list[Placed]] = defaultdict(list)
    for item in placed:
        modules[item.parameter.rpartition(".")[0]].append(item)
    found = {}
    for module, items in modules.items():
        names = deepest_first(item.parameter.rpartition(".")[2] for item in items)
        items.sort(key=lambda item: names.index(item.parameter.rpartition(".")[2]))
        items.sort(key=lambda item: order.get(module_of(item.parameter), -1))
        for depth, item in enumerate(reversed(items)):
            found[module + WRAPPER * depth] = item
    return found


def _arrays(path: str, item: Placed) -> dict[str, Array]:
    """Return the tensors of ITEM by their names in the file."""
    kind, form = _form(item)
    a, b = form.write(item.update)
    stem = PREFIX + path
    arrays = {stem + DIALECT.leaf(kind, "a"): a, stem + DIALECT.leaf(kind, "b"): b}
    if item.update.magnitude is not None:
        arrays[stem + DIALECT.leaf("", "magnitude")] = item.update.magnitude
    return arrays


def _form(item: Placed) -> tuple[str, Form]:
    if item.kind == "embedding":
        return "embedding", PEFT_EMBEDDING
    return "", PEFT_EXPERTS if item.whole else PEFT_LINEAR


def _whole(saved: Mapping[str, Array], updates: Mapping[str, LowRank]) -> dict[str, Array]:
    """Return SAVED by their names in the file: the weight of an updated module lies in a wrapper."""
    return {
        name if name not in updates else f"{module_of(name)}{WRAPPER}.weight": array
        for name, array in saved.items()
    }


_DEFAULTS: Final[Mapping[str, Any]] = {
    "peft_type": "LORA",
    "task_type": None,
    "bias": "none",
    "exclude_modules": None,
    "inference_mode": True,
    "init_lora_weights": True,
    "layers_pattern": None,
    "layers_to_transform": None,
    "lora_dropout": 0.0,
    "revision": None,
    "use_rslora": False,
}


def _config(
    placed: list[Placed], saved: Mapping[str, Array], kinds: Mapping[str, str] | None
) -> dict[str, Any]:
    """Return what PEFT reads."""
    updated = {item.parameter for item in placed}
    modules = sorted(item.target for item in placed if not item.whole)
    parameters = sorted(item.target for item in placed if item.whole)
    kept = sorted({name.rpartition(".")[0] for name in saved if name not in updated})
    others = sorted(
        path for path in kinds or {} if path not in modules and any(ends(path, m) for m in modules)
    )
    return {
        **_patterns(placed),
        "target_modules": modules,
        "exclude_modules": others or None,
        "target_parameters": parameters or None,
        "modules_to_save": kept or None,
        "fan_in_fan_out": any(item.kind == "conv1d" for item in placed),
        "use_dora": any(item.update.magnitude is not None for item in placed),
    }


def _patterns(placed: list[Placed]) -> dict[str, Any]:
    """Return ranks and alphas: the most frequent pair, and what differs from it by full path."""
    terms = {p.target: (p.update.rank, alpha_of(p.update.scale, p.update.rank)) for p in placed}
    rank, alpha = commonest(terms.values()) if terms else (1, 1)
    paths = {target: f"^{re.escape(target)}" for target in terms}
    return {
        "r": rank,
        "lora_alpha": alpha,
        "rank_pattern": {paths[t]: r for t, (r, _) in sorted(terms.items()) if r != rank},
        "alpha_pattern": {paths[t]: a for t, (_, a) in sorted(terms.items()) if a != alpha},
    }


def alpha_of(scale: float, rank: int) -> float:
    """Return the alpha of which a RANKth part is SCALE, a whole number if one does.

    >>> alpha_of(2.0, 8), alpha_of(1 / 3, 3)
    (16, 1)
    """
    exact = scale * rank
    near = (round(exact), exact, math.nextafter(exact, math.inf), math.nextafter(exact, 0.0))
    return next((alpha for alpha in near if alpha / rank == scale), exact)
