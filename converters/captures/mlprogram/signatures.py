"""The signature of a package, read without loading its weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ....errors import UnsupportedError
from ...models.ports import role_of, signature_from_manifest
from ...models.signature import Port, Signature
from .features import Dimension, Feature, flexible
from .names import names_of
from .package import (
    Package,
    description,
    function_block,
    functions,
    manifest_in,
    read_package,
)
from .texts import Text, text_among, text_of

SHOWN: Final = 4  # states that are named
# What a classifier gives -> in words.
LABELS: Final[Mapping[str, str]] = {
    "stringType": "text",
    "int64Type": "int64",
    "dictionaryType": "number by label",
}
PICTURE: Final = " picture"  # ends what stands for a dtype of one


def port_from_description(feature: Any, made: tuple[Dimension, ...] = ()) -> Port:
    """Return the port that a package's description describes; sizes that vary are named by bounds.

    Its sizes are those MADE where the description has none, and the largest of those that are listed.
    """
    array = feature.type.multiArrayType
    listed = [tuple(map(int, it.shape)) for it in array.enumeratedShapes.shapes]
    shape: tuple[Dimension, ...] = max(listed, key=math.prod, default=())
    shape = shape or flexible(array, tuple(int(size) for size in array.shape)) or made
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
        UnsupportedError: not an ML program, or pictures without a record of how they are normalised, or
            states without one of how they are used.
    """
    package = read_package(path)
    metadata = package.spec.description.metadata.userDefined
    stored = manifest_in(metadata, path).get("signature")
    if stored:
        return signature_from_manifest(stored, path)
    chosen = function or functions(package)[0]
    described = description(package, chosen)
    if images := [it.name for it in described.input if it.type.HasField("imageType")]:
        raise UnsupportedError(
            f"{path}: {', '.join(images)} takes pictures, and no record says what is done to them first;"
            " convert the model without an ImageType, or export it by `weighbridge export coreml --image`"
        )

    made = _made(package, chosen)

    def ports_of(features: Iterable[Any]) -> tuple[Port, ...]:
        return tuple(port_from_description(it, made.get(it.name, ())) for it in features)

    scores = [it for it in described.output if it.type.WhichOneof("Type") not in LABELS]
    if not scores and described.output:
        raise UnsupportedError(
            f"{path}: it gives class labels and no scores, which nothing can be compared with;"
            " convert the model without a ClassifierConfig"
        )
    return _of_text(package, Signature(ports_of(described.input), ports_of(scores)))


def text_in(package: Package) -> Text | None:
    """Return how PACKAGE goes on with a text: what its record says, or what its states and inputs show.

    ``None`` where it keeps nothing, or that is not clear.
    """
    metadata = package.spec.description.metadata.userDefined
    if manifest := manifest_in(metadata, package.path):
        return text_of(manifest)
    main, *others = functions(package)
    found = text_among(taken(package, main)) if description(package, main).state else None
    if found is None:
        return None
    given = {name: taken(package, name) for name in others}
    single = (n for n, it in given.items() if found.ids in it and it[found.ids].shape == (1, 1))
    return found._replace(single=next(single, ""))


def _of_text(package: Package, taken_in: Signature) -> Signature:
    """Return what PACKAGE, with the ports TAKEN_IN, takes of texts, which are read row by row, if it keeps states.

    Raises:
        UnsupportedError: it keeps some, and how it goes on with a text is not clear.
    """
    states = [it.name for it in description(package, functions(package)[0]).state]
    if not states:
        return taken_in
    names, text = [it.name for it in taken_in.inputs], text_in(package)
    if text is None:
        raise UnsupportedError(
            f"{package.path}: it keeps states ({', '.join(states[:SHOWN])}), and no record says what to give it call"
            f" by call; its inputs ({', '.join(names)}) are not token ids of shape (1, tokens) and how many were"
            " read before, or a mask of four axes. Export it by `weighbridge export coreml --stateful`"
        )
    ids = next(it for it in taken_in.inputs if it.name == text.ids)
    rows = replace(ids, shape=("rows", *ids.shape[1:]), role="token_ids")
    return Signature((rows,), taken_in.outputs)


def ports(package: Package, side: str) -> Iterator[str]:
    """Yield the inputs or outputs of PACKAGE, as SIDE says, in words; the model's names of sizes beside them."""
    names = functions(package)
    known = shapes(package, side)
    for function in names:
        where = f"{function}: " if len(names) > 1 else ""
        for name, it in taken(package, function, side).items():
            sizes = sized(it.shape, known.get(name, ()))
            yield f"{where}{name}: {it.dtype} [{', '.join(map(str, sizes))}]"


def shapes(package: Package, side: str) -> dict[str, tuple[Dimension, ...]]:
    """Return the shapes that the model itself has on SIDE, by PACKAGE's names; none for others' packages."""
    manifest = manifest_in(package.spec.description.metadata.userDefined, package.path)
    if not manifest.get("signature"):
        return {}
    signature, names = (
        signature_from_manifest(manifest["signature"], package.path),
        names_of(manifest),
    )
    found = signature.inputs if side == "input" else signature.outputs
    return {names.get(it.name, it.name): it.shape for it in found}


def sized(allowed: tuple[Dimension, ...], named: tuple[Dimension, ...]) -> Iterator[Dimension]:
    """Yield the sizes that are ALLOWED with what they are NAMED.

    >>> [*sized((1, "1..32"), ("batch", "sequence"))], [*sized((1, "?"), ("batch", "time"))]
    ([1, 'sequence 1..32'], [1, 'time'])
    >>> [*sized((3, "8|16"), ()), *sized((3, "8|16"), (3, 16))]
    [3, '8|16', 3, '8|16']
    """
    names = named if len(named) == len(allowed) else (0,) * len(allowed)
    for size, name in zip(allowed, names, strict=True):
        named_only = f"{name} {size}".removesuffix(" ?")
        yield named_only if isinstance(size, str) and isinstance(name, str) else size


def taken(package: Package, function: str, side: str = "input") -> dict[str, Feature]:
    """Return the inputs or outputs of FUNCTION, as SIDE says; a picture has its kind as dtype."""
    found = {it.name: _feature(it.type) for it in getattr(description(package, function), side)}
    made = {} if all(it.shape for it in found.values()) else _made(package, function)
    return {
        name: it if it.shape else it._replace(shape=made.get(name, ()))
        for name, it in found.items()
    }


def _made(package: Package, function: str) -> dict[str, tuple[Dimension, ...]]:
    """Return the shape of what each operation of FUNCTION gives; ``?`` is a size that varies."""
    return {
        output.name: tuple(int(it.constant.size) or "?" for it in output.type.tensorType.dimensions)
        for operation in function_block(package, function).operations
        for output in operation.outputs
    }


def examples(package: Package) -> dict[str, Feature]:
    """Return the inputs of the function that PACKAGE runs by default, at their default sizes."""
    described = description(package, functions(package)[0])
    return {
        it.name: found._replace(shape=tuple(it.type.multiArrayType.shape) or found.shape)
        for it in described.input
        for found in [_feature(it.type)]
    }


def _feature(kind: Any) -> Feature:
    which = kind.WhichOneof("Type") or "unknown"
    if which == "imageType":
        image = kind.imageType
        color = image.ColorSpace.Name(image.colorSpace)
        return Feature(f"{color}{PICTURE}", (image.height, image.width))
    if which != "multiArrayType":
        return Feature(LABELS.get(which, which), ())
    array = kind.multiArrayType
    dtype = array.ArrayDataType.Name(array.dataType).lower()
    return Feature(dtype, flexible(array, tuple(int(size) for size in array.shape)))
