"""The signature of a package, read without loading its weights."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from ....errors import UnsupportedError
from ...models.ports import role_of, signature_from_manifest
from ...models.signature import Port, Signature
from .features import Dimension, flexible
from .package import description, functions, manifest_in, read_package

LABELS: Final = ("stringType", "int64Type", "dictionaryType")  # what a classifier gives


def port_from_description(feature: Any) -> Port:
    """Return the port that a package's description describes; sizes that vary are named by bounds."""
    array = feature.type.multiArrayType
    shape: tuple[Dimension, ...] = flexible(array, tuple(int(size) for size in array.shape))
    kind = array.ArrayDataType.Name(array.dataType).lower() if array.dataType else "float32"
    dtype = {"double": "float64"}.get(kind, kind)
    upper = tuple(
        (size, int(size.rpartition("..")[2]))
        for size in shape
        if isinstance(size, str) and size.rpartition("..")[2].isdigit()
    )
    return Port(feature.name, dtype, shape, role_of(feature.name), upper)


def read_signature(path: Path, function: str | None = None) -> Signature:
    """Return the signature of the package at PATH: what its manifest says, or its description.

    Raises:
        BadInputError: not a package, or a damaged one.
        UnsupportedError: not an ML program, or pictures without a record of how they are normalised.
    """
    package = read_package(path)
    metadata = package.spec.description.metadata.userDefined
    stored = manifest_in(metadata, path).get("signature")
    if stored:
        return signature_from_manifest(stored, path)
    described = description(package, function or functions(package)[0])
    if images := [it.name for it in described.input if it.type.HasField("imageType")]:
        raise UnsupportedError(
            f"{path}: {', '.join(images)} takes pictures, and no record says what is done to them first;"
            " convert the model without an ImageType, or export it by `weighbridge export coreml --image`"
        )

    def ports_of(features: Iterable[Any]) -> tuple[Port, ...]:
        return tuple(port_from_description(feature) for feature in features)

    scores = [it for it in described.output if it.type.WhichOneof("Type") not in LABELS]
    if not scores and described.output:
        raise UnsupportedError(
            f"{path}: it gives class labels and no scores, which nothing can be compared with;"
            " convert the model without a ClassifierConfig"
        )
    return Signature(ports_of(described.input), ports_of(scores))
