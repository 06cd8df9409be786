"""An ``.mlpackage`` on disk: found, parsed and validated before anything is run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ....errors import BadInputError, UnsupportedError
from ...documents import INDEX, RECORD, parse_object, read_object
from . import messages
from .claims import check_blobs, check_functions, check_sizes

MANIFEST: Final = "weighbridge"  # our key in the user-defined metadata
ITEM: Final = ("path", "name", "author", "description")  # of an item in a package's own manifest


class Package(NamedTuple):
    """A parsed package: its specification (a protobuf message) and its folder of weights."""

    path: Path
    spec: Any
    weights: Path


def specification_path(path: Path) -> Path:
    """Return the path of the specification that a package's manifest names."""
    if not path.exists():
        raise BadInputError(f"{path}: no such package")
    try:
        manifest = read_object(path / "Manifest.json", INDEX)
        _check_manifest(manifest)
        entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
        file = (path / "Data" / str(entry["path"])).resolve()
        if file.is_relative_to(path.resolve()):
            return file
        problem = f"its specification lies outside, at {entry['path']}"
    except NotADirectoryError:
        problem = "it is a file"
    except FileNotFoundError:
        problem = "it has no Manifest.json"
    except (KeyError, TypeError, ValueError) as error:
        problem = f"its Manifest.json is damaged ({type(error).__name__}: {error})"
    raise BadInputError(f"{path}: not an .mlpackage, {problem}")


def _check_manifest(manifest: Mapping[str, Any]) -> None:
    """Refuse what Core ML's own reader of packages refuses, too.

    Raises:
        ValueError: the version is none, or an item does not say what it is.
    """
    if not re.fullmatch(r"\d{1,9}\.\d{1,9}\.\d{1,9}", str(manifest["fileFormatVersion"])):
        raise ValueError("fileFormatVersion is no version")
    for name, item in dict(manifest["itemInfoEntries"]).items():
        if not all(isinstance(item[key], str) for key in ITEM):
            raise ValueError(f"item {name} has a {' or a '.join(ITEM)} that is no text")


def manifest_in(metadata: Mapping[str, str], path: Path) -> dict[str, Any]:
    """Return what Weighbridge wrote into the METADATA of the package at PATH, empty for others.

    Raises:
        BadInputError: it is damaged.
    """
    return parse_object(metadata.get(MANIFEST, "{}"), f"{path}: its record of the export", RECORD)


def read_package(path: Path) -> Package:
    """Parse the package at PATH and check that all weights it names are there.

    Raises:
        BadInputError: not a package, or a damaged one.
        UnsupportedError: a model of another kind than an ML program.
    """
    file = specification_path(path)
    spec = messages.Model_pb2.Model()
    try:
        spec.ParseFromString(file.read_bytes())
    except OSError:
        raise BadInputError(f"{path}: {file.name} is missing; copy the package again") from None
    except Exception:
        raise BadInputError(f"{path}: {file.name} is damaged; copy the package again") from None
    kind = spec.WhichOneof("Type")
    if kind is None:
        raise BadInputError(f"{path}: {file.name} is empty; copy the package again")
    if kind != "mlProgram":
        raise UnsupportedError(
            f"{path}: only ML programs are read, this is a {kind};"
            " convert it again with convert_to='mlprogram'"
        )
    check_functions(path, spec)
    package = Package(path, spec, file.parent / "weights")
    found = [op for name in functions(package) for op in operations(function_block(package, name))]
    check_sizes(path, found)
    check_blobs(path, package.weights, [value for op in found for value in values(op)])
    check_items(path, package.weights)
    return package


def check_items(path: Path, weights: Path) -> None:
    """Refuse a package whose manifest names an item that is not in it, as Core ML does, or not its WEIGHTS.

    Raises:
        BadInputError: names the first one.
    """
    items = read_object(path / "Manifest.json", INDEX)["itemInfoEntries"].values()
    places = [path / "Data" / item["path"] for item in items]
    for place, item in zip(places, items, strict=True):
        if not place.exists():
            raise BadInputError(f"{path}: {item['path']} is missing; copy the package again")
    if weights.exists() and weights not in [place.resolve() for place in places]:
        raise BadInputError(f"{path}: Manifest.json does not name its weights; copy it again")


def functions(package: Package) -> tuple[str, ...]:
    """Return the names of the package's functions, the default one first."""
    default = package.spec.description.defaultFunctionName or "main"
    return tuple(sorted(package.spec.mlProgram.functions, key=lambda name: (name != default, name)))


def function_block(package: Package, function: str) -> Any:
    """Return the block (a protobuf message) that FUNCTION runs."""
    message = package.spec.mlProgram.functions[function]
    return message.block_specializations[message.opset]


def description(package: Package, function: str) -> Any:
    """Return the message that describes inputs and outputs of FUNCTION."""
    whole = package.spec.description
    return next((part for part in whole.functions if part.name == function), whole)


def operations(block: Any) -> Iterator[Any]:
    """Yield all operations of BLOCK, those of nested blocks included."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from operations(inner)


def values(operation: Any) -> Iterator[Any]:
    """Yield all literal values of OPERATION."""
    yield from operation.attributes.values()
    for argument in operation.inputs.values():
        yield from (binding.value for binding in argument.arguments if binding.HasField("value"))


def census(package: Package, function: str) -> Counter[str]:
    """Count the operations of FUNCTION by type, constants aside."""
    found = (op.type for op in operations(function_block(package, function)))
    return Counter(kind for kind in found if kind != "const")
