"""The process in which a library opens one file: started when first asked, ended with who asks."""

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
from typing import Any, Final, NamedTuple

from ....errors import BadInputError, RuntimeEndedError

LOG: Final = "log"  # file of what the process prints
LIKELY: Final = {  # by signal, what ended a process that said nothing
    "SIGKILL": "perhaps there is too little memory",
    "SIGBUS": "perhaps the disk of its temporary files, TMPDIR, is full",
}


class Library(NamedTuple):
    """A library that is asked in a process of its own.

    Attributes:
        name: what messages call it.
        package: what Python imports.
        code: what the process runs; it ends in a call of ``serving.serve``.
        doing: requests that it answers, in words.
    """

    name: str
    package: str
    code: str
    doing: Mapping[str, str]

    @property
    def installed(self) -> bool:
        """Whether it can be imported; it is not."""
        return importlib.util.find_spec(self.package) is not None


class Process:
    """Asks LIBRARY, in a process of its own, what is in the file at PATH and what it computes."""

    def __init__(self, path: Path, library: Library) -> None:
        self.path, self.library = path, library
        self._talk: Connection | None = None

    def ask(self, request: str, *arguments: Any, **named: Any) -> Any:
        """Return what the method REQUEST of what was opened there answers.

        Raises:
            ModuleNotFoundError: the library is not installed.
            BadInputError: it refuses the file, or what it is asked to do with it.
            RuntimeEndedError: it ended its process.
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
            name, doing = self.library.name, self.library.doing[request]
            raise BadInputError(f"{self.path}: {name} fails {doing} it ({answer})")
        return answer

    def _start(self) -> Connection:
        package = self.library.package
        if not self.library.installed:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        ours, theirs = Pipe()
        folder = tempfile.TemporaryDirectory(prefix="weighbridge-", ignore_cleanup_errors=True)
        with theirs, (Path(folder.name) / LOG).open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  (this interpreter, this package)
                [
                    *(sys.executable, "-P", "-c", self.library.code),
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
        who, doing = self.library.name, self.library.doing[request]
        return f"{self.path}: {who} ended its process {how} while {doing} it ({last})"


def _end(process: subprocess.Popen[bytes], talk: Connection, folder: Any) -> None:
    """End PROCESS, which nobody can ask any more, and remove its FOLDER."""
    talk.close()
    with contextlib.suppress(OSError):
        process.kill()
    process.wait()
    folder.cleanup()
