"""Sketches of weights that are at hand: nothing of them is computed before somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any, cast

import xxhash

from ....converters.checkpoints.base import Header
from ....converters.common.dtypes import FLOATS
from ....converters.values import Array
from .casts import CASTS, CLAMPED, casts, fingerprint
from .casts import cast as cast_to
from .sketch import Sketch, Weights, figures, squeeze

Stream = Callable[[], Iterator[memoryview]]
INTEGERS = ("I64", "I32")


class AtHand:
    """What a :class:`Sketch` says, of a weight that can be read.

    Most weights of a candidate have the bytes of one of the reference's, and then nothing but hashes
    is ever asked for: no figures, no other dtypes.

    Attributes:
        dtype: safetensors code.
        shape: its shape.
        squeezed: the shape without axes of size 1.
    """

    def __init__(self, header: Header, read: Callable[[], Array], stream: Stream | None) -> None:
        self.dtype, self.shape = header
        self.squeezed = squeeze(header.shape)
        self._read, self._stream = read, stream
        self._hashes: dict[str, tuple[str, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        """Return what the sketch has: moments, projections, rows, norm."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._whole, name)

    @cached_property
    def _whole(self) -> Sketch:
        return figures(self._read())

    @cached_property
    def hashes(self) -> Mapping[str, str]:
        """The hashes at every common dtype."""
        return casts(self._read())

    def hashes_at(self, code: str) -> tuple[str, ...]:
        """Return the hashes that the weight has at dtype CODE, as ``Sketch.hashes_at``."""
        if code not in self._hashes:
            self._hashes[code] = tuple(self._hash_at(code))
        return self._hashes[code]

    def _hash_at(self, code: str) -> Iterator[str]:
        if code == self.dtype and self._stream:
            digest = xxhash.xxh3_128()
            for view in self._stream():
                digest.update(view)
            yield digest.hexdigest()
        elif code == self.dtype:
            yield fingerprint(self._read())
        elif self.dtype in FLOATS and code in CASTS:
            array = self._read()
            names = (code, CLAMPED) if code == "F16" else (code,)
            yield from (fingerprint(CASTS[name](array)) for name in names)
        elif self.dtype in INTEGERS and code in INTEGERS:
            yield fingerprint(cast_to(self._read(), code))


def sketches_at_hand(weights: Weights) -> Mapping[str, Sketch]:
    """Return what ``sketches`` does of WEIGHTS, of which nothing is read yet.

    >>> import numpy as np
    >>> from .sketch import ArrayWeights
    >>> sketches_at_hand(ArrayWeights({"w": np.ones((2, 3))}))["w"].moments.mean
    1.0
    """
    stream = getattr(weights, "stream", None)
    found = {
        name: AtHand(header, partial(weights.read, name), partial(stream, name) if stream else None)
        for name, header in weights.headers.items()
    }
    return cast("Mapping[str, Sketch]", found)
