"""A quantized checkpoint seen as the dense one that it stands for."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from ...errors import BadInputError, MismatchError, UnsupportedError
from ..checkpoints import Checkpoint, Header
from ..checkpoints.assembled import read_rows
from ..checkpoints.derived import Derived
from ..checkpoints.formats.ranges import chunks, fresh
from ..common.dtypes import FLOATS, NUMPY, largest
from ..values import Array
from .mlx import SUFFIX, Parts, dequantize, dequantize_half, layout, row_blocks, stem
from .recipe import Recipe
from .rounding import round_once
from .scheme import Scheme
from .workspace import Room

COMPANIONS: Final = ("scales", "biases", "global_scale")


class Dequantized(Derived):
    """A checkpoint whose quantized weights are read dense, each at its canonical value.

    The names are those of the modules: ``x.weight`` is dense, ``x.scales`` and ``x.biases`` are
    not seen. A checkpoint without quantized weights is seen as it is.

    Attributes:
        raw: the checkpoint as stored.
        recipe: what its config says; ``None`` where it says nothing.
        schemes: by name of the weight, in the order of the checkpoint.
        notes: what a person should know of how it was read.
    """

    def __init__(
        self,
        raw: Checkpoint,
        config: Mapping[str, Any],
        dense: Mapping[str, tuple[int, ...]] | None = None,
        dtype: str = "F32",
        notes: Sequence[str] = (),
    ) -> None:
        """Read the headers of RAW with CONFIG, the model's.

        Args:
            raw: as stored.
            config: of ``config.json``.
            dense: shapes of dense weights by name, where somebody knows them; they tell how a
                weight is packed that CONFIG does not name.
            dtype: that quantized weights are read in, rounded to it from float32.
            notes: what a person should know of how RAW was read.

        Raises:
            MismatchError: tensors do not fit what the config says; tells all of them.
            BadInputError: there are quantized tensors and the config says nothing of them.
        """
        super().__init__(raw, raw.headers)
        self.notes = tuple(notes)
        self.raw, self.recipe, self._dtype = raw, Recipe.parse(config), dtype
        self.schemes: Mapping[str, Scheme] = _schemes(raw, self.recipe, dense or {})
        self._stored, self._coarse = self.schemes, dict[str, str]()
        self._names = {name: _part_names(raw, name) for name in self.schemes}
        hidden = {it for parts in self._names.values() for it in parts.values()}
        self.headers = {
            name: self._header(name)
            for name in raw.headers
            if name in self.schemes or name not in hidden
        }

    def only(self, names: Collection[str]) -> Self:
        """Return the same view, of whose weights only those NAMES count as quantized."""
        some = copy(self)
        some.schemes = {name: scheme for name, scheme in self.schemes.items() if name in names}
        return some

    def narrowed(self, dtypes: Mapping[str, str]) -> Self:
        """Return the same view, with some weights in other DTYPES, which count as dense."""
        some = self.rounding(dtypes)
        some.schemes = {n: scheme for n, scheme in self.schemes.items() if n not in dtypes}
        changed = {name: self.headers[name]._replace(dtype=code) for name, code in dtypes.items()}
        some.headers = {name: changed.get(name, header) for name, header in self.headers.items()}
        return some

    @property
    def left_dense(self) -> dict[str, str]:
        """The dtypes of quantized weights that do not count as such here, by name."""
        return {n: self.headers[n].dtype for n in self._stored if n not in self.schemes}

    def rounding(self, dtypes: Mapping[str, str]) -> Self:
        """Return the same view, with the values of some weights rounded once to their DTYPES."""
        some = copy(self)
        some._coarse = {**self._coarse, **dtypes}
        return some

    def _header(self, name: str) -> Header:
        if name not in self.schemes:
            return self.raw.headers[name]
        groups = self.raw.headers[self._names[name]["scales"]].shape
        return Header(self._dtype, (*groups[:-1], groups[-1] * self.schemes[name].group_size))

    def parts(self, name: str) -> dict[str, Array]:
        """Return what the weight NAME is stored as: ``weight``, ``scales`` and so on."""
        return {part: self.raw.read(full) for part, full in self._names[name].items()}

    def part_names(self, name: str) -> Mapping[str, str]:
        """Return the stored names of the parts of the weight NAME, by part."""
        return self._names[name]

    def part_rows(self, name: str, rows: slice, room: Room | None = None) -> Parts:
        """Return ROWS of the weight NAME as stored, by part; all axes but the last are taken as one.

        A global scale comes for each row. What is read lies in ROOM if there is one.
        """
        names = dict(self._names[name])
        once = names.pop("global_scale", None)
        parts = {
            part: read_rows(self.raw, full, rows, room.place(part) if room else fresh)
            for part, full in names.items()
        }
        if once:  # of each expert
            factors = self.raw.read(once).reshape(-1)
            count = math.prod(self.headers[name].shape[:-1])
            numbers = np.arange(rows.start, min(rows.stop, count))
            parts["global_scale"] = factors[numbers // (count // len(factors))]
        return parts

    def read(self, name: str) -> Array:
        """Return tensor NAME; a quantized weight at its canonical value.

        Raises:
            UnsupportedError: that is too large for the dtype it is read in.
        """
        if name not in self._stored:
            return self.raw.read(name)
        return self._rounded(name, dequantize(self.parts(name), self._stored[name]))

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME as :meth:`read` returns it."""
        if name not in self._stored:
            yield from self.raw.stream(name, start, stop)
            return
        header = self.headers[name]
        stop = header.nbytes if stop is None else stop
        width, room = header.shape[-1] * NUMPY[header.dtype].itemsize, Room()
        for rows in _covering(start, stop, width, header.shape[-1]):
            first, last = max(start - rows.start * width, 0), stop - rows.start * width
            yield from chunks(self._dense_rows(name, rows, room), first, last)

    def pieces(self, name: str) -> Iterator[tuple[Parts, NDArray[np.float32], Array]]:
        """Yield rows of the quantized weight NAME, all axes but the last taken as one.

        Yields:
            Some rows as they are stored, by part (a global scale for each row); their canonical
            values; and these as they are read.
        """
        *lead, columns = self.headers[name].shape
        count = math.prod(lead)
        for rows in row_blocks(count, columns):
            parts = self.part_rows(name, rows)
            exact = dequantize(parts, self._stored[name])
            yield parts, exact, self._rounded(name, exact)

    def _dense_rows(self, name: str, rows: slice, room: Room) -> Array:
        """Return ROWS of the weight NAME, all axes but the last taken as one; they lie in ROOM."""
        parts, scheme = self.part_rows(name, rows, room), self._stored[name]
        half = self._coarse.get(name, self._dtype) == self.headers[name].dtype == "F16"
        if half and (found := dequantize_half(parts, scheme, room)) is not None:
            return found
        return self._rounded(name, dequantize(parts, scheme, room), room)

    def _rounded(self, name: str, values: NDArray[np.float32], room: Room | None = None) -> Array:
        """Return VALUES of the weight NAME in the dtype that it is read in; in ROOM if there is one."""
        dtype = NUMPY[self._coarse.get(name, self._dtype)]
        rounded = values if dtype == np.float32 else round_once(values, dtype, room)
        within = max(values.max(initial=0), -values.min(initial=0)) <= largest(dtype.name)
        if not within and not np.array_equal(np.isfinite(rounded), np.isfinite(values)):
            raise UnsupportedError(
                f"{name} holds numbers beyond {dtype}; dequantize to a wider dtype"
            )
        return rounded.astype(NUMPY[self.headers[name].dtype], copy=False)


def _covering(start: int, stop: int, width: int, columns: int) -> Iterator[slice]:
    """Yield rows of WIDTH bytes and COLUMNS, a few at a time, that cover the bytes START to STOP."""
    if start >= stop:
        return
    first, last = start // width, -(-stop // width)
    for block in row_blocks(last - first, columns):
        yield slice(first + block.start, min(first + block.stop, last))


def stored_as(raw: Checkpoint, name: str) -> dict[str, str]:
    """Return what the tensor NAME of RAW consists of, by part; a dense one of itself.

    Read from the headers alone: a weight of 32-bit words with scales beside it is quantized.
    """
    return _part_names(raw, name) if is_packed(raw.headers, name) else {"weight": name}


def _part_names(raw: Checkpoint, name: str) -> dict[str, str]:
    companions = {part: f"{stem(name)}.{part}" for part in COMPANIONS}
    return {"weight": name, **{p: full for p, full in companions.items() if full in raw.headers}}


def _schemes(
    raw: Checkpoint, recipe: Recipe | None, dense: Mapping[str, tuple[int, ...]]
) -> dict[str, Scheme]:
    """Return the scheme of every quantized weight of RAW; refuse what does not fit, together."""
    packed = [name for name in raw.headers if is_packed(raw.headers, name)]
    if recipe is None:
        if packed:
            raise BadInputError(
                f"{raw.path}: {len(packed)} weights are quantized, {packed[0]} first, and config.json"
                " has no `quantization`; take config.json from where the weights come from"
            )
        return {}
    schemes: dict[str, Scheme] = {}
    problems = [*_described(raw, recipe, packed)]
    for name in packed:
        try:
            schemes[name] = _scheme(raw, recipe, name, dense.get(name))
        except BadInputError as error:
            problems.append(str(error))
    problems += _never_met(raw, recipe, schemes)
    if problems:
        raise MismatchError(f"{raw.path} is not quantized as its config.json says", problems)
    return schemes


def _never_met(raw: Checkpoint, recipe: Recipe, schemes: Mapping[str, Scheme]) -> Iterator[str]:
    """Yield what is wrong where RECIPE has a default and none of the weights that it does not name has it.

    Where some have it, the shapes of the others tell, as to mlx-lm.
    """
    silent = {name: it for name, it in schemes.items() if stem(name) not in recipe.named}
    if silent and "bits" in recipe.section and recipe.default not in silent.values():
        name, scheme = next(iter(silent.items()))
        yield (
            f"{stem(name)}: config.json says {recipe.default}, and names it not; stored is"
            f" {raw.headers[name]}, {scheme}, and no other weight is as it says"
        )


def is_packed(headers: Mapping[str, Header], name: str) -> bool:
    """Whether NAME of HEADERS is a weight in words of codes, with scales beside it."""
    if headers[name].dtype != "U32":
        return False
    scales = headers.get(f"{stem(name)}.scales")
    return scales is not None and len(scales.shape) == len(headers[name].shape)


def _described(raw: Checkpoint, recipe: Recipe, packed: list[str]) -> Iterator[str]:
    """Say which modules of RAW the recipe names as quantized and are not, or by no scheme."""
    for path, entry in recipe.section.items():
        if not isinstance(entry, Mapping | bool) and path + SUFFIX in raw.headers:
            yield f"{path}: config.json says {entry!r}, expected an object, true or false"
    for path, scheme in recipe.named.items():
        name = path + SUFFIX
        if scheme and name in raw.headers and name not in packed:
            yield f"{path}: config.json says {scheme}; stored is {raw.headers[name]} without scales"


def _scheme(raw: Checkpoint, recipe: Recipe, name: str, dense: tuple[int, ...] | None) -> Scheme:
    path, headers = stem(name), raw.headers
    columns = dense[-1] if dense else None
    scales = headers[f"{path}.scales"]
    scheme = recipe.scheme_of(path, headers[name], scales, columns)
    shape = (*scales.shape[:-1], scales.shape[-1] * scheme.group_size)
    names = _part_names(raw, name)
    wanted = layout(name, shape, scheme, NUMPY[scales.dtype], global_scale="global_scale" in names)
    wrong = [
        f"{full} is {headers.get(full) or 'missing'}, expected {header}"
        for full, header in wanted.items()
        if full not in headers or headers[full].shape != header.shape
    ]
    wrong += [
        f"{full} is {headers[full]}, expected floating-point numbers"
        for part, full in names.items()
        if scheme.affine and part in ("scales", "biases") and headers[full].dtype not in FLOATS
    ]
    wrong += [f"{full} is not part of {scheme}" for full in names.values() if full not in wanted]
    if wrong:
        raise BadInputError("; ".join(wrong))
    return scheme
