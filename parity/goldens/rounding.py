"""How a target keeps what a source computes with: names of the ways, for recordings."""

from __future__ import annotations

from typing import Final, NamedTuple

CONSTANTS: Final = "+constants"  # Python numbers are rounded through float16 too
SCALARS: Final = "+scalars:"  # before a dtype: buffers of one element are rounded through it too


class Storage(NamedTuple):
    """A way to keep weights.

    Attributes:
        dtype: ``stored`` as the source has them, or a dtype that they are rounded to.
        constants: whether Python numbers in the computation are rounded to float16.
        scalars: the dtype that buffers of one element are rounded to; empty for none.
    """

    dtype: str
    constants: bool = False
    scalars: str = ""


def parse_storage(text: str) -> Storage:
    """Return what the name of a recording says.

    >>> parse_storage("float16+constants"), parse_storage("stored+scalars:bfloat16")
    (Storage(dtype='float16', constants=True, scalars=''), Storage(dtype='stored', constants=False, scalars='bfloat16'))
    """
    text, _, scalars = text.partition(SCALARS)
    return Storage(text.removesuffix(CONSTANTS), text.endswith(CONSTANTS), scalars)
