"""What ``weighbridge.json`` says of a conversion."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import BadInputError
from ..checkpoints import Header
from ..common.dtypes import NUMPY
from ..common.repositories import recorded
from ..maps import Execution, Plan, WeightMap
from ..models import MANIFEST, Model
from ..models.manifests import read_manifest


def facts_of(
    model: Model, plan: Plan, execution: Execution, to: str, table: WeightMap | None
) -> dict[str, Any]:
    """Return the facts of a conversion of MODEL to the framework TO.

    TABLE leads from torch to MLX whatever the direction; ``None`` where none is known, because the
    framework stays. A target in the same framework keeps what its source recorded of its origin.
    """
    stays = model.framework == to
    return {
        "weighbridge": __version__,
        "framework": to,
        "source": {
            **recorded(model.spec),
            "framework": model.framework,
            "tensors": (
                manifest_of(model).get("source", {}).get("tensors", {})
                if stays
                else {name: str(header) for name, header in model.checkpoint.headers.items()}
            ),
        },
        "map": str(table) if table else None,
        "sizes": dict(model.sizes) if stays else plan.sizes,
        "tensors": execution.hashes,
        "dropped": [item._asdict() for item in plan.dropped],
        "merged": {name: survival._asdict() for name, survival in execution.survival.items()},
    }


def write_manifest(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write ``weighbridge.json``."""
    (folder / MANIFEST).write_text(
        json.dumps(facts, indent=1, default=str) + "\n", encoding="utf-8"
    )


def manifest_of(model: Model) -> dict[str, Any]:
    """Return what the directory of MODEL says of its making, empty where it says nothing."""
    return read_manifest(model.folder / MANIFEST) if model.folder else {}


def recorded_headers(model: Model) -> dict[str, Header] | None:
    """Return the headers of the checkpoint that MODEL was made from; ``None`` if nobody says.

    Raises:
        BadInputError: the manifest is damaged.
    """
    recorded = manifest_of(model).get("source", {}).get("tensors")
    if not recorded:
        return None
    try:
        return {name: parse_header(text) for name, text in recorded.items()}
    except (AttributeError, ValueError) as error:
        raise BadInputError(
            f"{model.spec}: {MANIFEST} is damaged: source.tensors ({error})"
        ) from None


def parse_header(text: str) -> Header:
    """Return the header that prints as TEXT.

    >>> parse_header("BF16[2, 3]")
    Header(dtype='BF16', shape=(2, 3))

    Raises:
        ValueError: it prints as another text.
    """
    dtype, _, sizes = text.removesuffix("]").partition("[")
    header = Header(dtype, tuple(int(size) for size in sizes.split(",") if size))
    if dtype not in NUMPY or str(header) != text:
        raise ValueError(f"{text[:60]!r} is no dtype and shape")
    return header
