"""What happens in the process of a library: requests are answered until nobody asks any more."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def serve(opening: Callable[[str, str], Any]) -> None:
    """Answer requests by the methods of what OPENING makes of a path and of a folder for its files."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks says when it is enough
    handle, path, folder = sys.argv[1:4]
    talk = Connection(int(handle))
    opened: Any = None
    while True:
        try:
            name, arguments, named = talk.recv()
        except EOFError:
            shutil.rmtree(folder, ignore_errors=True)  # who asked may have been killed
            os._exit(0)  # the threads of the library would be waited for
        try:
            opened = opened or opening(path, folder)
            answer = (True, getattr(opened, name)(*arguments, **named))
        except Exception as error:  # a library need not have kinds of its own
            traceback.print_exc()
            answer = (False, f"{type(error).__name__}: {error}")
        talk.send(answer)
