"""What is in a package, read from its messages alone: no framework is imported for it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from . import messages
from .names import ABOUT, CLASSIFY, UNITS_KEY
from .package import (
    Package,
    census,
    description,
    function_block,
    functions,
    operations,
    read_package,
)
from .signatures import PICTURE, ports, taken

# Versions of the specification -> the oldest systems that read them (coremltools 9, `AvailableTarget`).
SYSTEMS: Final[Mapping[int, str]] = {
    6: "iOS 15, macOS 12",
    7: "iOS 16, macOS 13",
    8: "iOS 17, macOS 14",
    9: "iOS 18, macOS 15",
    10: "iOS 26, macOS 26",
}
LARGEST: Final = 5  # tensors that are named
SHOWN: Final = 5  # labels that are
CONSTEXPR: Final = "constexpr_"
CODES: Final = ("data", "quantized_data", "nonzero_data")  # inputs that hold codes of a grid
TABLES: Final = ("indices", "indices_nonzero_data")


Place = tuple[str, int]  # a file, and where in it


class Part(NamedTuple):
    """A value that is written down in the program: its dtype, sizes, and where it lies in a file: its bytes."""

    dtype: str
    shape: tuple[int, ...]
    stored: Mapping[Place, int]


class Constant(NamedTuple):
    """A constant tensor as the program sees it.

    Attributes:
        name: of its variable.
        dtype: MIL's name, such as ``fp16``.
        shape: its sizes.
        how: how it is compressed; empty where it is not.
        stored: all that it is made of: where that begins in which file -> its bytes.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    how: str
    stored: Mapping[Place, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all that it is made of."""
        return sum(self.stored.values())


def described(path: Path) -> dict[str, Any]:
    """Return what the package at PATH holds, for a reader.

    Raises:
        BadInputError: not a package, or a damaged one.
        UnsupportedError: not an ML program.
    """
    package = read_package(path)
    version = package.spec.specificationVersion
    names = functions(package)
    every = (it for name in names for it in constants(package, name))
    found = [*{tuple(it.stored): it for it in every}.values()]  # functions share what lies in files
    files = [file for file in path.rglob("*") if file.is_file()]
    largest = sorted(found, key=lambda it: -it.nbytes)[:LARGEST]
    ways = Counter(it.how for it in found if it.how)
    return {
        "runs on": f"{SYSTEMS.get(version, 'systems unknown here')} and later (version {version})",
        "functions": list(names),
        "operations": {name: dict(census(package, name).most_common()) for name in names},
        "precisions": {name: dict(precisions(package, name)) for name in names},
        "pictures": [*pictures(package)],
        "labels": labels(package),
        "states": [f"{it.name}: {_port(it.type.stateType.arrayType)}" for it in states(package)],
        "constants": dict(_bytes_by_dtype(found)),
        "compressed": dict(ways),
        "largest": [f"{it.name}: {_words(it)}" for it in largest],
        "bytes": sum(file.stat().st_size for file in files),
        **about(package),
        "inputs": [*ports(package, "input")],
        "outputs": [*ports(package, "output")],
    }


def pictures(package: Package) -> Iterator[str]:
    """Yield the inputs of PACKAGE that are pictures, in words."""
    for name, it in taken(package, functions(package)[0]).items():
        if PICTURE in it.dtype:
            height, width = it.shape
            yield f"{name}: {it.dtype.removesuffix(PICTURE)} of {width} x {height}"


def about(package: Package) -> dict[str, Any]:
    """Return what PACKAGE says of itself to whoever opens it, and where it would run."""
    metadata = package.spec.description.metadata
    said = {name: text for name, key in ABOUT.items() if (text := getattr(metadata, key))}
    units = metadata.userDefined.get(UNITS_KEY)
    return ({"about": said} if said else {}) | ({"compute units": units} if units else {})


def labels(package: Package) -> str:
    """Return the class labels that PACKAGE gives, in words; empty where it gives none."""
    for operation in operations(function_block(package, functions(package)[0])):
        if operation.type == CLASSIFY:
            listed = operation.inputs["classes"].arguments[0].value.immediateValue.list.values
            found = [it.immediateValue.tensor.strings.values[:1] for it in listed]
            names = [name for row in found for name in row]
            more = ", ..." if len(names) > SHOWN else ""
            name = package.spec.description.predictedFeatureName
            return f"{name}: {len(listed)} ({', '.join(names[:SHOWN])}{more})"
    return ""


def states(package: Package) -> list[Any]:
    """Return the messages that describe what a package keeps between calls, its functions together."""
    found = [it for name in functions(package) for it in description(package, name).state]
    return [*{it.name: it for it in found}.values()]


def precisions(package: Package, function: str) -> Counter[str]:
    """Count the results of operations of FUNCTION by dtype, constants aside."""
    found = (
        _dtype(output.type.tensorType)
        for operation in operations(function_block(package, function))
        if operation.type != "const" and not operation.type.startswith(CONSTEXPR)
        for output in operation.outputs
    )
    return Counter(name for name in found if name.startswith("fp"))


def constants(package: Package, function: str) -> Iterator[Constant]:
    """Yield the constant tensors of FUNCTION, compressed ones as one."""
    known: dict[str, Any] = {}  # variable -> the operation that makes it
    parts: set[str] = set()  # variables that others are made of
    for operation in operations(function_block(package, function)):
        if operation.type == "const" or operation.type.startswith(CONSTEXPR):
            known |= {output.name: operation for output in operation.outputs}
            if operation.type != "const":
                parts |= set(_names(operation).values())
    for name, operation in known.items():
        kind = operation.outputs[-1].type.tensorType
        stored = _stored(operation, known)
        inside = any(output.name in parts for output in operation.outputs)
        if not inside and kind.rank and any(stored.values()):
            sizes = _sizes(kind)
            how = "" if operation.type == "const" else compression(operation, known)
            yield Constant(name, _dtype(kind), sizes, how, stored)


def compression(operation: Any, known: Mapping[str, Any]) -> str:
    """Return in words what OPERATION, which makes a constant, undoes; KNOWN are those by output."""
    kind, given = operation.type, _parts(operation)
    inner = (known[it] for it in dict.fromkeys(_names(operation).values()) if it in known)
    before = [compression(it, known) for it in inner if it.type.startswith(CONSTEXPR)]
    words = [*before]
    if kind == "constexpr_sparse_to_dense":
        words.append("sparse")
    elif "lut" in kind:
        size = 2 ** _bits(given, TABLES, _length_of_table(operation, known))
        inside = _names(operation).get("lut")  # where the table is made of codes itself
        words = [it for it in before if not inside]
        dtype = f" of {compression(known[inside], known).split()[0]}" if inside else ""
        words.append(f"table of {size}{dtype}")
    elif codes := next((given[it] for it in CODES if it in given), None):
        dtype = "scaled" if codes.dtype.startswith("fp") else codes.dtype
        words.append(f"{dtype}{_blocks(given, operation)}")
    return ", ".join(dict.fromkeys(words))


def _length_of_table(operation: Any, known: Mapping[str, Any]) -> int:
    """Return how many bits an index into the table of OPERATION has."""
    given, names = _parts(operation), _names(operation)
    if "lut" in given:
        shape = given["lut"].shape
    else:
        kind = known[names["lut"]].outputs[0].type.tensorType
        shape = _sizes(kind)
    entries = shape[-2] if len(shape) > 1 else shape[0]
    return int(math.log2(entries)) if entries > 1 else 1


def _bits(given: Mapping[str, Part], names: tuple[str, ...], otherwise: int) -> int:
    """Return the bits of the codes called NAMES; packed ones do not say them."""
    dtype = next((given[it].dtype for it in names if it in given), "")
    bits = re.fullmatch(r"uint([12346])", dtype)
    return int(bits[1]) if bits else otherwise


def _blocks(given: Mapping[str, Part], operation: Any) -> str:
    """Return in words over how many numbers a scale goes."""
    scale, whole = given.get("scale"), _sizes(operation.outputs[0].type.tensorType)
    if scale is None or math.prod(scale.shape) == 1:
        return " per tensor"
    if len(scale.shape) != len(whole):
        return " per channel"
    sizes = [size // n for size, n in zip(whole, scale.shape, strict=True) if n not in (1, size)]
    return f" in blocks of {sizes[0]}" if sizes else " per channel"


def _values(operation: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values written down in OPERATION; those of iOS 16 are attributes."""
    yield from ((name, it) for name, it in operation.attributes.items() if name != "name")
    for name, argument in operation.inputs.items():
        yield from ((name, it.value) for it in argument.arguments if it.HasField("value"))


def _parts(operation: Any) -> dict[str, Part]:
    return {name: _part(value) for name, value in _values(operation)}


def _part(value: Any) -> Part:
    kind = value.type.tensorType
    sizes = _sizes(kind)
    bits = int(next(iter(re.findall(r"\d+", _dtype(kind))), 8))
    file = value.blobFileValue if value.HasField("blobFileValue") else None
    stored = {(file.fileName, file.offset): -(-math.prod(sizes) * bits // 8)} if file else {}
    return Part(_dtype(kind), sizes, stored)


def _names(operation: Any) -> dict[str, str]:
    """Return the variables that OPERATION reads, by the name of its input."""
    return {
        name: it.name for name, them in operation.inputs.items() for it in them.arguments if it.name
    }


def _stored(operation: Any, known: Mapping[str, Any]) -> dict[Place, int]:
    """Return where all that OPERATION is made of lies -> its bytes."""
    own = {place: n for it in _parts(operation).values() for place, n in it.stored.items()}
    for name in _names(operation).values():
        own |= _stored(known[name], known) if name in known else {}
    return own


def _sizes(kind: Any) -> tuple[int, ...]:
    return tuple(int(it.constant.size) for it in kind.dimensions)


def _dtype(kind: Any) -> str:
    name = messages.MIL_pb2.DataType.Name(kind.dataType).lower()
    return str(name).replace("float", "fp")


def _port(array: Any) -> str:
    return f"{array.ArrayDataType.Name(array.dataType).lower()} {list(array.shape)}"


def _words(it: Constant) -> str:
    how = f", {it.how}" if it.how else ""
    return f"{it.dtype} {list(it.shape)}, {it.nbytes:,} bytes{how}"


def _bytes_by_dtype(found: list[Constant]) -> Counter[str]:
    """Return the bytes of constants by dtype as the program sees them."""
    total: Counter[str] = Counter()
    for it in found:
        total[f"{it.dtype} (compressed)" if it.how else it.dtype] += it.nbytes
    return total
