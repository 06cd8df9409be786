"""Learn a map in a process of its own, which has a time and a memory limit and is never waited for long."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from ....errors import UnsupportedError, WeighbridgeError
from ...checkpoints.base import Header
from ...libraries import Target
from ..binding.weightmap import WeightMap
from .holding import is_made, layout_of_all
from .learning import Learned
from .messages import Answer, Request, load_answer
from .trace.reduction import Mixture

MODULE: Final = __package__
REMEMBERED: Final = 8  # maps


class LimitError(UnsupportedError):
    """A class used too much time or memory, or ended the process."""


class Limits(NamedTuple):
    """What a class may use while it is traced.

    Attributes:
        seconds: of wall-clock time, and of processor time.
        memory: bytes of address space beyond those that MLX takes itself, on CUDA many times as many.
    """

    seconds: int = 60
    memory: int = 8 << 30


LIMITS: Final = Limits()
_waiting: list[subprocess.Popen[bytes]] = []
_known: OrderedDict[tuple[object, ...], Learned] = OrderedDict()


def learn(
    target: Target,
    config: Mapping[str, Any],
    headers: Mapping[str, Header],
    limits: Limits = LIMITS,
) -> Learned:
    """Return the map from tensors with HEADERS to the class TARGET, proved; remembered in this process.

    Of a mixture of many equal experts a few are traced; the map is then held against all tensors.

    Args:
        target: the class.
        config: what the class reads, an MLX config.
        headers: the source tensors, names and shapes of another framework.
        limits: what the class may use.

    Raises:
        UnsupportedError: the class reads values, fails, uses too much time or memory, or does what
            no map can say; or the proof of a rule fails.
        BadInputError: the class does not take the config.
    """
    key = (target, json.dumps(config, sort_keys=True, default=str), tuple(headers.items()))
    if key not in _known:
        _known[key] = _learn(target, config, headers, limits)
    _known.move_to_end(key)
    while len(_known) > REMEMBERED:
        _known.popitem(last=False)
    return _known[key]


def _learn(
    target: Target, config: Mapping[str, Any], headers: Mapping[str, Header], limits: Limits
) -> Learned:
    mixture = Mixture(config, headers)
    for few, order in mixture.attempts():
        try:
            learned, parameters = ask(
                Request(target, few.config, few.headers, config, order, *limits)
            )
            layout = layout_of_all(WeightMap.parse(learned.text, "learned"), mixture, few)
        except LimitError:
            raise
        except WeighbridgeError:
            continue  # the few do not speak for all
        if is_made(layout, parameters):
            return learned._replace(layout=layout)
    return ask(Request(target, config, headers, None, None, *limits)).learned


def ask(request: Request) -> Answer:
    """Return what a process of its own learns.

    Raises:
        LimitError: the class uses too much, or ends the process.
        WeighbridgeError: what :func:`learn` says.
    """
    process = _waiting.pop() if _waiting else start()
    try:
        reply, complaints = process.communicate(request.dump(), timeout=request.seconds)
    except subprocess.TimeoutExpired:
        raise LimitError(f"{request.target}: {_too_slow(request)}") from None
    finally:
        process.kill()
        process.communicate()
    if not reply:
        raise LimitError(f"{request.target}: {_ended(process.returncode, complaints, request)}")
    return load_answer(reply)


def start() -> subprocess.Popen[bytes]:
    """Return a process that waits for a request."""
    return subprocess.Popen(  # noqa: S603  (this interpreter, this package)
        [sys.executable, "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def warm() -> None:
    """Start the process now, while what it will be asked is still being found out."""
    if not _waiting:
        _waiting.append(start())


@atexit.register
def _end() -> None:
    """End a process that nobody asked."""
    for process in _waiting:
        process.kill()
        process.communicate()


def _too_slow(request: Request) -> str:
    return f"does not finish within {request.seconds} s"


def _ended(status: int, complaints: bytes, request: Request) -> str:
    """Say how the process ended without an answer."""
    if status == -signal.SIGXCPU:
        return _too_slow(request)
    last = complaints.decode(errors="replace").strip().rpartition("\n")[2][:200]
    how = f"by signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    message = f": {last}" if last else ""
    return f"ends the process {how}{message} (memory limit: {request.memory >> 20:,} MiB)"
