"""Merges of one adapter whose tensors lie in any order in any number of files."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from safetensors.numpy import load_file

from weighbridge import jobs
from weighbridge.converters.checkpoints import Header
from weighbridge.jobs.options import Options
from weighbridge.tests.support.adapters import made

LAYERS, RANK = 6, 4
TOGETHER = 10  # orders of the adapter to an order of the base
FORMATS: Final = {"torch": "pt", "mlx": "mlx"}
ROUNDING: Final = 2.0**-24  # of float32, relative


def merged(base: np.ndarray, update: made.Update) -> np.ndarray:
    """Return BASE with UPDATE in it, in float64: the definition, written out once more."""
    total = base.astype(np.float64) + update.scale * (
        update.b.astype(np.float64) @ update.a.astype(np.float64)
    )
    if update.m is None:
        return total
    return (update.m / np.linalg.norm(total, axis=1))[:, None] * total


def wrong(
    found: dict[str, np.ndarray], base: dict[str, np.ndarray], updates: dict[str, made.Update]
) -> Iterator[str]:
    """Yield the names of FOUND that are not what UPDATES make of BASE."""
    for name, array in base.items():
        update = updates.get(name.removesuffix(".weight"))
        if update is None:
            good = found[name].tobytes() == array.tobytes()
        else:
            wanted = merged(array, update)
            # twice: half a step beyond a power of two is a whole one below it
            good = bool((np.abs(found[name] - wanted) <= 2 * ROUNDING * np.abs(wanted)).all())
        if not good:
            yield name
    yield from found.keys() ^ base.keys()


def measure(dialect: str, framework: str, *, dora: bool, orders: int) -> dict[str, Any]:
    """Merge in every order and sharding; return how often all was right and the same."""
    config, layout = made.llama(LAYERS)
    base = made.random_arrays(layout, seed=1)
    updates = made.random_updates(projections(layout), RANK, seed=2, dora=dora)
    results = [
        (place, found, files)
        for place in product(range(0, orders, TOGETHER), (1, 3, len(base)))
        for found, files in round_of(
            (config, base, updates), (dialect, framework), place, min(TOGETHER, orders - place[0])
        )
    ]
    tensors = {tuple(found[name].tobytes() for name in sorted(found)) for _, found, _ in results}
    files = {(place, digest) for place, _, digest in results}
    return {
        "adapter": dialect,
        "base": framework,
        "kind": "DoRA" if dora else "LoRA",
        "projections": len(updates),
        "merges": len(results),
        "right": sum(not list(wrong(found, base, updates)) for _, found, _ in results),
        "different_tensors": len(tensors),
        "bases_in_files": len({place for place, _ in files}),
        "different_files": len(files),
    }


def projections(layout: Mapping[str, Header]) -> dict[str, tuple[int, int]]:
    """Return the shapes of the modules of LAYOUT that are changed."""
    return {
        name.removesuffix(".weight"): header.shape
        for name, header in layout.items()
        if ".self_attn." in name
    }


def round_of(
    parts: tuple[Any, ...], kind: tuple[str, str], place: tuple[int, int], orders: int
) -> Iterator[tuple[dict[str, np.ndarray], str]]:
    """Yield the tensors and the hash of the file of ORDERS merges into one base as written."""
    (config, base, updates), (dialect, framework) = parts, kind
    chance = random.Random(f"{place}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arrays = made.shuffled(base, chance)
        made.write_base(folder / "base", config, arrays, FORMATS[framework], place[1])
        for number in range(orders):
            adapter, target = folder / f"adapter{number}", folder / "target"
            made.write_adapter(adapter, updates, dialect, chance)
            jobs.merge(str(folder / "base"), adapter, target, options=Options(check="none"))
            file = target / "model.safetensors"
            yield load_file(file), xxhash.xxh3_64_hexdigest(file.read_bytes())
            shutil.rmtree(target)


def passes(row: dict[str, Any]) -> bool:
    """Say whether ROW meets the bar."""
    whole = row["right"] == row["merges"] and row["different_tensors"] == 1
    return whole and row["different_files"] == row["bases_in_files"]
