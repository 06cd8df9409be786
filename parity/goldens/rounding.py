"""How a target keeps what a source computes with: names of the ways, for recordings."""

from __future__ import annotations

from typing import Final, NamedTuple

CONSTANTS: Final = "+constants"  # Python numbers are rounded through float16 too
WIDE: Final = "+wide"  # what the source keeps in more bits stays as it is, as under a merge
SCALARS: Final = "+scalars:"  # before a dtype: buffers of one element are rounded through it too


class Storage(NamedTuple):
    """A way to keep weights.

    Attributes:
        dtype: ``stored`` as the source has them, or a dtype that they are rounded to.
        constants: whether Python numbers in the computation are rounded to float16.
        scalars: the dtype that buffers of one element are rounded to; empty for none.
        wide: whether what the source keeps in more bits than DTYPE stays as it is.
    """

    dtype: str
    constants: bool = False
    scalars: str = ""
    wide: bool = False


def parse_storage(text: str) -> Storage:
    """Return what the name of a recording says.

    >>> parse_storage("float16+constants")
    Storage(dtype='float16', constants=True, scalars='', wide=False)
    >>> parse_storage("stored+scalars:bfloat16").scalars, parse_storage("bfloat16+wide").wide
    ('bfloat16', True)
    """
    text, _, scalars = text.partition(SCALARS)
    dtype = text.removesuffix(CONSTANTS).removesuffix(WIDE)
    return Storage(dtype, text.endswith(CONSTANTS), scalars, text.endswith(WIDE))
