"""Padding: tokens of batches over real tokens, where padded lengths are chosen from the data.

    python benchmarks/padding.py

Texts of this Python's standard library, coded by the tokenizer of the recipe `docstrings`: its docstrings with
their functions as pairs, both alone, functions packed, and its source in paragraphs. The batches are those of an
epoch; ``meet again`` is the share of the examples beside one that are beside it in the next epoch too. ``least`` is
what batches of alike examples have, each padded to its longest: with one text an example, what no choice of lengths
goes below; pairs are divided better than that. Writes ``results/padding.json``.
"""

from __future__ import annotations

import argparse
import json
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from weighbridge.converters.values import Array
from weighbridge.tests.support.side_by_side import machine
from weighbridge.trainers import bundled
from weighbridge.trainers.config import load_config, validate
from weighbridge.trainers.data.batches import Dataset, Order
from weighbridge.trainers.data.context import Context
from weighbridge.trainers.data.pairs import Pairs
from weighbridge.trainers.data.reading import read_splits
from weighbridge.trainers.data.stdlib_pairs import extract_pairs
from weighbridge.trainers.data.tokens.alike import alike

RESULT = Path(__file__).parent / "results" / "padding.json"
POSITIONS = 512
SIZES = (16, 64)
BAR = 1.15
TOKENS = 12288  # at most, of batches of pairs that are limited by them


def datasets(folder: Path) -> Iterable[tuple[str, Dataset]]:
    """Yield every dataset by its name."""
    recipe = load_config("docstrings")
    bundled.provide(recipe.sources())
    context = Context(Path(recipe.model), positions=POSITIONS)
    pairs = extract_pairs()
    files = {
        "pairs": [{"query": it.query, "document": it.document} for it in pairs],
        "functions": [{"text": it.document} for it in pairs],
        "docstrings": [{"text": it.query} for it in pairs],
        "source": [{"text": text} for text in paragraphs()],
    }
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in (*files, "functions packed"):
        kind = "pairs" if name == "pairs" else "text"
        path = str(folder / f"{name.partition(' ')[0]}.jsonl")
        section = {"kind": kind, "train": path, "validation": path}
        section |= {"pack": True} if name.endswith("packed") else {}
        config = validate({"model": "m", "data": section, "objective": "contrastive"})
        yield name, read_splits(config.data, context)["train"]


def paragraphs() -> Iterable[str]:
    """Yield what stands between empty lines in the modules of the standard library."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield from (text for text in path.read_text(encoding="utf-8").split("\n\n") if text.strip())


def least(lengths: Array, size: int) -> float:
    """Return padded over real tokens of batches of SIZE alike examples, of LENGTHS (examples, fields)."""
    rows = alike(np.arange(len(lengths) // size * size), lengths, size)
    whole = lengths[rows].reshape(-1, size, lengths.shape[1])
    return round(float(whole.max(1).sum() * size / whole.sum()), 4)


def padding(
    dataset: Dataset, size: int, *, grouped: bool, most: int | None = None
) -> dict[str, float]:
    """Return padded over real tokens in an epoch of batches of SIZE and MOST tokens, and how many shapes they have."""
    order = Order(dataset, size, 0, group_by_length=grouped, most_tokens=most)
    padded, real, shapes = 0, 0, set()
    position = 0
    while order.epoch(position) == 0:
        batch = dataset.batch(order[position])
        ids = [array for name, array in batch.inputs.items() if name.endswith("ids")]
        padded += sum(array.size for array in ids)
        real += batch.tokens
        shapes.add(tuple(array.shape for array in ids))
        position += 1
    found = {"padding": round(padded / real, 4), "shapes": len(shapes), "batches": position}
    return found | {"meet again": meet_again(order, position)}


def meet_again(order: Order, batches: int) -> float:
    """Return the share of the examples beside one in ORDER that are beside it in the next epoch too, of BATCHES."""
    first = {row: number for number in range(batches) for row in order[number]}
    again, pairs = 0, 0
    for position in range(batches, 2 * batches):
        beside = Counter(first[row] for row in order[position] if row in first)
        again += sum(count * (count - 1) for count in beside.values())
        pairs += len(order[position]) * (len(order[position]) - 1)
    return round(again / pairs, 3)


def main() -> None:
    """Measure every dataset and print one line for each."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, dataset in datasets(Path(folder)):
            lengths = [dataset.length(row) for row in range(len(dataset))]
            fields = dataset.ids.values() if isinstance(dataset, Pairs) else [map(range, lengths)]
            each = np.array([[*map(len, texts)] for texts in fields]).T
            about = {"data": name, "examples": len(dataset)}
            about |= {"tokens": [int(np.quantile(lengths, part)) for part in (0, 0.5, 1)]}
            for size in SIZES:
                found = padding(dataset, size, grouped=True)
                shuffled = padding(dataset, size, grouped=False)
                found |= {"least": least(each, size), "not grouped": shuffled["padding"]}
                found |= {"meet again, not grouped": shuffled["meet again"]}
                rows.append(about | {"batch": size, **found})
                print(rows[-1])
                if name == "pairs" and size == SIZES[-1]:
                    found = padding(dataset, size, grouped=True, most=TOKENS)
                    rows.append(about | {"batch": size, "tokens at most": TOKENS, **found})
                    print(rows[-1])
    worst = max(row["padding"] for row in rows)
    print(f"largest {worst}, bar {BAR}: {'reached' if worst <= BAR else 'MISSED'}")
    result = {"machine": machine(), "bar": BAR, "largest": worst, "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
