"""Sums of products by letters (``torch.einsum``), written so that every format computes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

REST = "..."


def einsum(equation: str, operands: list[Tensor], **_: Any) -> Any:
    """Return what EQUATION makes of OPERANDS: diagonals first, products of elements where no matrix is.

    Left as it is, is a product of matrices of two operands; so are three operands and more.
    """
    letters = spelled(equation, operands)
    if letters is None or len(operands) > 2:
        return NotImplemented
    *given, result = letters
    taken = [diagonal(*it) for it in zip(operands, given, strict=True)]
    given, operands = [it[1] for it in taken], [it[0] for it in taken]
    own = [{*one} - {*other} for one, other in zip(given, given[::-1], strict=True)]
    if len(given) == 2 and all(it & {*result} for it in own):
        again = f"{','.join(given)}->{result}"
        return (
            NotImplemented if again == equation.replace(" ", "") else torch.einsum(again, operands)
        )
    order = result + "".join(sorted({*"".join(given)} - {*result}))
    placed = [in_place(*it, order) for it in zip(operands, given, strict=True)]
    found = placed[0] if len(placed) == 1 else placed[0] * placed[1]
    summed = [*range(len(result), len(order))]
    return found.sum(summed) if summed else found


def spelled(equation: str, operands: list[Tensor]) -> list[str] | None:
    """Return the letters of each of OPERANDS and of the result, those in place of dots too; ``None`` if none is named.

    >>> spelled("...d,de->...e", [torch.ones(2, 3, 4), torch.ones(4, 5)])
    ['ABd', 'de', 'ABe']
    """
    left, arrow, result = equation.replace(" ", "").partition("->")
    given = left.split(",")
    if not arrow or len(given) != len(operands):
        return None
    counts = [
        it.ndim - len(part.replace(REST, "")) for it, part in zip(operands, given, strict=True)
    ]
    most = max((n for n, part in zip(counts, given, strict=True) if REST in part), default=0)
    spare = [it for it in map(chr, range(ord("A"), ord("Z") + 1)) if it not in equation][:most]
    dots = [spare[most - count :] if count else [] for count in (*counts, most)]
    parts = zip((*given, result), dots, strict=True)
    return [part.replace(REST, "".join(own)) for part, own in parts]


def diagonal(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Return X with one axis for each of its LETTERS that are there twice, at the end, and the letters then."""
    for letter in {it for it in letters if letters.count(it) == 2}:
        first, second = letters.index(letter), letters.rindex(letter)
        x = torch.diagonal(x, 0, first, second)
        letters = letters.replace(letter, "") + letter
    return x, letters


def in_place(x: Tensor, letters: str, order: str) -> Tensor:
    """Return X, whose axes have LETTERS, with an axis for each letter in ORDER, of size 1 where it has none."""
    x = x.permute([letters.index(it) for it in order if it in letters])
    for axis, letter in enumerate(order):
        x = x if letter in letters else x.unsqueeze(axis)
    return x
