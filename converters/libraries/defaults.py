"""What transformers' config class fills in, asked of a small process where PyTorch is not loaded yet."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from ...errors import BadInputError, UnsupportedError
from ..common import cache as answers
from ..documents import ANSWER, parse_object
from .defaults_child import attributes
from .floats import document_of

CHILD: Final = Path(__file__).with_name("defaults_child.py")
SECONDS: Final = 120
KIND: Final = "config-2"  # of an answer that is kept; count on when what is found out changes
_early: dict[str, subprocess.Popen[str]] = {}  # asked, and not yet wanted


def config_object(config: Mapping[str, Any]) -> Any:
    """Return an object with the attributes of transformers' config for CONFIG.

    Where PyTorch is loaded anyway it is that config itself.

    Raises:
        BadInputError: the class of configs does not take it.
        UnsupportedError: transformers does not know the ``model_type``, or is not installed.
    """
    if "torch" in sys.modules:
        from .transformers import transformers_config

        return transformers_config(config)
    return as_object(answered(document_of(config)))


def with_defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return CONFIG with what transformers' class fills in; nothing that a property makes of it.

    Raises:
        BadInputError: the class of configs does not take it.
        UnsupportedError: transformers does not know the ``model_type``, or is not installed.
    """
    if "torch" not in sys.modules:
        return _own(answered(document_of(config)))
    from .transformers import transformers_config

    return _own(attributes(transformers_config(config)))


def _own(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of FOUND, attributes as the child reports them, without derived ones.

    >>> _own({"a": {"value": 1}, "b": {"value": 1, "derived": True}, "t": {"config": {"c": {"value": 2}}}})
    {'a': 1, 't': {'c': 2}}
    """
    return {
        name: _own(given["config"]) if "config" in given else given["value"]
        for name, given in found.items()
        if "derived" not in given
    }


def takes_long(config: Mapping[str, Any]) -> bool:
    """Say whether nobody has asked for the config object of CONFIG before on this machine."""
    return "torch" not in sys.modules and answers.recall(KIND, key_of(document_of(config))) is None


def key_of(document: str) -> list[str]:
    """Return what the answer to DOCUMENT depends on; fails as ``transformers_version`` does."""
    return [document, transformers_version()]


@cache
def transformers_version() -> str:
    """Return the version of transformers.

    Raises:
        UnsupportedError: it is not installed.
    """
    try:
        return metadata.version("transformers")
    except metadata.PackageNotFoundError:
        raise UnsupportedError(
            "transformers is not installed: pip install 'weighbridge[torch]'"
        ) from None


@lru_cache(maxsize=16)
def answered(document: str) -> dict[str, Any]:
    """Return the answer of the child process on the config in DOCUMENT, or an earlier one."""
    key = key_of(document)
    found = answers.recall(KIND, key)
    if found is None:
        found = checked(asked(document))
        answers.keep(KIND, key, found)
    return dict(found)


def ask_early(config: Mapping[str, Any]) -> None:
    """Ask for the config object of CONFIG now, to have it later."""
    document = document_of(config)
    if document not in _early:
        _early[document] = started(document)


def started(document: str) -> subprocess.Popen[str]:
    """Return a child process that was given DOCUMENT."""
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    child = subprocess.Popen(  # noqa: S603  (this interpreter, a file of this package)
        [sys.executable, "-P", str(CHILD)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **quiet, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if child.stdin:
        child.stdin.write(document)
        child.stdin.close()
        child.stdin = None
    return child


@atexit.register
def _end() -> None:
    """End what nobody wanted to know."""
    for child in _early.values():
        child.kill()
        child.communicate()


def asked(document: str) -> dict[str, Any]:
    """Return the answer of the child process on the config in DOCUMENT."""
    child = _early.pop(document, None) or started(document)
    try:
        output, complaints = child.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        complaints = f"no answer within {SECONDS} s"
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        last = complaints.strip().rpartition("\n")[2]
        raise UnsupportedError(f"transformers cannot be asked for its defaults: {last}")
    return parse_object(output, "transformers", ANSWER)


def checked(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was FOUND, unless it is a refusal."""
    if "refused" in found:
        if found["refused"]:
            raise BadInputError(f"{found['refused']}. Correct config.json")
        raise UnsupportedError("transformers does not know this model_type")
    return found


def as_object(attributes: Mapping[str, Any]) -> SimpleNamespace:
    """Return ATTRIBUTES, as the child reports them, as an object.

    >>> as_object({"a": {"value": 1}, "text_config": {"config": {"b": {"value": 2}}}}).text_config.b
    2
    """
    return SimpleNamespace(
        **{
            name: as_object(given["config"]) if "config" in given else given["value"]
            for name, given in attributes.items()
        }
    )
