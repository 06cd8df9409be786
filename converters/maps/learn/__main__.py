"""The process that learns: a request on standard input, an answer on standard output.

What the class prints goes to standard error, so that it cannot be taken for an answer.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from contextlib import suppress

import psutil

from ....errors import UnsupportedError, WeighbridgeError
from .learning import trace
from .messages import Answer, Request, dump_error


def main() -> None:
    """Answer one request."""
    import mlx.core as mx  # while the request is still being written

    mx.set_default_device(mx.Device(mx.cpu))
    gc.disable()  # this process ends before garbage could matter
    answers = os.dup(1)
    os.dup2(2, 1)
    request = Request.load(sys.stdin.buffer.read())
    limit(request)
    try:
        reply = answer(request).dump()
    except WeighbridgeError as error:
        reply = dump_error(error)
    except MemoryError:
        most = f"takes more memory than a map may need ({request.memory >> 20:,} MiB)"
        reply = dump_error(UnsupportedError(f"{request.target}: {most}"))
    with os.fdopen(answers, "wb") as stream:
        stream.write(reply)
    sys.stderr.flush()
    os._exit(0)  # whatever the class left behind, threads for instance, need not be waited for


def answer(request: Request) -> Answer:
    """Learn what REQUEST asks for."""
    target = request.target
    learned = trace(target, request.config, request.headers, request.order)
    parameters = {} if request.asked is None else target.parameters(request.asked)
    return Answer(learned, parameters)


def limit(request: Request) -> None:
    """Hold this process to the time and the memory that REQUEST grants."""
    taken = psutil.Process().memory_info().vms
    for kind, most in (
        (resource.RLIMIT_CPU, request.seconds),
        (resource.RLIMIT_AS, taken + request.memory),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # a system may not know a limit, or have a lower one
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


if __name__ == "__main__":
    main()
