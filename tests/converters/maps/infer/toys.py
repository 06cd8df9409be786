"""Models of a few lines of numpy, as functions of their weights, and candidates made from them."""

from __future__ import annotations

import numpy as np

from weighbridge.converters.checkpoints.base import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.converters.maps import WeightMap, apply
from weighbridge.converters.maps.infer import Side
from weighbridge.converters.values import Dense

SIZE, BLOCKS = 6, 3
INPUT = np.random.default_rng(9).normal(size=(5, SIZE))


def weights(seed=0, *, tied=False):
    """Return weights of :func:`model`: every matrix is square, so that shapes say nothing."""
    draw = np.random.default_rng(seed)
    square, row = (SIZE, SIZE), (SIZE,)
    found = {"embed.weight": draw.normal(size=square)}
    for n in range(BLOCKS):
        found[f"layers.{n}.norm.weight"] = draw.normal(size=row)
        found[f"layers.{n}.norm.bias"] = draw.normal(size=row)
        for part in ("gate", "up", "down"):
            found[f"layers.{n}.mlp.{part}.weight"] = draw.normal(size=square) / SIZE**0.5
    found["scale"] = draw.normal(size=())
    found["head.weight"] = found["embed.weight"] if tied else draw.normal(size=square)
    return {name: array.astype(np.float32) for name, array in found.items()}


def model(w):
    """Compute a gated network, in float64."""
    w = {name: np.asarray(array, np.float64) for name, array in w.items()}
    x = INPUT @ w["embed.weight"]
    for n in range(BLOCKS):
        at = f"layers.{n}."
        y = (
            x / np.sqrt((x**2).mean(-1, keepdims=True)) * w[at + "norm.weight"]
            + w[at + "norm.bias"]
        )
        gate = y @ w[at + "mlp.gate.weight"].T
        hidden = gate / (1 + np.exp(-gate)) * (y @ w[at + "mlp.up.weight"].T)
        x = x + hidden @ w[at + "mlp.down.weight"].T
    return {"y": np.exp(w["scale"]) * x @ w["head.weight"].T}


RENAMED = """
embed.weight <-> zork.w
layers.{n}.norm.weight <-> h.{n}.plum.a
layers.{n}.norm.bias <-> h.{n}.plum.b
layers.{n}.mlp.gate.weight [o i], layers.{n}.mlp.up.weight [u i] <-> h.{n}.elm.w [i (u + o)]
    where o = u = 6
layers.{n}.mlp.down.weight [o i] <-> h.{n}.oak.w [i o]
scale <-> fig
head.weight <-> ash.w
"""


def ported(text, arrays):
    """Return ARRAYS as the map TEXT lays them out."""
    plan = WeightMap.parse(text).bind(headers(arrays))
    made = apply(plan, {name: Dense(array) for name, array in arrays.items()})
    return {name: made[name].array for name in sorted(made)}


def port(text, arrays):
    """Return the model as a function of the weights that the map TEXT makes of ARRAYS."""
    back = WeightMap.parse(text).bind(headers(arrays))
    inverse = WeightMap.parse(text).inverse().bind(back.layout, sizes=back.sizes)

    def run(w):
        home = apply(inverse, {name: Dense(np.asarray(a, np.float32)) for name, a in w.items()})
        return model({name: value.array for name, value in home.items()})

    return run


def headers(arrays):
    return {name: Header(CODE[array.dtype], array.shape) for name, array in arrays.items()}


def side(spec, arrays, *, held=True):
    return Side(spec, headers(arrays), arrays.__getitem__ if held else None)


def same_map(text, other, arrays):
    """Say whether two maps do the same to ARRAYS."""
    one, two = ported(text, arrays), ported(other, arrays)
    return one.keys() == two.keys() and all(np.array_equal(one[k], two[k]) for k in one)
