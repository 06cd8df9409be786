"""Where the examples of a run are, and what they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt, Tag

from .section import CUSTOM, Section, chosen_by

Buckets = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


class Files(Section):
    """The splits of the data."""

    train: Path
    validation: Path
    test: Path | None = None


class Lengths(Section):
    """Padded lengths in tokens: a batch takes the smallest that fits, longer texts are cut."""

    query: Buckets = (24,)
    document: Buckets = (48,)


class PairsData(Files):
    """Texts that belong together: JSON lines with ``query`` and ``document``."""

    kind: Literal["pairs"]
    lengths: Lengths = Lengths()


class SeriesData(Files):
    """Arrays in ``.npz`` files, one row an example; COLUMNS gives the objective's inputs their names there."""

    kind: Literal["series"]
    columns: dict[str, str] = Field({"series": "series", "target": "target"})


class CustomData(Section):
    """A class of the user's, ``module:Class``, called with a split's name and OPTIONS.

    It has ``__len__`` and ``batch(rows)``, which returns the arrays of the objective by name; see
    :class:`~weighbridge.trainers.data.batches.Dataset` for what else it may have.
    """

    kind: Annotated[str, Field(pattern=":")]
    train: Path | None = None
    validation: Path | None = None
    test: Path | None = None
    options: dict[str, Any] = Field({})


Data = Annotated[
    Annotated[PairsData, Tag("pairs")]
    | Annotated[SeriesData, Tag("series")]
    | Annotated[CustomData, Tag(CUSTOM)],
    chosen_by("kind"),
]
