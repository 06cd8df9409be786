"""The splits of a run by the kind of its data: one reader a kind, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ...converters.models.factories import call_named
from ...errors import BadInputError
from ..configuration.data import CustomData, Data
from .batches import Dataset, leaked
from .context import Context
from .given import Given
from .pairs import read_split as read_pairs
from .series import read_split as read_series

SPLITS: Final = ("train", "validation", "test")


Read = Callable[[Any, Path, Context], Dataset]
READERS: Final[Mapping[str, Read]] = {"pairs": read_pairs, "series": read_series}


def read_splits(data: Data, context: Context) -> dict[str, Dataset]:
    """Return the splits of DATA by name; ``test`` may be missing.

    Raises:
        WeighbridgeError: a file cannot be read, or its content is not what its kind says.
    """
    if isinstance(data, CustomData):
        return dict(_given(data))
    read = READERS[data.kind]
    paths = {name: getattr(data, name) for name in SPLITS}
    return {name: read(data, path, context) for name, path in paths.items() if path}


def _given(data: CustomData) -> Any:
    """Yield the splits of a user's class: those with a file, or train and validation."""
    paths = {name: getattr(data, name) for name in SPLITS}
    named = {name: path for name, path in paths.items() if path}
    for name in named or SPLITS[:2]:
        options = data.options | ({"path": named[name]} if named else {})
        dataset = Given(call_named(data.kind, split=name, **options), data.kind)
        if not len(dataset):
            raise BadInputError(f"{data.kind} has no example in its split {name}")
        yield name, dataset


def leaks(splits: Mapping[str, Dataset]) -> dict[str, int]:
    """Return how many examples of every other split have a key that training sees too."""
    return {name: leaked(splits["train"], it) for name, it in splits.items() if name != "train"}
