"""A package written to disk, alike in every run."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ..captures.mlprogram.package import Package
from ..documents import read_object
from .options import ABOUT, UNITS, UNITS_KEY, PackageOptions


def write_metadata(
    package: Package, metadata: Mapping[str, str], options: PackageOptions = PackageOptions()
) -> None:
    """Add METADATA, and what OPTIONS say of the package, to its specification, in place."""
    file = package.weights.parent / "model.mlmodel"
    described = package.spec.description.metadata
    described.userDefined.update(metadata)
    if options.units:
        described.userDefined[UNITS_KEY] = UNITS[options.units]
    for name, text in options.about.items():
        setattr(described, ABOUT[name], text)
    file.write_bytes(package.spec.SerializeToString(deterministic=True))


def files(folder: Path) -> Iterator[Path]:
    """Yield the files below FOLDER."""
    return (path for path in folder.rglob("*") if path.is_file())


def save(model: Any, package: Path) -> None:
    """Write coremltools' MODEL as PACKAGE, alike in every run."""
    # Without its program no debug handles of another runtime are written, which loops have none of.
    with patch.object(model, "_mil_program", None):
        model.save(str(package))
    name_items(package)


def replace_package(package: Path, other: Path) -> None:
    """Put the package OTHER in the place of PACKAGE."""
    shutil.rmtree(package)
    shutil.move(other, package)


def name_items(package: Path) -> None:
    """Give the items of PACKAGE identifiers that follow from their paths; coremltools draws lots."""
    place = package / "Manifest.json"
    facts = read_object(place)
    items = facts["itemInfoEntries"]
    names = {
        drawn: str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])) for drawn, item in items.items()
    }
    entries = sorted((names[drawn], item) for drawn, item in items.items())
    root = names[facts["rootModelIdentifier"]]
    facts |= {"itemInfoEntries": dict(entries), "rootModelIdentifier": root}
    place.write_text(json.dumps(facts, indent=4) + "\n", encoding="utf-8")
