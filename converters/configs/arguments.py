"""What a class of an MLX library makes of a config: its arguments, and which of them its code reads."""

from __future__ import annotations

import ast
import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..libraries import Target
from ..libraries.floats import decoded
from ..libraries.repairs.catalogue import declared
from .readers import Reader, place, readers
from .rows import CORRECTED, GENERIC, SPECIFIC
from .source import Source

# What architectures share: attributes that these files read are their own, not a config's.
SHARED: Final = frozenset(("base", "cache", "switch_layers", "activations"))


class Arguments(NamedTuple):
    """The object that a class of a library, or a part of one, reads its settings from.

    Attributes:
        reader: the dataclass and the part of the config that it reads.
        values: its fields by name, after what the class itself derives.
        read: the fields that code of the class reads.
    """

    reader: Reader
    values: Mapping[str, Any]
    read: frozenset[str]


def arguments(target: Target, config: Mapping[str, Any]) -> Iterator[Arguments]:
    """Yield what TARGET makes of CONFIG, part by part; parts without a dataclass are left out."""
    own = decoded(dict(config))
    for reader in readers(target, own):
        part = place(own, reader.part)
        if reader.dataclass is not None and reader.fields:
            read_from = getattr(reader.dataclass, "from_dict", None)
            made = read_from(dict(part)) if read_from else reader.dataclass(**part)
            values = {name: getattr(made, name, None) for name in reader.fields}
            read = attributes(target.module) | declared(
                target.library, target.model_type, target.repaired
            )
            yield Arguments(reader, values, frozenset(read & values.keys()))


@cache
def attributes(module: str) -> frozenset[str]:
    """Return the names of all attributes that code of the MODULE and of its neighbours reads.

    >>> "rms_norm_eps" in attributes("mlx_lm.models.llama")
    True
    """
    return frozenset().union(*(attributes_in(path) for path in sorted(files(module))))


def files(module: str, seen: frozenset[Path] = frozenset()) -> frozenset[Path]:
    """Return the file of MODULE, a file or a folder, and those of the neighbours that it imports."""
    from ..libraries.packages import module as import_module

    path = Path(inspect.getfile(import_module(module)))
    found = seen | {path}
    above = module if path.stem == "__init__" else module.rpartition(".")[0]
    for name in re.findall(r"^from \.(\w+) import|^from \. import (\w+)", path.read_text(), re.M):
        [neighbour] = filter(None, name)
        there = path.with_name(f"{neighbour}.py")
        if neighbour not in SHARED and there.is_file() and there not in found:
            found |= files(f"{above}.{neighbour}", found)
    return found


def attributes_in(path: Path) -> set[str]:
    """Return the names of all attributes that the Python file PATH reads."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


class Traced(Source):
    """A source that remembers which of its keys were asked for."""

    def find(self, key: str) -> Any:
        """Return the value of KEY, and remember it."""
        self.__dict__.setdefault("asked", set()).add(key)
        return super().find(key)


def keys_behind(field: str, reader: Reader, source: Source) -> set[str]:
    """Return the keys of SOURCE that the FIELD of a class's arguments is made from."""
    traced = Traced(source.written, source.known)
    tables = [table.get(name, {}) for table in (CORRECTED, SPECIFIC) for name in reader.names]
    row = next((table[field] for table in [*tables, GENERIC] if field in table), None)
    if row is None:
        return {field}
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a value is missing
        row(traced)
    return {field, *traced.__dict__.get("asked", ())}
