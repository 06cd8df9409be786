"""The process in which Core AI opens one asset: started when first asked, ended with its asset."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Final

from .....errors import BadInputError, RuntimeEndedError

CODE: Final = f"from {__package__}.inside import main; main()"
PACKAGE: Final = "coreai"
DOING: Final[Mapping[str, str]] = {  # requests of ``inside.Inside``, in words
    "constants": "reading the constants of",
    "read": "reading the constants of",
    "ports": "loading",
    "states": "loading",
    "operators": "reading",
    "narrow": "reading",
    "run": "running",
    "computed": "looking inside",
    "watched": "looking inside",
}
LOG: Final = "log"  # file of what the process prints
LIKELY: Final = {  # by signal, what ended a process that said nothing
    "SIGKILL": "perhaps there is too little memory",
    "SIGBUS": "perhaps the disk of its temporary files, TMPDIR, is full",
}


class AssetProcess:
    """Asks Core AI, in a process of its own, what is in the asset at PATH and what it computes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._talk: Connection | None = None

    def ask(self, request: str, *arguments: Any, **named: Any) -> Any:
        """Return what the method REQUEST of ``inside.Inside`` answers.

        Raises:
            ModuleNotFoundError: Core AI is not installed.
            BadInputError: Core AI refuses the asset, or what it is asked to do with it.
            RuntimeEndedError: Core AI ended its process.
        """
        talk = self._talk = self._talk or self._start()
        try:
            talk.send((request, arguments, named))
            done, answer = talk.recv()
        except (EOFError, ConnectionError):
            ended = RuntimeEndedError(self._ended(request))
            self.end()
            raise ended from None
        if not done:
            self.end()
            raise BadInputError(f"{self.path}: Core AI fails {DOING[request]} it ({answer})")
        return answer

    def _start(self) -> Connection:
        if importlib.util.find_spec(PACKAGE) is None:
            raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)
        ours, theirs = Pipe()
        folder = tempfile.TemporaryDirectory(prefix="weighbridge-", ignore_cleanup_errors=True)
        with theirs, (Path(folder.name) / LOG).open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
                [
                    *(sys.executable, "-P", "-c", CODE),
                    *(str(theirs.fileno()), str(self.path.absolute()), folder.name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._folder = folder
        self._finish = weakref.finalize(self, _end, self._process, ours, folder)
        return ours

    def end(self) -> None:
        """End the process; whoever asks again starts another one."""
        self._talk = None
        self._finish()

    def _ended(self, request: str) -> str:
        """Say how the process ended while it did REQUEST, and what it said last."""
        status = self._process.wait()
        name = signal.Signals(-status).name if status < 0 else ""
        how = f"by signal {name}" if name else f"with status {status}"
        text = (Path(self._folder.name) / LOG).read_text(errors="replace").strip()
        last = text.rpartition("\n")[2] or LIKELY.get(name, "it said nothing")
        return f"{self.path}: Core AI ended its process {how} while {DOING[request]} it ({last})"


def _end(process: subprocess.Popen[bytes], talk: Connection, folder: Any) -> None:
    """End PROCESS, which nobody can ask any more, and remove its FOLDER."""
    talk.close()
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    folder.cleanup()
