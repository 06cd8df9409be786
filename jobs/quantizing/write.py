"""A planned model written: weights read in blocks, encoded by several threads, hashed on their way."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np

from ...converters.checkpoints import Checkpoint, Writer
from ...converters.checkpoints.formats.ranges import chunks
from ...converters.checkpoints.workers import Workers
from ...converters.common.dtypes import NUMPY
from ...converters.maps import Execution
from ...converters.models.config_fields import read_config
from ...converters.planning.config import CONFIG
from ...converters.planning.manifest import facts_of
from ...converters.quantization import calibrated
from ...converters.quantization.affine import BLOCK
from ...converters.quantization.mlx import stem
from ...converters.values import Array
from ...errors import UnsupportedError
from ..converting import beside_weights, forget_side_files
from ..options import Options
from ..pipeline import Written
from . import figures
from .calibration import Calibration
from .figures import Moved, moved
from .methods import METHODS
from .plan import Plan, config_of

FORMAT: Final = {"format": "mlx"}  # what safetensors files of MLX say of themselves
EVERY: Final = 16  # of a large weight one group of so many in one block of so many is measured
LARGE: Final = 1 << 20  # numbers


def write(
    plan: Plan, folder: Path, options: Options, calibration: Calibration | None = None
) -> Written:
    """Write PLAN into FOLDER: the weights, for CALIBRATION if any, the config and what lies beside them."""
    forget_side_files(folder)
    quantizer = Quantizer(plan, folder, options)
    if calibration:
        quantizer.calibrate(calibration)
    hashes, errors = quantizer.run()
    job = plan.job
    facts = facts_of(job.model, job.plan, Execution(hashes, {}, {}), "mlx", job.table)
    facts |= beside_weights(job, folder, options)
    config = config_of(plan, read_config(folder))
    (folder / CONFIG).write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
    share = f"one number in {EVERY * EVERY} of large weights"
    facts["quantized"] = figures.facts_of(plan.sizes, plan.schemes, errors, share)
    if calibration:
        facts["calibration"] = calibration.facts()
    return Written(facts, plan.lines())


class Quantizer:
    """Weights of PLAN on their way into FOLDER."""

    def __init__(self, plan: Plan, folder: Path, options: Options) -> None:
        self.plan, self.encode = plan, METHODS[plan.request.method]
        size = options.max_shard_size
        self.writer = Writer(folder, plan.layout, metadata=FORMAT, max_shard_size=size)
        self._advance = options.report("quantizing the weights", plan.sizes[0])
        self._counting, self.errors = Lock(), dict[str, Moved]()
        self.workers = Workers()

    def run(self) -> tuple[dict[str, str], dict[str, Moved]]:
        """Write all tensors; return their hashes, and how far those lie that were measured."""
        headers = self.plan.tensors.headers
        computed = {
            n for step in self.plan.job.plan.steps if not step.copies for n in step.target_names
        }
        left = [name for name in headers if name not in self.errors]
        names = sorted(left, key=lambda name: -headers[name].nbytes)  # no thread is left alone
        free = [name for name in names if name not in computed]
        own = [name for name in left if name in computed]  # MLX computes in one thread, in order
        self.workers.each(free, self.put, own=own)
        return self.writer.close(), {name: self.errors[name] for name in self.plan.schemes}

    def calibrate(self, calibration: Calibration) -> None:
        """Write the weights whose inputs CALIBRATION sums up, some layers at a time."""
        for names in calibration.groups():
            for name, products in calibration.products(names).items():
                self.put_for(name, products)
                calibration.done.add(name)
                self._advance(self.plan.tensors.headers[name].nbytes)

    def put_for(self, name: str, products: Array) -> None:
        """Write the tensors that store NAME, its codes chosen for inputs with PRODUCTS."""
        values, scheme = self.plan.tensors.read(name), self.plan.schemes[name]
        try:
            parts = calibrated.encode(values, products, scheme, self.plan.dtype(name))
        except UnsupportedError as error:
            raise UnsupportedError(f"{name}: {error}") from error
        for part, array in parts.items():
            full = f"{stem(name)}.{part}"
            if full not in self.writer.finished:
                self.writer.write(full, chunks(array))
        self.errors[name] = moved(values, parts, scheme)

    def put(self, name: str) -> None:
        """Write the tensors that store NAME, but for those that an interrupted run has written."""
        stream = self.counted(self.plan.tensors.stream(name))
        if name in self.plan.schemes:
            self.quantize(name, stream)
        elif name not in self.writer.finished:
            self.writer.write(name, stream)

    def counted(self, stream: Iterable[memoryview]) -> Iterator[memoryview]:
        """Yield what STREAM yields and report its bytes; stop when another thread has failed."""
        for piece in stream:
            self.workers.check()
            yield piece
            with self._counting:
                self._advance(piece.nbytes)

    def quantize(self, name: str, stream: Iterable[memoryview]) -> None:
        """Write the codes of NAME as they are made, then its scales and biases."""
        beside: dict[str, list[Array]] = {}
        codes = self.codes(name, stream, beside)
        if name in self.writer.finished:
            for _ in codes:  # for what lies beside them
                pass
        else:
            self.writer.write(name, (piece for words in codes for piece in chunks(words)))
        for part, arrays in beside.items():
            full = f"{stem(name)}.{part}"
            if full not in self.writer.finished:
                self.writer.write(full, (piece for array in arrays for piece in chunks(array)))

    def codes(
        self, name: str, stream: Iterable[memoryview], beside: dict[str, list[Array]]
    ) -> Iterator[Array]:
        """Yield the codes of NAME, a block at a time; BESIDE gets its other parts."""
        scheme = self.plan.schemes[name]
        every = EVERY if prod(self.plan.tensors.headers[name].shape) > LARGE else 1
        found = Moved()
        for number, values in enumerate(groups(self.plan.tensors, name, stream, scheme.group_size)):
            parts = self.encoded(name, values)
            if number % every == 0:
                some = {part: array[::every] for part, array in parts.items()}
                found += moved(values[::every], some, scheme)
            words = parts.pop("weight")
            for part, array in parts.items():
                beside.setdefault(part, []).append(array)
            yield words
        self.errors[name] = found

    def encoded(self, name: str, values: Array) -> dict[str, Array]:
        """Return the parts of VALUES, groups of the weight NAME."""
        try:
            return self.encode(values, self.plan.schemes[name], self.plan.dtype(name))
        except UnsupportedError as error:
            raise UnsupportedError(f"{name}: {error}") from error


def groups(
    tensors: Checkpoint, name: str, stream: Iterable[memoryview], size: int
) -> Iterator[Array]:
    """Yield the numbers of NAME, whose bytes STREAM yields, ``(groups, SIZE)``, a block at a time.

    A group never spans two rows, so that rows need not be told from each other.
    """
    dtype = NUMPY[tensors.headers[name].dtype]
    for block in blocks(stream, BLOCK * dtype.itemsize):
        yield np.frombuffer(block, dtype).reshape(-1, size)


def blocks(stream: Iterable[memoryview], size: int) -> Iterator[memoryview]:
    """Yield the bytes of STREAM in blocks of SIZE, the last one maybe shorter.

    What is yielded is valid until the next one is asked for; bytes are copied only where a block lies
    in two pieces.

    >>> [bytes(block) for block in blocks([memoryview(b"abcde"), memoryview(b"fg")], 2)]
    [b'ab', b'cd', b'ef', b'g']
    """
    rest = bytearray()
    for piece in stream:
        start = min(-len(rest) % size, len(piece)) if rest else 0
        rest += piece[:start]
        if len(rest) == size:
            yield memoryview(rest)
            rest = bytearray()
        whole = start + (len(piece) - start) // size * size
        for at in range(start, whole, size):
            yield piece[at : at + size]
        rest += piece[whole:]
    if rest:
        yield memoryview(rest)
