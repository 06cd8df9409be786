"""A sweep: whole trainings over the product of some settings, each in a folder; what is done stays done."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...converters.documents import RECORD, read_object
from ...errors import BadInputError, DivergedError, WeighbridgeError

RESULT, CONFIG, TABLE = "result.json", "config.yaml", "sweep.json"
Train = Callable[[Path, list[str], bool], object]
Row = dict[str, Any]


def combinations(texts: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield setting -> value for the product of ``key=a,b,c`` TEXTS.

    A comma inside brackets divides nothing.

    Raises:
        BadInputError: a text is no such thing, or two are of one key.

    >>> list(combinations(["seed=0,1", "optimizer.betas=[0.9,0.95]"]))[0]
    {'seed': '0', 'optimizer.betas': '[0.9,0.95]'}
    """
    keys: dict[str, list[str]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key or not values or key in keys:
            raise BadInputError(f"--sweep {text}: write it as key=a,b,c, every key once")
        keys[key] = re.split(r",(?![^\[{]*[\]}])", values)
    for chosen in itertools.product(*keys.values()):
        yield dict(zip(keys, chosen, strict=True))


def sweep(folder: Path, settings: Sequence[Mapping[str, str]], train: Train) -> list[Row]:
    """Train every one of SETTINGS in a folder of its own below FOLDER, and return a row for each.

    A run that is done is not done again, one that was interrupted goes on, and one that fails is a row
    that says why.

    Args:
        folder: of the sweep; gets ``sweep.json`` after every run.
        settings: of each run, beside those of the recipe.
        train: called with a run's folder, its overrides and whether it is to be resumed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for chosen in settings:
        out = folder / folder_name(chosen)
        rows.append({"settings": dict(chosen)} | _one(out, chosen, train))
        (folder / TABLE).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return rows


def folder_name(chosen: Mapping[str, str]) -> str:
    """Return the folder of a run.

    >>> folder_name({"model_options.unit": "glu", "seed": "1"})
    'unit=glu,seed=1'
    """
    text = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in chosen.items())
    return re.sub(r"[^\w.,=+-]+", "_", text)


def _one(out: Path, chosen: Mapping[str, str], train: Train) -> Row:
    if not (out / RESULT).is_file():
        try:
            train(out, [f"{key}={it}" for key, it in chosen.items()], (out / CONFIG).is_file())
        except (DivergedError, WeighbridgeError) as error:
            return {"failed": str(error).partition("\n")[0]}
    done = read_object(out / RESULT, RECORD)
    metric = done["metric"]
    test = done["test"].get("after", {}).get(metric)
    figures = {"metric": metric, "before": done["before"][metric], "best": done["best"][metric]}
    return figures | {"test": test, "steps": done["steps"], "seconds": done["seconds"]}


def cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    """Yield ROWS as texts: settings, before, best, test, steps, seconds."""
    for row in rows:
        name = folder_name(row["settings"])
        if "failed" in row:
            yield [name, f"failed: {row['failed']}", "", "", "", ""]
        else:
            figures = (row[key] for key in ("before", "best", "test", "steps"))
            yield [name, *(_cell(it) for it in figures), f"{row['seconds']:.0f}"]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
