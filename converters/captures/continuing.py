"""Signatures of programs that go on with a text, whose keys and values are states."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...errors import UnsupportedError
from ..models.signature import Port, Signature
from ..runtimes.pieces import stepped

POSITION: Final = "position"
LONGEST: Final = 2048  # tokens that are kept where nobody says how many


def one_text(signature: Signature) -> Signature:
    """Return SIGNATURE as a program that goes on with a text has it: one text, and how much of it was read before.

    Raises:
        UnsupportedError: it is no signature of a model that continues a text.
    """
    port = stepped(signature)
    if port is None or signature.inputs != (port,) or len(port.shape) != 2:
        names = ", ".join(it.name for it in signature.inputs)
        raise UnsupportedError(
            f"a program with states continues a text: its one input is token ids, not {names};"
            " export it without --stateful"
        )
    batch, length = port.shape
    limits = {**dict(port.upper), str(length): min(LONGEST, port.limit(str(length), LONGEST))}
    alone = replace(port, shape=(1, length), upper=tuple(limits.items()))
    outputs = (
        replace(it, shape=tuple(1 if size == batch else size for size in it.shape))
        for it in signature.outputs
    )
    return Signature((alone, Port(POSITION, "int32", (1,), "positions")), tuple(outputs))
