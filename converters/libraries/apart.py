"""Questions that need PyTorch, asked of a process of its own: its memory is free again afterwards.

Where this process has PyTorch already, nothing is gained by another one, and it answers itself.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final

from ... import errors
from ...errors import BadInputError, UnsupportedError, WeighbridgeError
from ..documents import ANSWER, parse_json, parse_object

SECONDS: Final = 600  # a process that takes longer will not answer
CODE: Final = f"from {__name__} import main; main()"
KINDS: Final[Mapping[str, type[WeighbridgeError]]] = {
    kind.__name__: kind for kind in (BadInputError, UnsupportedError)
}


def apart(module: str, function: str, *arguments: Any) -> Any:
    """Return what FUNCTION of MODULE makes of ARGUMENTS, all of them JSON.

    Raises:
        BadInputError: the function does.
        UnsupportedError: the function does, or the process ended without an answer.
    """
    if "torch" in sys.modules or sys.argv[0] == "-c":  # the second: this is the process asked
        return getattr(importlib.import_module(module), function)(*arguments)
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(  # noqa: S603  (this interpreter, this package)
        [sys.executable, "-P", "-c", CODE],
        input=json.dumps([module, function, arguments]),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": path, "TRANSFORMERS_VERBOSITY": "error"},
    )
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UnsupportedError(f"{function}: transformers gave no answer ({last})")
    answer = parse_object(done.stdout.rpartition("\n")[2], "transformers", ANSWER)
    if "refused" in answer:
        raise KINDS.get(answer["kind"], UnsupportedError)(answer["refused"])
    return answer["found"]


def main() -> None:
    """Answer one question on standard input, in the last line of standard output."""
    module, function, arguments = parse_json(sys.stdin.read(), "the question", ANSWER)
    try:
        found = getattr(importlib.import_module(module), function)(*arguments)
        answer = {"found": found}
    except errors.WeighbridgeError as error:
        answer = {"refused": str(error), "kind": type(error).__name__}
    sys.stdout.write("\n" + json.dumps(answer, default=str))
