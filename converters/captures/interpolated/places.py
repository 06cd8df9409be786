"""Pictures sampled at places that are computed, of gathers and products: where a format has no ``grid_sample``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor

GRID: Final = torch.ops.aten.affine_grid_generator.default
BILINEAR: Final = 0  # torch has numbers for them
NEAREST: Final = 1
ZEROS: Final = 0
BORDER: Final = 1


def sampled(x: Tensor, grid: Tensor, mode: int, padding: int, aligned: bool) -> Any:
    """Return X, shape (batch, channels, height, width), at the places of GRID, shape (batch, rows, columns, 2).

    As ``torch.nn.functional.grid_sample`` has it. Bicubic sampling and sizes that vary are left.
    """
    height, width = x.shape[-2:]
    if mode not in (BILINEAR, NEAREST) or not all(isinstance(it, int) for it in (height, width)):
        return NotImplemented
    across = _places(grid[..., 0], width, padding, aligned)
    down = _places(grid[..., 1], height, padding, aligned)
    taps = [*_taps(down, mode)], [*_taps(across, mode)]
    found: Any = 0
    for row, high in taps[0]:
        for column, wide in taps[1]:
            inside = _within(row, height) * _within(column, width) if padding == ZEROS else 1
            weight = high * wide * inside
            if isinstance(weight, Tensor):
                weight = weight.unsqueeze(1)
            found = found + _gathered(x, row, column) * weight
    return found


def affine_grid(theta: Tensor, size: list[int], aligned: bool) -> Any:
    """Return the grid by which THETA, shape (batch, 2, 3), moves pictures of SIZE, as ``functional.affine_grid`` has it."""
    if len(size) != 4 or not all(isinstance(it, int) for it in size[2:]):
        return NotImplemented
    height, width = size[2:]
    down, across, shift = (theta[:, None, None, :, at] for at in (1, 0, 2))
    x = _pixels(width, aligned, theta).reshape(1, width, 1)
    y = _pixels(height, aligned, theta).reshape(height, 1, 1)
    return x * across + y * down + shift


def grids(graph: Any) -> Iterator[list[Any]]:
    """Yield where the pixels of affine grids in GRAPH lie, rows and columns, as arithmetic."""
    for node in graph.graph.nodes:
        if node.target is GRID and len(node.args[1]) == 4:
            *_, height, width = node.args[1]
            for size, shape in ((height, (float(height), 1.0)), (width, (1.0, float(width)))):
                yield ["spread", 1.0 if node.args[2] else (size - 1) / size, *shape]


def _pixels(size: int, aligned: bool, like: Tensor) -> Tensor:
    """Return where SIZE pixels lie from -1 to 1, each number rounded once."""
    whole = torch.arange(1 - size, size, 2, device=like.device, dtype=like.dtype)
    return whole / (max(size - 1, 1) if aligned else size)


def _places(at: Tensor, size: int, padding: int, aligned: bool) -> Tensor:
    """Return places from -1 to 1 as ones among SIZE elements, brought inside as PADDING has it."""
    found = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
    if padding == ZEROS:
        return found
    if padding != BORDER:
        low, span = (0.0, float(size - 1)) if aligned else (-0.5, float(size))
        away = torch.abs(found - low)
        times = torch.floor(away / span) if span else torch.zeros_like(away)
        rest = away - times * span
        odd = times - 2 * torch.floor(times / 2)
        found = torch.where(odd > 0, span - rest, rest) + low if span else torch.zeros_like(away)
    return torch.clamp(found, 0, size - 1)


def _taps(at: Tensor, mode: int) -> Iterator[tuple[Tensor, Any]]:
    """Yield the elements that a place AT takes, and how much of each."""
    if mode == NEAREST:
        yield torch.round(at), 1
        return
    first = torch.floor(at)
    share = at - first
    yield first, 1 - share
    yield first + 1, share


def _within(at: Tensor, size: int) -> Tensor:
    """Return 1 where AT is one of SIZE elements, else 0."""
    return ((at >= 0) & (at < size)).to(at.dtype)


def _gathered(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the elements of X in ROW and COLUMN, those beyond its edges from the nearest."""
    height, width = x.shape[-2:]
    rows, columns = (
        torch.clamp(it, 0, size - 1).to(torch.int64)
        for it, size in ((row, height), (column, width))
    )
    places = (rows * width + columns).flatten(1).unsqueeze(1).expand(-1, x.shape[1], -1)
    found = torch.gather(x.flatten(2), 2, places)
    return found.reshape(*found.shape[:2], *row.shape[1:])
