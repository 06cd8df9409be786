"""Write the two files of an adapter, and bring updates to one rank and scale."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoints import Header, Writer
from ..common.dtypes import CODE
from ..values import Array, LowRank, with_scale
from .config import CONFIG

T = TypeVar("T", bound=Hashable)


def write_files(
    folder: Path,
    file: str,
    arrays: Mapping[str, Array],
    config: Mapping[str, Any],
    metadata: Mapping[str, str],
) -> None:
    """Write ARRAYS to FILE in FOLDER, and CONFIG beside it; both appear when both are whole.

    Tensors are written in the order of their names, so that the bytes depend on nothing else.
    """
    ordered = dict(sorted(arrays.items()))
    layout = {name: Header(CODE[array.dtype], array.shape) for name, array in ordered.items()}
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / ".new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    writer = Writer(fresh, layout, metadata=dict(metadata), stem=Path(file).stem)
    for name, array in ordered.items():
        writer.write(name, array)
    writer.close()
    text = json.dumps(config, indent=4, sort_keys=True)
    (fresh / CONFIG).write_text(text + "\n", encoding="utf-8")
    for name in (file, CONFIG):
        (fresh / name).replace(folder / name)
    fresh.rmdir()


def uniform(updates: Mapping[str, LowRank]) -> dict[str, LowRank]:
    """Return UPDATES with one rank and one scale: the largest rank, and the most frequent scale.

    Smaller ranks are padded with zeros, which is exact. Where scales differ, the ratio is
    multiplied into ``b``, exactly if it is a power of two, else rounded once to float32.
    """
    rank = max(update.rank for update in updates.values())
    scale = commonest(update.scale for update in updates.values())
    return {name: with_scale(update.padded(rank), scale) for name, update in updates.items()}


def commonest(values: Iterable[T]) -> T:
    """Return the value that VALUES have most often, of several the first.

    >>> commonest([1, 2, 2, 3, 3])
    2
    """
    return Counter(values).most_common(1)[0][0]
