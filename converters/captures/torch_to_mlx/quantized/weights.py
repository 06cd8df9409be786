"""The weights of a captured module, quantized: chosen, made, brought in and taken out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

import mlx.core as mx

from .....errors import MismatchError, UnsupportedError
from ....common.arrays import from_mlx, to_mlx
from ....quantization import Blocks
from ....quantization.scheme import Scheme
from ..adapters.factors import beside
from ..parameters import Branch
from ..storage.wiring import Wiring
from .forms import computed_with

PARTS: Final = ("weight", "scales", "biases")
Predicate = Callable[[str, mx.array], bool | Mapping[str, Any]]


class Report(NamedTuple):
    """What was quantized.

    Attributes:
        quantized: weight name -> scheme.
        dense: name of another parameter of two axes or more -> why it is as it was.
    """

    quantized: Mapping[str, Scheme]
    dense: Mapping[str, str]


def quantize(
    wiring: Wiring,
    predicate: Predicate | None,
    record: Mapping[str, Any],
    names: Collection[str] = (),
) -> Report:
    """Quantize the weights that PREDICATE chooses by RECORD, or by what it returns for them.

    NAMES, where given, are the only ones that are looked at.
    """
    usable, wanted = usable_in(wiring), dict[str, Scheme | str]()
    for name in _candidates(wiring):
        if not names or name in names:
            wanted[name] = _wanted(wiring, name, predicate, record, name in usable)
    schemes = {name: scheme for name, scheme in wanted.items() if isinstance(scheme, Scheme)}
    for name, scheme in schemes.items():
        parts = mx.quantize(wiring.location(name).get(), **scheme.record)
        mx.eval(*parts)
        _store(wiring, name, dict(zip(PARTS, parts, strict=False)), scheme)
    dense = {name: why for name, why in wanted.items() if isinstance(why, str)}
    return Report(dict(wiring.schemes), dense)


def _candidates(wiring: Wiring) -> Iterator[str]:
    """Yield the first names of dense parameters of two axes or more."""
    for first in dict.fromkeys(first for first, _ in wiring.recording.names.values()):
        array = wiring.location(first).get()
        is_float = mx.issubdtype(array.dtype, mx.floating)
        if is_float and array.ndim >= 2 and first not in wiring.schemes:
            yield first


def usable_in(wiring: Wiring) -> set[str]:
    """Return the first names of weights with whose codes the graph could compute."""
    reads = wiring.recording.reads
    return {wiring.first(reads[value]) for value in computed_with(wiring.recording.graph, reads)}


def _wanted(
    wiring: Wiring,
    name: str,
    predicate: Predicate | None,
    record: Mapping[str, Any],
    usable: bool,
) -> Scheme | str:
    """Return the scheme for the weight called NAME, or why there is none."""
    array = wiring.location(name).get()
    chosen = True if predicate is None or not usable else predicate(name, array)
    if not chosen:
        return "the predicate left it out"
    scheme = Scheme.of({**record, **(chosen if isinstance(chosen, Mapping) else {})})
    return _problem(wiring, name, tuple(array.shape), scheme, usable) or scheme


def _problem(
    wiring: Wiring, name: str, shape: tuple[int, ...], scheme: Scheme, usable: bool
) -> str:
    """Say why the weight called NAME cannot be quantized by SCHEME; nothing if it can."""
    if not usable:
        return "no linear layer, embedding or expert computes with it"
    if shape[-1] % scheme.group_size:
        return f"{shape[-1]} columns are no multiple of the group, {scheme.group_size}"
    names = [beside(name, part) for part in PARTS[1:]]
    clash = [part for part in names if part in wiring.locations and name not in wiring.schemes]
    return f"the module has a parameter called {clash[0]}" if clash else ""


def quantizer_of(wiring: Wiring, branch: Branch) -> Callable[..., Branch] | None:
    """Return the ``to_quantized`` of BRANCH, ``None`` where it has no weight to quantize."""
    usable = usable_in(wiring)
    names = [n for n in _candidates(wiring) if n in usable and wiring.location(n).branch is branch]
    if not names:
        return None

    def to_quantized(
        group_size: int | None = None, bits: int | None = None, mode: str = "affine", **others: Any
    ) -> Branch:
        record = {"group_size": group_size, "bits": bits, "mode": mode}
        problems = [
            f"{name}: {why}"
            for name in names
            if isinstance(why := _wanted(wiring, name, None, record, usable=True), str)
        ]
        problems += [f"{key} is not supported" for key, value in others.items() if value]
        if problems:
            raise UnsupportedError(
                f"{'; '.join(problems)}; the capture's own .quantize(predicate) leaves such weights dense"
            )
        quantize(wiring, None, record, names)
        return branch

    return to_quantized


def _store(wiring: Wiring, name: str, parts: Mapping[str, mx.array], scheme: Scheme) -> None:
    """Put PARTS in the place of the weight called NAME, frozen for good."""
    for part, array in parts.items():
        key = name if part == "weight" else beside(name, part)
        wiring.place(key, array, trainable=False)
    wiring.trained.discard(name)
    wiring.schemes[name] = scheme
    wiring.changed()


def set_blocks(wiring: Wiring, blocks: Mapping[str, Blocks], *, strict: bool) -> dict[str, str]:
    """Put BLOCKS, by name of the weight, in the place of what is there; return what does not fit."""
    usable = usable_in(wiring)
    found = {name: _misfit(wiring, name, block, usable) for name, block in sorted(blocks.items())}
    problems = {name: why for name, why in found.items() if why}
    if problems and strict:
        raise MismatchError(
            "the quantized weights do not fit the captured module",
            [f"{name}: {why}" for name, why in problems.items()],
        )
    for name in blocks.keys() - problems.keys():
        parts = {part: to_mlx(array) for part, array in blocks[name].parts.items()}
        _store(wiring, wiring.first(name), parts, blocks[name].scheme)
    return problems


def _misfit(wiring: Wiring, name: str, block: Blocks, usable: Collection[str]) -> str:
    """Say why BLOCK cannot stand for the weight called NAME; nothing if it can."""
    if name not in wiring.recording.names:
        return "the module has no such parameter"
    if wiring.shape(name) != block.shape:
        return f"expected {list(wiring.shape(name))}, found {list(block.shape)}"
    if "global_scale" in block.parts:
        return "it has a scale for each expert beside the groups', which no product of MLX takes"
    first = wiring.first(name)
    return _problem(wiring, first, block.shape, block.scheme, first in usable)


def blocks_of(wiring: Wiring, name: str) -> Blocks:
    """Return the quantized weight called NAME in memory, as it is stored."""
    scheme = wiring.schemes[wiring.first(name)]
    parts = PARTS if scheme.affine else PARTS[:2]
    return Blocks({part: from_mlx(wiring.part(name, part).get()) for part in parts}, scheme)
