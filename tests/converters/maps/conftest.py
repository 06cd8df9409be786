"""Random rules that can be followed both ways, and values for them."""

from __future__ import annotations

from itertools import count, product
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import CODE, dtype_of
from weighbridge.converters.maps.binding.weightmap import WeightMap
from weighbridge.converters.maps.notation.axes import (
    UNIT,
    Atom,
    Product,
    Sum,
    choices,
    factors,
    names,
)
from weighbridge.converters.maps.notation.expressions import Definition, Literal
from weighbridge.converters.maps.notation.names import Capture, Name
from weighbridge.converters.maps.notation.rules import Bits, Pairing, Term

DTYPES = [np.float32, np.uint8, np.int64, ml_dtypes.bfloat16]


class Case(NamedTuple):
    """A map and tensors for its left side."""

    map: WeightMap
    arrays: dict[str, np.ndarray]

    @property
    def headers(self) -> dict[str, Header]:
        return {name: Header(CODE[a.dtype], a.shape) for name, a in self.arrays.items()}


@st.composite
def trees(draw, fresh, depth=2):
    """Draw an axis whose atoms are all different."""
    kind = draw(st.sampled_from(["atom"] * 2 + ["product", "sum"] * (depth > 0)))
    if kind == "atom":
        return Atom(f"a{next(fresh)}")
    parts = tuple(draw(trees(fresh, depth - 1)) for _ in range(draw(st.integers(2, 3))))
    return Product(parts) if kind == "product" else Sum(parts)


@st.composite
def regrouped(draw, flat):
    """Draw axes that hold the factors FLAT in another order, some of them merged."""
    axes = []
    for factor in draw(st.permutations(flat)):
        if axes and draw(st.booleans()):
            last = axes.pop()
            axes.append(
                Product((*last.factors, factor) if isinstance(last, Product) else (last, factor))
            )
        else:
            axes.append(factor)
    if draw(st.booleans()):
        axes.insert(draw(st.integers(0, len(axes))), UNIT)
    return tuple(
        axis.factors[0] if isinstance(axis, Product) and len(axis.factors) == 1 else axis
        for axis in axes
    )


@st.composite
def terms(draw, name, axes, allowed):
    """Draw a term with AXES; one of the ALLOWED atoms may become a capture."""
    flat = factors(axes)
    free = [factor for factor in flat if isinstance(factor, Atom) and factor.name in allowed]
    parts = [f"{name}.", Capture("n"), ".weight"]
    if free and draw(st.booleans()):
        index = draw(st.sampled_from(free))
        axes = draw(regrouped([factor for factor in flat if factor != index]))
        parts = [f"{name}.", Capture("n"), ".part.", Capture(index.name), ".weight"]
    return Term(Name(tuple(parts)), axes)


@st.composite
def pairings(draw):
    """Draw a rule: a tree on one side, and on the other its factors or its pieces rearranged."""
    fresh = count()
    axes = tuple(draw(trees(fresh)) for _ in range(draw(st.integers(0, 3))))
    if len(choices(axes)) > 8:
        axes = (Atom("a0"), Atom("a1"))
    whole = (Term(Name(("whole.", Capture("n"), ".weight")), axes),)
    if draw(st.booleans()):
        other = (draw(terms("other", draw(regrouped(list(factors(axes)))), set(names(axes)))),)
    else:
        # A capture must be one in every piece that has the axis, or it would be an axis elsewhere.
        pieces = choices(axes)
        once = {name for name in names(axes) if sum(name in piece for piece in pieces) == 1}
        other = tuple(
            draw(terms(f"part{i}", draw(regrouped([Atom(name) for name in piece])), once))
            for i, piece in enumerate(pieces)
        )
    sizes = {name: draw(st.integers(1, 3)) for name in dict.fromkeys(names(axes))}
    where = tuple(Definition((name,), Literal(size)) for name, size in sizes.items())
    sides = (whole, other) if draw(st.booleans()) else (other, whole)
    rule = Pairing(*sides, where, draw(st.sampled_from(["", "?"])))
    assert rule.flaw() is None
    return rule


@st.composite
def cases(draw):
    """Draw a map of one rule, and random bits, NaNs of all kinds among them, for two instances."""
    rule = draw(pairings())
    sizes = {definition.names[0]: definition.value.value for definition in rule.where}
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    bits = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {}
    for n in range(2):
        for term in rule.left:
            family = term.family(rule.indices)
            shape = tuple(_size(axis, sizes) for axis in term.axes)
            for index in product(*(range(sizes[name]) for name in family)):
                captures = {"n": str(n), **dict(zip(family, map(str, index), strict=True))}
                raw = bits.bytes(int(np.prod(shape)) * dtype.itemsize)
                arrays[term.name.fill(captures)] = np.frombuffer(raw, dtype).reshape(shape)
    return Case(WeightMap((rule,)), arrays)


@st.composite
def bits_cases(draw):
    """Draw a map of one rule whose axes are of bytes, and random bits for two instances.

    The last axis of each tensor gets a factor of eight bytes, the same in all of them, so that any
    dtype divides it.
    """
    rule = draw(pairings().filter(lambda rule: not rule.indices))
    sides = [
        tuple(Term(t.name, _widened(t.axes), (Bits(draw(st.sampled_from(STORED))),)) for t in side)
        for side in (rule.left, rule.right)
    ]
    where = (*rule.where, Definition(("w8",), Literal(8)))
    rule = Pairing(*sides, where, rule.marker)
    sizes = {definition.names[0]: definition.value.value for definition in where}
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrays = {}
    for n, term in product(range(2), rule.left):
        dtype = dtype_of(term.changes[0].dtype)
        *outer, last = (_size(axis, sizes) for axis in term.axes)
        raw = random.bytes(int(np.prod(outer)) * last)
        shape = (*outer, last // dtype.itemsize)
        arrays[term.name.fill({"n": str(n)})] = np.frombuffer(raw, dtype).reshape(shape)
    return Case(WeightMap((rule,)), arrays)


STORED = ["uint8", "uint32", "float32", "bfloat16", "int64", "float8_e4m3fn", "float16"]


def _widened(axes):
    """Return AXES with the last one multiplied by w8."""
    *outer, last = axes or (UNIT,)
    inner = last.factors if isinstance(last, Product) else (last,)
    return (*outer, Product((*inner, Atom("w8"))) if inner else Atom("w8"))


def _size(axis, sizes):
    """Return the size of an axis, from its definition and not from the code under test."""
    if isinstance(axis, Atom):
        return sizes[axis.name]
    if isinstance(axis, Sum):
        return sum(_size(part, sizes) for part in axis.parts)
    return int(np.prod([_size(factor, sizes) for factor in axis.factors], dtype=int))


@pytest.fixture(scope="session")
def any_case():
    return cases()


@pytest.fixture(scope="session")
def any_bits_case():
    return bits_cases()


@pytest.fixture(scope="session")
def any_pairing():
    return pairings()
