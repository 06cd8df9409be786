"""What a quantized format is to the rest: a way to see it as MLX's parts, and a way to write it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ....errors import BadInputError
from ...checkpoints import Checkpoint, Header
from ..mlx import stem
from ..scheme import Scheme
from ..view import Dequantized

Section = Mapping[str, Any]
SECTION: Final = "quantization_config"
METHOD: Final = "quant_method"
UNREAD: Final = "what the source says of quantized activations is left out: MLX quantizes weights"


class Read(NamedTuple):
    """A quantized checkpoint as MLX would store it, under the names of its own modules.

    Attributes:
        tensors: ``x.weight`` in 32-bit words, ``x.scales``, ``x.biases`` and so on, made as they are
            streamed; dense where MLX has no scheme that holds a weight exactly.
        section: the ``quantization`` section of a config of MLX; ``None`` where all is dense.
        notes: lines for the user.
    """

    tensors: Checkpoint
    section: Section | None
    notes: tuple[str, ...] = ()


class Written(NamedTuple):
    """Quantized weights of MLX as another format stores them, under the names of the same modules.

    Attributes:
        tensors: those of the format, made as they are streamed.
        section: the ``quantization_config`` of ``config.json``.
        losses: by name of a weight that the format cannot hold exactly, the largest difference to
            its canonical value, in steps: parts of the scale of its group.
        notes: lines for the user.
    """

    tensors: Checkpoint
    section: Section
    losses: Mapping[str, float]
    notes: tuple[str, ...] = ()


class Format(NamedTuple):
    """A format: how it is read and, where it can be, written.

    Attributes:
        read: from a checkpoint and the ``quantization_config`` beside it.
        write: from MLX's parts under PyTorch's names of modules; ``None`` where nobody should.
    """

    read: Callable[[Checkpoint, Section], Read]
    write: Callable[[Dequantized], Written] | None


def section_of(schemes: Mapping[str, Scheme]) -> dict[str, Any] | None:
    """Return the ``quantization`` section of MLX for weights by name; ``None`` without any.

    >>> four, eight = Scheme(4, 64), Scheme(8, 32)
    >>> section_of({"a.weight": four, "b.weight": four, "c.weight": eight})["c"]
    {'group_size': 32, 'bits': 8, 'mode': 'affine'}
    """
    if not schemes:
        return None
    [(default, _)] = Counter(schemes.values()).most_common(1)
    others = {stem(name): it.record for name, it in schemes.items() if it != default}
    return {**default.record, **others}


def whole_number(section: Section, key: str) -> int:
    """Return KEY of SECTION, which must be a positive whole number.

    Raises:
        BadInputError: it is not.
    """
    found = section.get(key)
    if type(found) is not int or found <= 0:
        raise BadInputError(f"config.json: {SECTION}: {key} is {found!r}, expected a whole number")
    return found


def require_truth(section: Section, *keys: str) -> None:
    """Check that KEYS of SECTION are true or false where they are there.

    Raises:
        BadInputError: one is not.
    """
    for key in keys:
        if not isinstance(found := section.get(key), bool | None):
            raise BadInputError(
                f"config.json: {SECTION}: {key} is {found!r}, expected true or false"
            )


def require(headers: Mapping[str, Header], name: str, owner: str) -> Header:
    """Return the header of tensor NAME, which belongs to the weight OWNER.

    Raises:
        BadInputError: there is no such tensor.
    """
    if name not in headers:
        raise BadInputError(f"{name} is missing, which the quantized weight {owner} needs")
    return headers[name]


def require_shape(headers: Mapping[str, Header], name: str, shape: tuple[int, ...]) -> None:
    """Check that tensor NAME has SHAPE.

    Raises:
        BadInputError: it has not.
    """
    if headers[name].shape != shape:
        raise BadInputError(f"{name} is {headers[name]}, expected shape {list(shape)}")
