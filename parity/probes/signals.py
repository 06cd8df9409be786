"""Signals for probes: series, images, sound, hidden states; structured, as real ones are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...converters.models import Port
from ...converters.values import Array


class Layout(NamedTuple):
    """How the rows of a probe lie.

    Attributes:
        name: the probe's name.
        lengths: tokens in each row.
        left: of each row, whether it is padded on the left where it is shorter; none for no row.
    """

    name: str
    lengths: tuple[int, ...]
    left: tuple[bool, ...] = ()


class Context(NamedTuple):
    """What a role needs to fill its port."""

    layout: Layout
    shape: tuple[int, ...]
    texts: Iterator[list[int]]
    random: np.random.Generator
    pad: int


def _time_axis(port: Port) -> int:
    """Return the axis along which a series runs: its last named one, else its longest."""
    named = [axis for axis, size in enumerate(port.shape) if isinstance(size, str) and axis]
    if named:
        return named[-1]
    return max(range(1, len(port.shape)), key=lambda axis: int(port.shape[axis]), default=0)


def series(port: Port, context: Context) -> Array:
    """Fill a port with trend, seasons, a step and noise, each row and channel at its own scale."""
    axis = _time_axis(port)
    length, others = context.shape[axis], tuple(np.delete(context.shape, axis))
    time, draw = np.arange(length), context.random
    lines = draw.normal(size=(*others, 1))
    period = draw.integers(5, 30, (*others, 1))
    values = (
        lines * time / max(length, 1)
        + np.sin(2 * np.pi * time / period)
        + 0.5 * np.cos(4 * np.pi * time / period + lines)
        + 1.5 * (time >= draw.integers(1, max(length, 2), (*others, 1)))
        + 0.1 * draw.normal(size=(*others, length))
    )
    scale = 10.0 ** (np.arange(int(np.prod(others, dtype=int))).reshape(*others, 1) % 4 - 1)
    return np.moveaxis(values * scale, -1, axis).astype(port.dtype)


def pixels(port: Port, context: Context) -> Array:
    """Fill a port with gradients, an edge, a grating and noise, about zero mean and unit scale."""
    *_, height, width = context.shape
    rows, columns = np.mgrid[0:height, 0:width]
    draw = context.random
    planes = context.shape[:-2]
    angle = draw.uniform(0, 2 * np.pi, (*planes, 1, 1))
    across = np.cos(angle) * columns + np.sin(angle) * rows
    image = 2 * across / max(height, width) + np.sin(across * draw.uniform(0.3, 2, (*planes, 1, 1)))
    image = image + 1.5 * (across > np.median(across)) + 0.1 * draw.normal(size=context.shape)
    return np.asarray(image - image.mean(), port.dtype)


def hidden(port: Port, context: Context) -> Array:
    """Fill a port with normal noise in which some features are far larger, as in real models."""
    scale = np.exp(context.random.normal(size=context.shape[-1]))
    return np.asarray(context.random.normal(size=context.shape) * scale, port.dtype)


def waveform(port: Port, context: Context) -> Array:
    """Fill a port with sound: tones that come and go over noise, each row of zero mean and unit variance."""
    length, draw = context.shape[-1], context.random
    time, rows = np.arange(length), (*context.shape[:-1], 1)
    values = 0.1 * draw.normal(size=context.shape)
    for _ in range(5):
        pitch, phase = draw.uniform(0.005, 0.4, rows), draw.uniform(0, 2 * np.pi, rows)
        centre, spread = draw.uniform(0, length, rows), draw.uniform(0.05, 0.4, rows) * length
        swell = np.exp(-(((time - centre) / spread) ** 2))
        values = values + draw.uniform(0.2, 1, rows) * swell * np.sin(
            2 * np.pi * pitch * time + phase
        )
    values -= values.mean(axis=-1, keepdims=True)
    return np.asarray(values / values.std(axis=-1, keepdims=True), port.dtype)


def spectrogram(port: Port, context: Context) -> Array:
    """Fill a port with log-mel energies, bands on the last axis but one, as Whisper scales them.

    What is 8 decades below the loudest is cut off, then (log10 + 4) / 4 (openai/whisper, audio.py).
    """
    *_, bands, frames = context.shape
    draw = context.random
    rows = np.linspace(0, 1, bands)[:, None] * np.ones((1, frames))
    sway = np.sin(2 * np.pi * np.arange(frames) / draw.uniform(20, 200) + draw.uniform(0, 6))
    ridge = np.exp(-(((rows - 0.3 - 0.2 * sway) / 0.1) ** 2))
    power = 10 ** (4 * ridge - 3 * rows + 0.3 * draw.normal(size=context.shape))
    logs = np.log10(np.maximum(power, 1e-10))
    floor = logs.max(axis=(-1, -2), keepdims=True) - 8.0
    return np.asarray((np.maximum(logs, floor) + 4.0) / 4.0, port.dtype)
