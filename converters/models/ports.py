"""Ports as a manifest records them, and as a file of somebody else's names them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from .signature import Port, Signature

UNKNOWN: Final = "array"  # the role of what no name tells
BESIDE_TOKENS: Final = ("attention_mask", "positions", "token_types")  # roles of inputs
# Roles of inputs and outputs by name, for files that others made.
ROLES: Final[Mapping[str, str]] = {
    "attention_mask": "attention_mask",
    "decoder_input_ids": "token_ids",
    "input_features": "spectrogram",
    "input_ids": "token_ids",
    "input_values": "waveform",
    "last_hidden_state": "hidden",
    "pixel_values": "pixels",
    "position_ids": "positions",
    "token_type_ids": "token_types",
}


def role_of(name: str) -> str:
    """Return what an input or output called NAME means, ``array`` where nothing says it.

    >>> role_of("input_ids"), role_of("x")
    ('token_ids', 'array')
    """
    return ROLES.get(name, UNKNOWN)


def port_from_manifest(port: Mapping[str, Any]) -> Port:
    """Return the port that a manifest describes."""
    upper = tuple((str(name), int(size)) for name, size in port["upper"])
    return Port(port["name"], port["dtype"], tuple(port["shape"]), port["role"], upper)


def signature_from_manifest(stored: Any, path: Path) -> Signature:
    """Return the signature that the manifest in PATH has STORED.

    Raises:
        BadInputError: it is damaged.
    """
    try:
        ports = (tuple(map(port_from_manifest, stored[side])) for side in ("inputs", "outputs"))
        return Signature(*ports)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"its record of inputs and outputs is damaged ({error!r})"
        raise BadInputError(f"{path}: {what}; export it again") from error


def under_other_names(signature: Signature, names: Mapping[str, str]) -> Signature:
    """Return SIGNATURE, its inputs and outputs under their names in NAMES, where they have others."""
    sides = (signature.inputs, signature.outputs)
    named = (tuple(replace(it, name=names.get(it.name, it.name)) for it in side) for side in sides)
    return Signature(*named)


def without_last(wanted: Signature, found: Signature) -> Signature:
    """Return WANTED without its last outputs, those that FOUND does not have; one is kept at least."""
    there, kept = {it.name for it in found.outputs}, [*wanted.outputs]
    while len(kept) > 1 and kept[-1].name not in there:
        kept.pop()
    return replace(wanted, outputs=tuple(kept))


def paired(wanted: Signature, found: Signature) -> dict[str, str]:
    """Return WANTED's name -> FOUND's of the inputs and outputs that have another name there.

    Of what is not called alike, what is spelled alike belongs together, then what alone has its sizes; of
    what is left, as many on both sides, the first with the first.

    >>> ids, mask = (Port(name, "int64", ("batch", 8), "") for name in ("input_ids", "attention_mask"))
    >>> y, one, two = Port("y", "float32", (4,), ""), *(Port(n, "int32", (1, 8), "") for n in ("x", "inputIds"))
    >>> paired(Signature((ids, mask), (y,)), Signature((one, two), (y,)))
    {'input_ids': 'inputIds', 'attention_mask': 'x'}
    """
    sides = (wanted.inputs, found.inputs), (wanted.outputs, found.outputs)
    return {one.name: other.name for side in sides for one, other in _pairs(*side)}


def _pairs(ports: Sequence[Port], others: Sequence[Port]) -> Iterator[tuple[Port, Port]]:
    known = {it.name for it in ports} & {it.name for it in others}
    left, rest = ([it for it in side if it.name not in known] for side in (ports, others))
    ways: tuple[Callable[[Port, Port], bool], ...] = (_spelled_alike, alike)
    for same in ways:
        for one in [*left]:
            fitting = [it for it in rest if same(one, it) and alike(one, it)]
            if len(fitting) == 1 and sum(same(it, fitting[0]) for it in left) == 1:
                yield one, fitting[0]
                left.remove(one)
                rest.remove(fitting[0])
    if len(left) == len(rest) and all(map(of_one_kind, left, rest)):
        yield from zip(left, rest, strict=True)


def of_one_kind(one: Port, other: Port) -> bool:
    """Say whether two ports hold the same kind of number and have as many axes."""
    same = ("float" in one.dtype) == ("float" in other.dtype)
    return same and len(one.shape) == len(other.shape)


def alike(one: Port, other: Port) -> bool:
    """Say whether two ports hold the same kind of number and may have the same sizes.

    >>> alike(Port("a", "int64", ("n", 8), ""), Port("b", "int32", (1, 8), ""))
    True
    """
    sizes = zip(one.shape, other.shape, strict=False)
    fit = (isinstance(mine, str) or isinstance(its, str) or mine == its for mine, its in sizes)
    return of_one_kind(one, other) and all(fit)


def _spelled_alike(one: Port, other: Port) -> bool:
    """Say whether two ports have one name in other manners: ``input_ids``, ``inputIds``, ``input_ids_1``."""
    mine, its = (re.sub(r"_\d+$|[\W_]", "", it.name).lower() for it in (one, other))
    return mine == its
