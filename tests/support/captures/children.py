"""Measurements in processes of their own, which a time limit ends."""

from __future__ import annotations

import logging
import multiprocessing
import warnings
from collections.abc import Callable
from typing import Any


def _child(measure: Callable[[str], dict[str, Any]], name: str, pipe: Any) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    pipe.send(measure(name))


def in_a_child(
    measure: Callable[[str], dict[str, Any]], name: str, seconds: float
) -> dict[str, Any]:
    """Return what MEASURE finds of NAME, or that its process ended or took more than SECONDS."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(measure, name, theirs))
    child.start()
    theirs.close()
    found: dict[str, Any] = {"stage": "time", "reason": f"over {seconds:g} s"}
    try:
        if ours.poll(seconds):
            found = ours.recv()
    except EOFError:
        found = {"stage": "crash", "reason": "the process ended"}
    finally:
        child.kill()
        child.join()
    return found
