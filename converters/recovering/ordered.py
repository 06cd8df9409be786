"""Which constant of one ML program is which of another's by the order in which operations read them.

For programs of one model that are not the same: another exporter's masks, shapes and casts are others, the
layers and what they read are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

import numpy as np

from ..captures.constants import UNREAD
from ..captures.described import UNIFORM
from ..captures.mlprogram.arithmetic import tensors_of
from ..captures.mlprogram.evaluator import dtype_name
from ..captures.mlprogram.variables import every_operation
from .alike import fixed, several, source_of

NORM: Final = "batch_norm"
CONVOLUTIONS: Final = ("conv", "conv_transpose")
FOLDED: Final = "folded"  # in a record that was found here: batch norms that convolutions took up


Place = tuple[str, str, tuple[int, ...]]


class Read(NamedTuple):
    """A constant that an operation reads.

    Attributes:
        place: the type of the operation, the name of its input, and the sizes.
        constant: the variable.
    """

    place: Place
    constant: Any


class Norm(NamedTuple):
    """A batch norm behind a convolution, by the names of its constants.

    Attributes:
        place: of the bias that the convolution has with the batch norm in it.
        bias: of the convolution; empty where it has none.
        shift: the batch norm's own bias.
        others: its other constants, and the numbers with which it computes nothing else.
    """

    place: Place
    bias: str
    shift: str
    others: Mapping[str, float]


def reads(body: Any) -> Iterator[Read]:
    """Yield what operations of BODY read of constants with axes, in floating point."""
    for operation in every_operation(body):
        for name, value in operation.inputs.items():
            for variable in map(source_of, several(value)):
                if fixed(variable) and dtype_name(variable).startswith("fp") and variable.rank:
                    shape = tuple(int(size) for size in variable.shape)
                    yield Read((operation.op_type, name, shape), variable)


def norms(body: Any) -> Iterator[Norm]:
    """Yield the batch norms of BODY that another exporter would fold into the convolutions before them."""
    for operation in every_operation(body):
        before = source_of(operation.inputs["x"]).op if operation.op_type == NORM else None
        if before is None or before.op_type not in CONVOLUTIONS:
            continue
        named = {name: source_of(it) for name, it in operation.inputs.items() if it is not None}
        epsilon = float(named["epsilon"].val)
        numbers = {"gamma": 1.0, "mean": 0.0, "variance": float(np.float32(1 - epsilon))}
        bias = before.inputs.get("bias")
        yield Norm(
            (before.op_type, "bias", tuple(map(int, named["beta"].shape))),
            source_of(bias).name if bias is not None else "",
            named["beta"].name,
            {named[part].name: number for part, number in numbers.items() if part in named},
        )


def paired(
    one: Any, other: Any, known: Collection[str], folded: Sequence[Norm] = ()
) -> dict[str, Any] | None:
    """Return the constant of the body OTHER for each of those KNOWN of ONE; ``None`` where one has none.

    The batch norms FOLDED are not in OTHER: their convolutions have a bias in their place.
    """
    rest = {*known} - {name for it in folded for name in (it.bias, *it.others)}
    moved = {it.shift: it.place for it in folded}
    mine = [
        it._replace(place=moved.get(it.constant.name, it.place))
        for it in reads(one)
        if it.constant.name in rest
    ]
    its, found = [*reads(other)], dict[str, Any]()
    places = ([it.place for it in mine], [it.place for it in its])
    matcher = SequenceMatcher(None, *places, autojunk=False)
    for start, at, size in matcher.get_matching_blocks():
        for read, there in zip(mine[start : start + size], its[at : at + size], strict=True):
            if found.setdefault(read.constant.name, there.constant) is not there.constant:
                return None
    return found if found.keys() == {it.constant.name for it in mine} else None


def record_in_order(manifest: Mapping[str, Any], one: Any, other: Any) -> dict[str, Any] | None:
    """Return the record of the program with the body OTHER by that of ONE, as ``alike.record_from`` does.

    Of a batch norm that is folded into a convolution the second has what both compute: that is the
    convolution's, and the batch norm adds the bias alone.
    """
    weights, made = dict(manifest.get("weights") or {}), dict(manifest.get("made") or {})
    made = {name: rule for name, rule in made.items() if [*tensors_of(dict(rule or {}))]}
    for folded in ([], [*norms(one)]):
        found = paired(one, other, {*weights, *made}, folded)
        if found and len({id(it) for it in found.values()}) == len(found):
            numbers = {name: number for it in folded for name, number in it.others.items()}
            numbers |= {it.bias: 0.0 for it in folded if it.bias}
            return {
                "weights": {found[it].name: _entry(weights[it]) for it in weights if it in found},
                "made": {found[it].name: made[it] for it in made if it in found},
                UNIFORM: {
                    weights[name]["key"]: {"number": number, "dtype": "float32"}
                    for name, number in numbers.items()
                    if name in weights
                },
                UNREAD: manifest.get(UNREAD, []),
                FOLDED: [weights[it.shift]["key"].rpartition(".")[0] for it in folded],
            }
    return None


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ENTRY of a record says without what is the first program's alone."""
    return {name: entry[name] for name in ("key", "also", "transposed") if name in entry}
