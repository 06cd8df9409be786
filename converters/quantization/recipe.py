"""Which module of a model is quantized how: the ``quantization`` of MLX's ``config.json``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...errors import BadInputError, UnsupportedError
from ..checkpoints import Header
from .scheme import OFFERED, Scheme

KEY: Final = "quantization"
COPY: Final = "quantization_config"  # mlx-lm writes the same under the Hub's name too
TYPES: Final = (
    ("bits", int, "a number"),
    ("group_size", int, "a number"),
    ("mode", str, "a string"),
)


@dataclass(frozen=True)
class Recipe:
    """How the modules of a model are quantized.

    Attributes:
        section: as ``config.json`` has it: a default, and by module path what differs from it
            (settings; ``true`` for the default, ``false`` for a dense module).
        default: the scheme of a module that is not named.
        named: by module path, ``None`` for a dense one.
    """

    section: Mapping[str, Any]
    default: Scheme
    named: Mapping[str, Scheme | None]

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> Recipe | None:
        """Return the recipe in CONFIG, a model's ``config.json``; ``None`` where it has none.

        Raises:
            BadInputError: it is not what MLX writes.
            UnsupportedError: MLX has no such scheme.

        >>> recipe = Recipe.parse({"quantization": {"bits": 4, "group_size": 64, "head": False}})
        >>> str(recipe.default), recipe.named
        ('4-bit affine, groups of 64', {'head': None})
        """
        section, copied = config.get(KEY), _copied(config)
        if section and copied and section != copied:
            raise BadInputError(f"config.json: {KEY} and {COPY} differ; keep the one that is true")
        section = section or copied
        if section is None:
            return None
        if not isinstance(section, Mapping):
            raise BadInputError(f"config.json: {KEY} is {section!r}, expected an object")
        return cls.of(section)

    @classmethod
    def of(cls, section: Mapping[str, Any]) -> Recipe:
        """Return the recipe that SECTION of ``config.json`` is.

        Raises:
            BadInputError: it is not what MLX writes.
            UnsupportedError: MLX has no such scheme.
        """
        default = _scheme(KEY, section)
        entries = {path: it for path, it in section.items() if isinstance(it, Mapping | bool)}
        named = {
            path: (default if it else None) if isinstance(it, bool) else _scheme(path, it)
            for path, it in entries.items()
        }
        return cls(section, default, named)

    def changed(self, changes: Mapping[str, Scheme | None]) -> Recipe:
        """Return the recipe with other schemes for some module paths; ``None`` is a dense module.

        What needs no word, because it is the default, is not named.
        """
        section = {k: v for k, v in self.section.items() if k not in changes}
        for path, scheme in changes.items():
            if scheme != self.default:
                section[path] = scheme.record if scheme else False
        return Recipe.of(section)

    def recorded(self) -> dict[str, Any]:
        """Return the section as ``config.json`` has it, for a file of our own."""
        return dict(self.section)

    def applied_to(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return CONFIG with this recipe in it, under both names as mlx-lm writes it."""
        return {**config, KEY: self.recorded(), COPY: self.recorded()}

    def scheme_of(
        self, path: str, weight: Header, scales: Header, columns: int | None = None
    ) -> Scheme:
        """Return the scheme of the module PATH, whose tensors have the headers WEIGHT and SCALES.

        What the config names is believed and checked. A module that it does not name is read from
        its shapes, as mlx-lm does; these only tell bits times group size, so that of several
        schemes the one of the default's group size is taken, or else of its bits, unless COLUMNS
        of the dense weight say which.

        Raises:
            BadInputError: nothing fits the shapes, or several schemes do equally well.
        """
        fitting = list(_fitting(weight, scales, columns))
        if path in self.named:
            scheme = self.named[path]
            if scheme is None or scheme not in fitting:
                says = f"{scheme}" if scheme else "false, a dense module"
                raise BadInputError(
                    f"{path}: config.json says {says}; stored is {weight}, {scales}"
                )
            return scheme
        for alike in (self._same_group, self._same_bits, lambda _: True):
            found = [scheme for scheme in fitting if alike(scheme)]
            if len(found) == 1:
                return found[0]
        what = f"fits {' and '.join(map(str, fitting))}" if fitting else "fits no scheme of MLX"
        raise BadInputError(f"{path}: {weight} with scales {scales} {what}; name it in config.json")

    def _same_group(self, scheme: Scheme) -> bool:
        return scheme.group_size == self.default.group_size

    def _same_bits(self, scheme: Scheme) -> bool:
        return scheme.bits == self.default.bits


def _copied(config: Mapping[str, Any]) -> Any:
    """Return mlx-lm's copy of its section; other libraries name a method under the same key."""
    section = config.get(COPY)
    ours = isinstance(section, Mapping) and "quant_method" not in section and "bits" in section
    return section if ours else None


def _scheme(path: str, record: Mapping[str, Any]) -> Scheme:
    for key, kind, what in TYPES:
        if not isinstance(record.get(key), kind | None):
            raise BadInputError(f"config.json: {path}: {key} is {record[key]!r}, expected {what}")
    try:
        return Scheme.of(record)
    except UnsupportedError as error:
        raise UnsupportedError(f"config.json: {path}: {error}") from None


def _fitting(weight: Header, scales: Header, columns: int | None) -> Iterator[Scheme]:
    """Yield the schemes in which a weight could have these headers."""
    for mode, (widths, sizes) in OFFERED.items():
        if (mode == "affine") == (scales.dtype == "U8"):
            continue
        for bits, size in ((bits, size) for bits in widths for size in sizes):
            wide = scales.shape[-1] * size
            if weight.shape[-1] * 32 == wide * bits and columns in (None, wide):
                yield Scheme(bits, size, mode)
