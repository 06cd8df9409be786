"""Write an adapter for mlx-lm: one rank, one scale, all LoRA or all DoRA.

Format: ``mlx_lm/tuner/utils.py``, ``load_adapters``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ....errors import UnsupportedError
from ...values import Array, LowRank
from ..adapter import module_of
from ..expectations import last_layers, position
from ..forms import MLX_LINEAR, MLX_SWITCH
from ..writing import uniform, write_files
from .reader import DIALECT, DORA, FULL, LORA, SWITCH_AXES, TENSORS

KINDS: Final = ("linear", "embedding", "experts")
METADATA: Final = {"format": "mlx"}


def write_adapter(
    folder: Path,
    updates: Mapping[str, LowRank],
    *,
    config: Mapping[str, Any],
    kinds: Mapping[str, str] | None = None,
    saved: Mapping[str, Array] | None = None,
    layered: bool = False,
) -> None:
    """Write UPDATES as an mlx-lm adapter.

    mlx-lm knows one rank and one scale. Smaller ranks are padded with zeros, which is exact; where
    scales differ, the ratio to the most frequent one is multiplied into ``lora_b``, rounded once to
    float32. Nothing is ever written narrower than it came.

    Args:
        folder: the directory to write.
        updates: by parameter, aligned with it.
        config: whatever else to record.
        kinds: of the base's modules; without them every weight is taken for a linear layer's.
        saved: ``modules_to_save`` tensors. mlx-lm reads them only where there are no updates.
        layered: name modules as within their layers, and the last layers by their number, for
            mlx-swift, which looks nowhere else; how many layers there are KINDS say, or else the
            updates. Full paths, which mlx-lm takes as well, wrap nothing that was not trained.

    Raises:
        UnsupportedError: mlx-lm has no form for these updates; everything is named.
    """
    saved = saved or {}
    if problems := unwritable(updates, kinds, saved):
        raise UnsupportedError(f"mlx-lm has no form for this adapter: {'; '.join(problems)}")
    if not updates:
        full = {"num_layers": -1, **config, "fine_tune_type": FULL}
        write_files(folder, TENSORS, saved, full, METADATA)
        return
    alike = uniform(updates)
    arrays: dict[str, Array] = {}
    for name, update in alike.items():
        arrays |= _arrays(module_of(name), update, kinds)
    write_files(folder, TENSORS, arrays, _config(alike, config, kinds, layered), METADATA)


def unwritable(
    updates: Mapping[str, LowRank],
    kinds: Mapping[str, str] | None,
    saved: Mapping[str, Array],
) -> list[str]:
    """Return what of an adapter mlx-lm has no form for."""
    norms = {name for name, update in updates.items() if update.magnitude is not None}
    problems = [_no_module(name, update, kinds) for name, update in sorted(updates.items())]
    if norms and len(norms) != len(updates):
        problems.append(f"{len(norms)} of {len(updates)} updates are DoRA; all must be, or none")
    problems += [
        f"{name} is an embedding with DoRA norms"
        for name in sorted(norms)
        if kinds and kinds.get(module_of(name)) == "embedding"
    ]
    if updates and saved:
        names = ", ".join(sorted(saved))
        problems.append(
            f"modules_to_save tensors beside updates ({names}); merge the adapter instead"
        )
    if not updates and not saved:
        problems.append("there is nothing to write")
    return [problem for problem in problems if problem]


def _no_module(name: str, update: LowRank, kinds: Mapping[str, str] | None) -> str:
    """Say why mlx-lm could not put UPDATE on a module; nothing if it could."""
    if not name.endswith(".weight"):
        return f"{name} is not a parameter called weight"
    if len(update.lead) > SWITCH_AXES - 2:
        return f"{name} has {len(update.shape)} axes"
    kind = "linear" if kinds is None else kinds.get(module_of(name), "")
    if kind in KINDS:
        return ""
    return f"{name} is not of a Linear, Embedding or SwitchLinear; merge the adapter instead"


def _arrays(module: str, update: LowRank, kinds: Mapping[str, str] | None) -> dict[str, Array]:
    """Return the tensors of UPDATE by their names in the file."""
    if kinds and kinds.get(module) == "embedding":
        update = update.transposed()
    a, b = (MLX_SWITCH if update.lead else MLX_LINEAR).write(update)
    halves = {module + DIALECT.leaf("", "a"): a, module + DIALECT.leaf("", "b"): b}
    if update.magnitude is not None:
        halves[module + DIALECT.leaf("", "magnitude")] = update.magnitude
    return halves


def _config(
    updates: Mapping[str, LowRank],
    config: Mapping[str, Any],
    kinds: Mapping[str, str] | None,
    layered: bool,
) -> dict[str, Any]:
    """Return what mlx-lm reads, over what CONFIG records."""
    first = next(iter(updates.values()))
    modules = list(map(module_of, updates))
    parameters = {
        "dropout": 0.0,
        **(config.get("lora_parameters") or {}),
        "rank": first.rank,
        "scale": first.scale,
        "keys": sorted(within_layers(modules) if layered else modules),
    }
    return {
        "num_layers": -1,
        **config,
        **({"num_layers": last_layers(modules, kinds or ())[0]} if layered else {}),
        "fine_tune_type": LORA if first.magnitude is None else DORA,
        "lora_parameters": parameters,
    }


def within_layers(modules: Iterable[str]) -> set[str]:
    """Return what MODULES are called within their layers; one outside keeps its path.

    >>> within_layers(["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"])
    {'mlp.up_proj'}
    """
    return {place.rest if (place := position(module)) else module for module in modules}
