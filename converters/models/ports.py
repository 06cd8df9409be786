"""Ports as a manifest records them, and as a file of somebody else's names them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from .signature import Port, Signature

UNKNOWN: Final = "array"  # the role of what no name tells
# Roles of inputs and outputs by name, for files that others made.
ROLES: Final[Mapping[str, str]] = {
    "attention_mask": "attention_mask",
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
