"""A user's own inputs, from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ...converters.checkpoints.formats.npz import read_npz
from ...converters.common.contents import ZIP, require
from ...converters.models import Port, Signature
from ...converters.values import Array
from ...errors import BadInputError, MismatchError
from .probes import Probe, range_problems


def probes_from_file(path: Path, signature: Signature) -> list[Probe]:
    """Return a user's own inputs: an ``.npz`` with one array per input.

    Several probes are named ``PROBE/INPUT``.

    Raises:
        BadInputError: PATH is not a readable ``.npz`` file.
        UnsupportedError: an array of it has a dtype that no input has.
        MismatchError: names, ranks or dtypes do not fit the signature.
    """
    probes = grouped(path)
    if problems := _input_problems(probes, signature):
        raise MismatchError(f"{path} does not fit the model's inputs", problems)
    return [Probe(name, inputs) for name, inputs in probes.items()]


def grouped(path: Path) -> dict[str, dict[str, Array]]:
    """Return the arrays of the file PATH by probe and input; there is one probe at least.

    Raises:
        BadInputError: PATH is not a readable ``.npz`` file, or empty.
        UnsupportedError: an array of it has a dtype that no input has.
    """
    found: dict[str, dict[str, Array]] = {}
    require(path, "a NumPy archive (.npz) with one array per input", {ZIP})
    for name, array in read_npz(path).items():
        probe, _, port = name.rpartition("/")
        found.setdefault(probe or "inputs", {})[port] = array
    if not found:
        raise BadInputError(f"{path} holds no array; it should have one per input")
    return found


def _input_problems(probes: Mapping[str, Mapping[str, Array]], signature: Signature) -> list[str]:
    names = {port.name for port in signature.inputs}
    problems = []
    for probe, inputs in probes.items():
        problems += [f"{probe}: {name} is missing" for name in sorted(names - inputs.keys())]
        problems += [f"{probe}: {name} is unexpected" for name in sorted(inputs.keys() - names)]
        for port in signature.inputs:
            if port.name in inputs:
                problems += _port_problems(probe, port, inputs[port.name])
    return problems


def _port_problems(probe: str, port: Port, array: Array) -> list[str]:
    sizes = zip(port.shape, array.shape, strict=False)
    fits = len(port.shape) == array.ndim and all(
        isinstance(wanted, str) or wanted == found for wanted, found in sizes
    )
    problems = [] if fits else [f"{probe}: {port.name} has shape {array.shape}, not {port.shape}"]
    if np.dtype(port.dtype).kind in "iu" and array.dtype.kind not in "iub":
        problems.append(f"{probe}: {port.name} holds {array.dtype}, not {port.dtype}")
    if array.dtype.kind == "f" and not (array < np.inf).all():
        problems.append(f"{probe}: {port.name} is not finite; -inf is taken, as in masks")
    return problems + range_problems(probe, port, array)
