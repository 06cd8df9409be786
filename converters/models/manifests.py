"""``weighbridge.json``: the fields that are read again, and what each may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ..documents import RECORD
from ..documents.fields import TEXT, Field, either, listing, mapping, read_fields, record, whole

MANIFEST: Final = "weighbridge.json"
DAMAGED: Final = RECORD._replace(todo="it is damaged, convert the model again")
FRAMEWORKS: Final = ("torch", "mlx", "mlprogram", "onnx", "coreai")
PAIR: Final = Field("two values", lambda value: isinstance(value, list) and len(value) == 2)

FIELDS: Final[Mapping[str, Field]] = {
    "framework": Field(
        f"one of {', '.join(FRAMEWORKS)}",
        lambda value: isinstance(value, str) and value in FRAMEWORKS,
    ),
    "source": record({"spec": TEXT, "framework": TEXT, "tensors": mapping(TEXT)}),
    **dict.fromkeys(("map", "layout_check"), TEXT),
    "sizes": mapping(whole(2**31 - 1)),
    **dict.fromkeys(("tensors", "dropped_hashes"), mapping(TEXT)),
    **dict.fromkeys(("dropped", "sidecar"), listing(either(TEXT, mapping()))),
    **dict.fromkeys(("library", "quantization"), mapping()),
    "config": record({"added": mapping(), "changed": mapping(PAIR), "removed": mapping()}),
}


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest in PATH without what is null in it, empty where there is none.

    Raises:
        BadInputError: it is damaged; tells every field that is of another type.
    """
    manifest = read_fields(path, FIELDS, DAMAGED)
    return {key: value for key, value in manifest.items() if value is not None}
