"""The splits of a run by the kind of its data: one reader a kind, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ...converters.models.factories import call_named
from ...errors import BadInputError
from ..configuration.data import CustomData, Data
from .batches import Dataset, leaked
from .context import Context, Share
from .given import Given
from .indicators.reading import read_split as read_bars
from .labelled import read_split as read_labelled
from .pairs import read_split as read_pairs
from .preferences import read_split as read_preferences
from .rows.guessing import inside
from .series import read_split as read_series
from .text import read_split as read_text

SPLITS: Final = ("train", "validation", "test")

Read = Callable[[Any, Path, Context], Dataset]
READERS: Final[Mapping[str, Read]] = {
    "bars": read_bars,
    "labelled": read_labelled,
    "pairs": read_pairs,
    "preferences": read_preferences,
    "series": read_series,
    "text": read_text,
}


def read_splits(data: Data, context: Context) -> dict[str, Dataset]:
    """Return the splits of DATA by name; ``test`` may be missing.

    Raises:
        WeighbridgeError: a file cannot be read, or its content is not what its kind says.
    """
    if isinstance(data, CustomData):
        return dict(_given(data, context))
    read = READERS[data.kind]
    splits: dict[str, Dataset] = {}
    for name, (path, share) in _found(data).items():
        if not path.exists():
            raise BadInputError(f"{path}: there is no such file; --set data.{name}=FILE")
        splits[name] = read(data, path, replace(context, share=share, train=splits.get("train")))
    return splits


def _found(data: Any) -> dict[str, tuple[Path, Share | None]]:
    """Return the file of every split, and which of its rows are meant."""
    named = {name: getattr(data, name) for name in SPLITS}
    within = inside(data.train)
    named["train"] = within.get("train", data.train)
    found: dict[str, tuple[Path, Share | None]] = {
        name: (path, None) for name, path in named.items() if isinstance(path, Path)
    }
    if isinstance(share := named["validation"], float):
        drawn = {name: Share(share, data.seed, name != "train") for name in SPLITS[:2]}
        found |= {name: (named["train"], it) for name, it in drawn.items()}
    return found


def _given(data: CustomData, context: Context) -> Any:
    """Yield the splits of a user's class: those with a file, or train and validation.

    Raises:
        BadInputError: some have files, and train or validation has none; or one is empty.
    """
    paths = {name: getattr(data, name) for name in SPLITS}
    named = {name: path for name, path in paths.items() if path}
    if lacking := [f"data.{name}" for name in SPLITS[:2] if named and name not in named]:
        raise BadInputError(
            f"{' and '.join(lacking)} is missing: other splits of {data.kind} have files"
        )
    for name in named or SPLITS[:2]:
        options = data.options | ({"path": named[name]} if named else {})
        rows = call_named(data.kind, split=name, **options)
        dataset = Given(rows, data.kind, context.orders)
        if not len(dataset):
            raise BadInputError(f"{data.kind} has no example in its split {name}")
        yield name, dataset


def leaks(splits: Mapping[str, Dataset]) -> dict[str, int]:
    """Return how many examples of every other split have a key that training sees too."""
    return {name: leaked(splits["train"], it) for name, it in splits.items() if name != "train"}
