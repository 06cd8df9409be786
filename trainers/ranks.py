"""Ranks: processes that a launcher started together, each of which takes its part of every update.

``mlx.launch``, ``mpirun`` and ``torchrun`` say by environment variables which process is which. A run of
N ranks with batches of B examples is a run of one process with batches of N times B: the same order of
the data, each rank its rows of every batch, the mean of all gradients. Only the first rank writes.
"""

from __future__ import annotations

import atexit
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, TypeVar
from zlib import crc32

import numpy as np

from ..converters.values import Array
from ..errors import (
    BadInputError,
    MismatchError,
    StoppedElsewhereError,
    WeighbridgeError,
)
from .config import TrainConfig
from .launchers import LAUNCHERS, launched, refuse
from .peers import Peers, leave
from .runs.interrupts import TrainingInterrupted

Value = TypeVar("Value")
HEADER: Final = 16  # bytes: a length, its checksum, and that of what follows
INLINE: Final = 240  # bytes that each rank can say in one sum; longer things take a second one
PATIENCE: Final = timedelta(days=7)  # for the other ranks: a hanging update is the watchdog's
RANDOM: Final = "random"  # what of a state is each rank's own
BETWEEN: Final = 0x9E3779B97F4A7C15  # the seeds of two ranks; odd


class Stopped(NamedTuple):
    """What a rank says to the others when it cannot go on."""

    text: str


class Ranks:
    """One process alone, and what a group of them has in common.

    Args:
        rank: which process this is.
        size: how many there are.
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self._lost = False

    def exchange(self, value: Value) -> list[Value]:
        """Return the VALUE of every rank; each has to call this as often as the others.

        Raises:
            StoppedElsewhereError: another rank cannot go on.
        """
        if self.size == 1:
            return [value]
        found = [pickle.loads(it) for it in self._gathered(pickle.dumps(value))]  # noqa: S301 - our own
        for rank, it in enumerate(found):
            if isinstance(it, Stopped):
                raise StoppedElsewhereError(f"rank {rank} stopped: {it.text}")
        return found

    def first(self, make: Callable[[], Value]) -> Value:
        """Return on every rank what MAKE returns on the first, which alone calls it."""
        made: Any = make() if self.rank == 0 else None
        first: Value = self.exchange(made)[0]
        return first

    def write(self, do: Callable[[], object]) -> None:
        """Call DO on the first rank: it alone writes."""
        if self.rank == 0:
            do()

    def average(self, arrays: list[Any], weight: float) -> list[Any]:
        """Return the mean over all ranks of ARRAYS, those of each counting WEIGHT."""
        if self.size == 1:
            return arrays
        total = sum(self.exchange(weight))
        share = weight / total if total else 1 / self.size
        return self._sums([it * share if share else self._zeros(it) for it in arrays])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let no rank go on, or end, where another one fails in the block: all raise then.

        Raises:
            StoppedElsewhereError: on every rank but the first that failed.
        """
        try:
            yield
        except StoppedElsewhereError:
            raise
        except (Exception, TrainingInterrupted) as error:
            self._tell(error)
            raise
        self.exchange(None)

    def _tell(self, error: BaseException) -> None:
        """Tell the others that this rank cannot go on; a rank before it that cannot either says why."""
        if self.size == 1 or self._lost:
            return
        text = pickle.dumps(Stopped(str(error)))
        found = [pickle.loads(it) for it in self._gathered(text)]  # noqa: S301 - our own
        if any(isinstance(it, Stopped) for it in found[: self.rank]):
            raise StoppedElsewhereError(str(error)) from error

    @contextmanager
    def folder(self, out: Path, *, made: bool) -> Iterator[Path]:
        """Yield OUT on the first rank, and on the others a folder, MADE or not, removed after the block."""
        if self.rank == 0:
            yield out
            return
        with TemporaryDirectory(prefix=f"rank-{self.rank}-") as folder:
            own = Path(folder) / "run"
            if made:
                own.mkdir()
            yield own

    def whole(self, config: TrainConfig) -> TrainConfig:
        """Return CONFIG with the batches of all ranks together."""
        return config.model_copy(update={"batch_size": config.batch_size * self.size})

    def part(self, config: TrainConfig) -> slice:
        """Return which rows of such a batch are this rank's: all where texts are embedded in chunks."""
        return slice(None, None, 1) if config.grad_cache else slice(self.rank, None, self.size)

    def seed(self, seed: int) -> int:
        """Return the seed of this rank's random numbers, on the first rank SEED."""
        return (seed + self.rank * BETWEEN) % 2**63

    def gathered(self, random: Array) -> Array:
        """Return the RANDOM state of every rank, one after the other."""
        return np.concatenate(self.exchange(random))

    def own(self, state: dict[str, Array]) -> dict[str, Array]:
        """Return STATE with the random state of this rank alone."""
        held = state.get(RANDOM)
        if held is None or held.ndim != 1 or len(held) % self.size:
            return state
        return state | {RANDOM: held.reshape(self.size, -1)[self.rank]}

    def require_alike(self, facts: Mapping[str, Any]) -> None:
        """Refuse to train where FACTS differ between ranks.

        Raises:
            MismatchError: lists those that do.
        """
        every = self.exchange(dict(facts))
        problems = [
            f"{name}: not on rank {rank} what it is on rank 0"
            for rank, them in enumerate(every)
            for name in facts
            if them[name] != every[0][name]
        ]
        if problems:
            raise MismatchError("the ranks have not the same to train", problems)

    def _gathered(self, own: bytes) -> list[bytes]:
        """Return what every rank has; ranks have it in common as sums, in which all else is zero.

        MLX's ring may return sums without the part of a rank that is gone, so each part has checksums.
        """
        block = np.zeros((self.size, HEADER + INLINE), np.uint8)
        start = _header(own) + own[:INLINE]
        block[self.rank, : len(start)] = np.frombuffer(start, np.uint8)
        rows = [row.tobytes() for row in self._total(block)]
        self._require_arrived(it[8:12] == _checksum(it[:8]) for it in rows)
        lengths = [int.from_bytes(row[:8], "little") for row in rows]
        if max(lengths) <= INLINE:
            found = [row[HEADER : HEADER + n] for row, n in zip(rows, lengths, strict=True)]
        else:
            ends = np.cumsum(lengths)
            whole = np.zeros(ends[-1], np.uint8)
            whole[ends[self.rank] - len(own) : ends[self.rank]] = np.frombuffer(own, np.uint8)
            found = [it.tobytes() for it in np.split(self._total(whole), ends[:-1])]
        both = zip(found, rows, strict=True)
        self._require_arrived(_checksum(it) == row[12:HEADER] for it, row in both)
        return found

    def _require_arrived(self, each: Iterable[bool]) -> None:
        with self._connected():
            if not all(each):
                raise RuntimeError("what it said did not arrive")

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """Say that a rank is gone where a framework says that a connection is; the first rank prints it."""
        try:
            yield
        except RuntimeError as error:
            self._lost = True
            kind = StoppedElsewhereError if self.rank else WeighbridgeError
            raise kind(_gone(error)) from error

    def _total(self, array: Array) -> Array:
        """Return the sum of ARRAY over all ranks."""
        raise NotImplementedError

    def _sums(self, arrays: list[Any]) -> list[Any]:
        """Return the sums over all ranks of arrays of the backend."""
        raise NotImplementedError

    def _zeros(self, array: Any) -> Any:
        """Return zeros like an array of the backend."""
        raise NotImplementedError


ALONE: Final = Ranks()


class MlxRanks(Ranks):
    """Ranks that MLX connects: by its ring, MPI, JACCL or NCCL."""

    def __init__(self) -> None:
        import mlx.core as mx

        self._mx, self._peers = mx, Peers(self._leave)
        with self._peers.joining():
            self._group = mx.distributed.init(strict=True)
        super().__init__(self._group.rank(), self._group.size())

    def _total(self, array: Array) -> Array:
        with self._connected(), self._peers.waiting():
            total = self._mx.distributed.all_sum(self._mx.array(array), group=self._group)
            self._mx.eval(total)
        return np.array(total)

    def _sums(self, arrays: list[Any]) -> list[Any]:
        from mlx.nn import average_gradients

        with self._connected(), self._peers.waiting():
            means = average_gradients([it * self.size for it in arrays], self._group)
            self._mx.eval(means)
        return list(means)

    def _zeros(self, array: Any) -> Any:
        return self._mx.zeros_like(array)

    def _leave(self) -> None:
        leave("" if self.rank else _gone("its connection is closed"))


class TorchRanks(Ranks):
    """Ranks that PyTorch connects: by gloo on the CPU, by NCCL on NVIDIA's GPUs."""

    def __init__(self) -> None:
        import torch

        self._torch, self._group = torch, torch.distributed
        if not self._group.is_initialized():
            gpu = torch.cuda.is_available() and self._group.is_nccl_available()
            self._group.init_process_group(
                "cpu:gloo,cuda:nccl" if gpu else "gloo", timeout=PATIENCE
            )
            atexit.register(self._disconnect)
        super().__init__(self._group.get_rank(), self._group.get_world_size())

    def _disconnect(self) -> None:
        """End gloo's threads: at Python's end they may hold tensors still, and abort the process."""
        if not self._lost and self._group.is_initialized():
            self._group.destroy_process_group()

    def _total(self, array: Array) -> Array:
        tensor = self._torch.from_numpy(array.copy())
        self._sums([tensor])
        return tensor.numpy()

    def _sums(self, arrays: list[Any]) -> list[Any]:
        with self._connected():
            for work in [self._group.all_reduce(it, async_op=True) for it in arrays]:
                work.wait()
        return arrays

    def _zeros(self, array: Any) -> Any:
        return self._torch.zeros_like(array)


def _checksum(text: bytes) -> bytes:
    return crc32(text).to_bytes(4, "little")


def _header(text: bytes) -> bytes:
    length = len(text).to_bytes(8, "little")
    return length + _checksum(length) + _checksum(text)


def _gone(reason: object) -> str:
    return (
        f"another rank has ended ({reason}); the last checkpoint stays: start the same ranks again"
        " with --resume"
    )


@cache
def ranks_of(backend: str) -> Ranks:
    """Return the ranks that were started with this process for BACKEND, joined; else this one alone.

    Raises:
        UnsupportedError: they were started by a launcher that BACKEND does not know.
        BadInputError: they do not find each other.
    """
    found = launched()
    if found is None:
        return ALONE
    launcher, rank = found
    if launcher.backend != backend:
        fitting = dict.fromkeys(it.name for it in LAUNCHERS if it.backend == backend)
        refuse(
            rank,
            f"{launcher.name} started this, and --backend {backend} trains on several ranks with"
            f" {' or '.join(fitting)}",
        )
    try:
        joined = MlxRanks() if backend == "mlx" else TorchRanks()
    except (RuntimeError, ValueError) as error:
        raise BadInputError(
            f"rank {rank} finds no other ranks ({error}); check what {launcher.name} was told of hosts and ports"
        ) from error
    return joined if joined.size > 1 else ALONE


def require_divisible(
    config: TrainConfig, ranks: Ranks, objective: Any, written: Sequence[str]
) -> None:
    """Refuse what several ranks would not train as one process does.

    Args:
        config: the run.
        ranks: that share it.
        objective: of the task.
        written: buffers that the model writes in train mode.

    Raises:
        MismatchError: with every reason, and what to set.
    """
    if ranks.size == 1:
        return
    problems = []
    if config.batch_tokens:
        problems.append("batch_tokens: a rank might be left without examples; set batch_size")
    if config.dynamic_batch:
        problems.append("dynamic_batch: every rank would choose sizes of its own; set batch_size")
    if objective.make_from_embeddings and not config.grad_cache:
        problems.append(
            f"objective {config.objective.name}: its loss compares all texts of a batch, and a rank has"
            f" only its own; --set grad_cache={config.batch_size} brings their embeddings together"
        )
    if written:
        problems.append(
            f"{written[0]}: batch statistics would be those of a rank's own examples; set mode: eval"
        )
    if problems:
        raise MismatchError(f"this cannot be trained on {ranks.size} ranks", problems)
