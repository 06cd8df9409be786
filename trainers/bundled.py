"""What the bundled recipes name, by set: texts, prices and a model that are made on this machine.

A value such as ``bundled:train.jsonl`` or ``bundled:market/train.npz`` in a recipe is a file here. Nothing is
downloaded. A set is made when first needed and kept in the cache, so that a run can be resumed on the same bytes.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from ..converters.common import cache
from ..converters.common.system import writing
from ..errors import BadInputError

PREFIX: Final = "bundled:"
EDITION: Final = 1  # of what is made here
FIRST: Final = "docstrings"  # the set that need not be named
SETS: Final[Mapping[str, str]] = {  # set -> the function that writes it to a folder
    "docstrings": "bundles.docstrings:write_docstrings",
    "late": "bundles.docstrings:write_late",
    "packages": "bundles.docstrings:write_packages",
    "library": "bundles.library:write_library",
    "market": "data.indicators.generated:write_market",
    "timeseries": "bundles.timeseries:write_timeseries",
}


def located(value: str) -> str:
    """Return the path that VALUE names if it begins with ``bundled:``, else VALUE itself."""
    if not value.startswith(PREFIX):
        return value
    path = value.removeprefix(PREFIX)
    name, _, rest = path.partition("/")
    return str(folder(name) / rest if name in SETS else folder() / path)


def folder(name: str = FIRST) -> Path:
    """Return where the set NAME is, or will be: in the cache.

    Raises:
        BadInputError: nothing is to be kept in a cache.
    """
    kept = cache.folder()
    if kept is None:
        raise BadInputError(
            f"what is bundled is kept in the cache, which {cache.VARIABLE} turns off: "
            f"let it name a folder, or give a recipe of your own (--recipe FILE)"
        )
    return kept.absolute() / f"{name}-{EDITION}-python-{platform.python_version()}"


def provide(paths: Iterable[str | Path | None]) -> None:
    """Make the sets that one of PATHS is in and that are not there yet.

    Raises:
        WeighbridgeError: the disk is full or refuses.
    """
    if cache.folder() is None:
        return  # nothing of theirs was located
    wanted = [Path(path) for path in paths if path]
    for name in SETS:
        target = folder(name)
        if not target.is_dir() and any(path.is_relative_to(target) for path in wanted):
            with writing(target):
                _make(name, target)


def _make(name: str, target: Path) -> None:
    """Make the set NAME beside TARGET, and rename it when it is whole."""
    module, _, function = SETS[name].partition(":")
    write = getattr(import_module(f".{module}", __package__), function)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    try:
        write(draft)
        draft.replace(target)
    except OSError:
        if not target.is_dir():  # another process may have made the same
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
