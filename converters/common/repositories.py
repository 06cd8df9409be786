"""Repositories of the Hugging Face hub by name: ``org/name`` or ``org/name@revision``, as a directory.

A path that exists is always meant itself, so an ``@`` in the name of a directory is no revision. The
revision stands in the name because one command can take several repositories, each with its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...errors import BadInputError, UnsupportedError
from .steps import step

_NAME: Final = re.compile(
    r"(?P<name>[A-Za-z0-9_][\w.-]*/[A-Za-z0-9_][\w.-]*)(?:@(?P<revision>[\w./-]+))?"
)
_SNAPSHOT: Final = re.compile(r"[^+]*models--(?P<name>[^/+]+)/snapshots/(?P<revision>[^/+]+)")
_BESIDE: Final = frozenset(
    {".json", ".txt", ".md", ".model", ".jinja", ".tiktoken", ".py", ".vocab"}
)
# Weights in the order in which they are preferred: the others are the same tensors once more.
_WEIGHTS: Final = ((".safetensors",), (".npz",), (".bin", ".pt", ".pth"))
_HEAD: Final = re.compile(r"\d+_\w+")  # the folder of a module of sentence-transformers
_ERRORS: Final = (  # by the name of the error's class, the most particular first
    ("GatedRepoError", "it is gated: accept its terms on its page, then log in (hf auth login)"),
    ("DisabledRepoError", "it was disabled by the hub"),
    ("RevisionNotFoundError", "it has no such revision"),
    ("RepositoryNotFoundError", "no directory and no public repository has this name"),
    (
        "OfflineModeIsEnabled",
        "not in the local cache, and the hub is switched off (HF_HUB_OFFLINE)",
    ),
    ("LocalEntryNotFoundError", "not in the local cache, and the hub cannot be reached"),
    ("HFValidationError", "this is no name of a repository"),
)
_CLIENTS: Final = frozenset({"huggingface_hub", "httpx", "httpx2", "httpcore", "requests"})


class Origin(NamedTuple):
    """Which commit of which repository a directory of the cache holds."""

    name: str
    revision: str


def local(spec: str) -> str:
    """Return SPEC as a path: a repository's directory in the cache, downloaded if need be.

    Of ``BASE+ADAPTER`` either may be a repository. Whatever does not look like one stays as it is.

    Raises:
        BadInputError: it looks like a repository, is no path, and is not to be had.
        UnsupportedError: the package that downloads is not installed.
    """
    if _is_path(spec):
        return spec
    base, plus, adapter = spec.rpartition("+")
    if plus:
        return f"{local(base)}+{local(adapter)}"
    found = _NAME.fullmatch(spec)
    return str(directory(found["name"], found["revision"])) if found else spec


def directory(name: str, revision: str | None = None) -> Path:
    """Return the directory in the cache with repository NAME at REVISION, ``main`` if it is ``None``.

    Raises:
        BadInputError: it is not to be had; says why and what to do.
        UnsupportedError: the package that downloads is not installed.
    """
    spec = f"{name}@{revision}" if revision else name
    try:
        return cached(name, revision) or download(name, revision)
    except ImportError:
        raise UnsupportedError(
            f"{spec}: no such file or directory; a repository of that name is downloaded with"
            " huggingface_hub: pip install huggingface_hub, or name a directory"
        ) from None
    except Exception as error:  # the client's transport raises what it likes
        if not (reason := _reason(error)):
            raise
        raise BadInputError(
            f"{spec}: no such file or directory, and not to be had from the hub: {reason}"
        ) from None


def cached(name: str, revision: str | None = None) -> Path | None:
    """Return the directory of repository NAME in the cache; ``None`` if weights are not in it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if any(folder.glob("*.json")) and _weights_of(_files(folder)) else None


def download(name: str, revision: str | None = None) -> Path:
    """Download what a model needs of repository NAME; return its directory in the cache."""
    from huggingface_hub import HfApi, snapshot_download

    step(f"downloading {name}")
    # Listing the tree of files asks five times, half a minute, of a hub that cannot be reached.
    files = HfApi().model_info(name, revision=revision).siblings or []
    patterns = wanted(it.rfilename for it in files)
    return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))


def wanted(files: Iterable[str]) -> list[str]:
    """Return those of a repository's FILES that are a model: one copy of its weights, and what is beside.

    >>> wanted(["config.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx"])
    ['config.json', 'model.safetensors']
    """
    listed = sorted(it for it in files if not Path(it).name.startswith("."))
    weights = _weights_of(listed)
    beside = [it for it in listed if Path(it).suffix in _BESIDE and _own(it)]
    unused = [f"{suffix}.index.json" for row in _WEIGHTS for suffix in row]
    kept = {f"{Path(it).suffix}.index.json" for it in weights}
    drop = tuple(set(unused) - kept)
    return sorted({*weights, *(it for it in beside if not it.endswith(drop))})


def origin(path: str | os.PathLike[str]) -> Origin | None:
    """Return which commit of which repository lies at PATH; ``None`` if it is none of the cache.

    >>> origin("/cache/models--org--name/snapshots/0a1b")
    Origin(name='org/name', revision='0a1b')
    """
    found = _SNAPSHOT.match(str(path))
    return Origin(_name(found), found["revision"]) if found else None


def _name(found: re.Match[str]) -> str:
    return found["name"].replace("--", "/", 1)


def recorded(spec: str) -> dict[str, str]:
    """Return what a manifest says of SPEC: its name, and its commit if it is of the hub.

    >>> recorded("bert")
    {'spec': 'bert'}
    """
    found = origin(spec)
    record = {"spec": _SNAPSHOT.sub(_name, spec)}
    return record | ({"revision": found.revision} if found else {})


def recorded_path(record: Mapping[str, Any]) -> str:
    """Return the path that a manifest's RECORD names; of a repository its directory in the cache."""
    spec, revision = str(record.get("spec")), record.get("revision")
    if not isinstance(revision, str) or not _NAME.fullmatch(spec):
        return spec
    try:
        return str(cached(spec, revision) or spec)
    except (ImportError, OSError, ValueError):
        return spec


def _is_path(spec: str) -> bool:
    try:
        return Path(spec).exists()
    except (OSError, ValueError):
        return False


def _own(file: str) -> bool:
    """Say whether FILE lies at the top, or in the folder of a module of sentence-transformers."""
    parts = Path(file).parts
    return len(parts) == 1 or (len(parts) == 2 and bool(_HEAD.fullmatch(parts[0])))


def _weights_of(files: Iterable[str]) -> list[str]:
    """Return the first kind of weights that there is of FILES."""
    own = [it for it in files if _own(it)]
    kinds = ([it for it in own if it.endswith(suffixes)] for suffixes in _WEIGHTS)
    return next((kind for kind in kinds if kind), [])


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _reason(error: Exception) -> str:
    """Return why a repository is not to be had; empty if ERROR is not of the hub or the network."""
    names = [base.__name__ for base in type(error).__mro__]
    known = next((reason for name, reason in _ERRORS if name in names), "")
    network = type(error).__module__.partition(".")[0] in _CLIENTS
    if known or not (network or isinstance(error, ConnectionError | TimeoutError)):
        return known
    return f"the hub cannot be reached ({str(error).partition(chr(10))[0]}); check the network"
