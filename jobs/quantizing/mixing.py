"""Bits of each weight, found by what it errs with fewer of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

import numpy as np

from ...converters.quantization import Scheme, dequantize, quantize, search
from ...converters.quantization.mlx import stem
from ...converters.quantization.scheme import OFFERED
from ...converters.quantization.widths import Choice, chosen, stored_bits
from ...converters.values import Array
from ...errors import BadInputError, UnsupportedError
from ..options import Options
from .calibration import Calibration
from .plan import Plan, plan

ROWS: Final = 256  # of each weight, by which its errors are measured


def mixed(made: Plan, calibration: Calibration | None, options: Options) -> Plan:
    """Return MADE with the schemes by which weights err least, at its request's bits per weight.

    The error of a weight is that of its outputs for the inputs of CALIBRATION, as a part of them, times
    what one such part errs in the output of the model; without one, that of its numbers. What rules or
    the class itself bind keeps its scheme, and counts.

    Raises:
        BadInputError: so few bits are not possible.
    """
    request = made.request
    free = [name for name, scheme in made.schemes.items() if is_free(made, name, scheme)]
    bound = sum(bits_of(made, name, made.schemes[name]) for name in made.schemes.keys() - set(free))
    numbers = sum(prod(made.tensors.headers[name].shape) for name in made.schemes)
    most = (request.bits_per_weight or 0) * numbers - bound
    choices = dict(choices_of(made, free, calibration, options))
    try:
        schemes = chosen(choices, most)
    except UnsupportedError as error:
        raise BadInputError(
            f"--bits-per-weight {request.bits_per_weight:g} leaves too little: {error}"
        ) from error
    found = {stem(name): scheme for name, scheme in schemes.items()}
    return plan(made.job.model, request._replace(found=found), options)


def is_free(made: Plan, name: str, scheme: Scheme) -> bool:
    """Say whether nothing but the request for the whole model gives the weight NAME its SCHEME."""
    return made.request.wish(stem(name)) is True and scheme == made.request.scheme


def bits_of(made: Plan, name: str, scheme: Scheme) -> int:
    """Return the bits that the weight NAME takes by SCHEME."""
    return stored_bits(made.tensors.headers[name].shape, scheme, made.dtype(name))


def choices_of(
    made: Plan, names: list[str], calibration: Calibration | None, options: Options
) -> Iterator[tuple[str, list[Choice]]]:
    """Yield what the weights NAMES may become, and what they err then."""
    advance = options.report("trying bits for each weight", len(names))
    left = set(names)
    for some in calibration.groups() if calibration else ():
        for name, products in calibration.products(left & set(some)).items() if calibration else ():
            yield name, list(tried(made, name, products, calibration))
            left.discard(name)
            advance(1)
    for name in [name for name in names if name in left]:
        yield name, list(tried(made, name, None, calibration))
        advance(1)


def tried(
    made: Plan, name: str, products: Array | None, calibration: Calibration | None
) -> Iterator[Choice]:
    """Yield the schemes that the weight NAME may have, with its errors for inputs with PRODUCTS."""
    whole = made.tensors.read(name)
    values, schemes = some_rows(whole), schemes_of(made, whole.shape[-1])
    importance = None if products is None else np.diagonal(products).astype(np.float32)
    gain = gain_of(name, whole, schemes[0], products, calibration) if calibration else 1.0
    for scheme in schemes:
        parts = search.encode(values, scheme, made.dtype(name), importance=importance)
        error = gain * part_of(dequantize(parts, scheme) - values, values, products)
        yield Choice(bits_of(made, name, scheme), error, scheme)


def schemes_of(made: Plan, columns: int) -> list[Scheme]:
    """Return the affine schemes that a weight with so many COLUMNS may have, as far as groups are free."""
    bits, groups = OFFERED["affine"]
    asked = made.request.group_size
    pairs = product(bits, [asked] if asked else groups)
    return [Scheme(width, group) for width, group in pairs if columns % group == 0]


def gain_of(
    name: str, whole: Array, scheme: Scheme, products: Array | None, calibration: Calibration
) -> float:
    """Return how much of the model's output a part of that of the weight NAME errs, both squared.

    The WHOLE weight goes through ``mx.quantize`` by SCHEME, and the model runs with it.
    """
    moved = dequantize(quantize(whole, scheme, "F32"), scheme)
    own = part_of(some_rows(moved - whole), some_rows(whole), products)
    return calibration.error_with(name, moved) / own if own else 1.0


def some_rows(weight: Array) -> Array:
    """Return rows spread over WEIGHT, float32 ``(rows, columns)``."""
    rows = weight.reshape(-1, weight.shape[-1])
    return rows[:: max(1, len(rows) // ROWS)].astype(np.float32)


def part_of(rest: Array, rows: Array, products: Array | None) -> float:
    """Return the squared size of what REST makes, as a part of what ROWS make."""
    return size_of(rest, products) / (size_of(rows, products) or 1)


def size_of(rows: Array, products: Array | None) -> float:
    """Return the squared size of what ROWS make of inputs with PRODUCTS; of themselves if ``None``."""
    through = rows if products is None else rows @ products
    return float(np.vdot(through, rows))
