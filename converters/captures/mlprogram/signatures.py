"""The signature of a package, read without loading its weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ....errors import BadInputError
from ...models.signature import Port, Signature
from .features import Dimension, flexible
from .package import description, functions, manifest_in, read_package

# Roles of inputs and outputs by name, for packages that others made.
ROLES: Final[Mapping[str, str]] = {
    "attention_mask": "attention_mask",
    "input_ids": "token_ids",
    "last_hidden_state": "hidden",
    "position_ids": "positions",
    "token_type_ids": "token_types",
}


def port_from_manifest(port: Mapping[str, Any]) -> Port:
    """Return the port that a manifest describes."""
    upper = tuple((str(name), int(size)) for name, size in port["upper"])
    return Port(port["name"], port["dtype"], tuple(port["shape"]), port["role"], upper)


def _signature(stored: Any, path: Path) -> Signature:
    try:
        ports = (tuple(map(port_from_manifest, stored[side])) for side in ("inputs", "outputs"))
        return Signature(*ports)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"its record of inputs and outputs is damaged ({error!r})"
        raise BadInputError(f"{path}: {what}; export it again") from error


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
    return Port(feature.name, dtype, shape, ROLES.get(feature.name, "array"), upper)


def read_signature(path: Path, function: str | None = None) -> Signature:
    """Return the signature of the package at PATH: what its manifest says, or its description.

    Raises:
        BadInputError: not a package, or a damaged one.
        UnsupportedError: not an ML program.
    """
    package = read_package(path)
    metadata = package.spec.description.metadata.userDefined
    stored = manifest_in(metadata, path).get("signature")
    if stored:
        return _signature(stored, path)
    described = description(package, function or functions(package)[0])

    def ports_of(features: Iterable[Any]) -> tuple[Port, ...]:
        return tuple(port_from_description(feature) for feature in features)

    return Signature(ports_of(described.input), ports_of(described.output))
