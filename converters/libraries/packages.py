"""Model files of the MLX libraries, imported without the packages around them.

``import mlx_lm`` runs its generator, tokenizers and transformers: seconds and hundreds of megabytes
that reading a map does not need; ``mlx_vlm`` and ``mlx_embeddings`` also need packages that a
converter has no use for. So the packages are put into ``sys.modules`` unexecuted. Whoever asks one
for more than its submodules gets it executed then, in place: there is one module, never a stub.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
import threading
from functools import cache
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from ...errors import UnsupportedError

# Library as users write it -> its Python package. They import each other's model files.
PACKAGES: Final = {
    "mlx-lm": "mlx_lm",
    "mlx-embeddings": "mlx_embeddings",
    "mlx-vlm": "mlx_vlm",
}
# Older versions are refused untried: their sources may not be in the form that is read here.
LEAST: Final = {"mlx-lm": (0, 32), "mlx-embeddings": (0, 1), "mlx-vlm": (0, 7)}
ASKED: Final = frozenset(
    {"__all__", "__version__", "__author__"}
)  # dunder names worth executing for
LOCK: Final = threading.RLock()


class Unexecuted(ModuleType):
    """A package whose ``__init__`` runs when an attribute is asked for that only it can give."""

    def __getattr__(self, name: str) -> Any:
        """Execute the package, then return its attribute NAME."""
        if name.startswith("__") and name not in ASKED:  # inspect, warnings and pickle ask these
            raise AttributeError(name)
        with LOCK:
            if type(self) is Unexecuted:
                execute(self)
        return getattr(self, name)


def execute(package: ModuleType) -> None:
    """Run the ``__init__`` of PACKAGE in place; one that fails stays unexecuted."""
    package.__class__ = ModuleType
    try:
        package.__spec__.loader.exec_module(package)  # type: ignore[union-attr]
    except BaseException:
        package.__class__ = Unexecuted
        raise


def prepare() -> None:
    """Put the libraries that are installed and not imported yet into ``sys.modules``, unexecuted."""
    with LOCK:
        for name in PACKAGES.values():
            spec = None if name in sys.modules else importlib.util.find_spec(name)
            if spec is not None:
                package = importlib.util.module_from_spec(spec)
                package.__class__ = Unexecuted
                sys.modules[name] = package


def module(name: str) -> ModuleType:
    """Return the module NAME of a library, imported without the package's ``__init__``.

    >>> module("mlx_lm.models.llama").Model.__name__
    'Model'

    Raises:
        UnsupportedError: it needs a package that is not installed, or cannot be imported.
    """
    prepare()
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = sys.modules[name.partition(".")[0]]
        if type(package) is Unexecuted and "circular import" in str(error):
            execute(package)  # its parts import each other, which only its own order allows
            return module(name)
        missing = error.name if error.name and not error.name.startswith(name) else None
        hint = f"; it needs the package {missing}, which is not installed" if missing else ""
        raise UnsupportedError(f"{name} cannot be imported: {error}{hint}") from error
    except SystemExit as error:  # a model file that exits where its own dependency is missing
        raise UnsupportedError(
            f"{name} ends the process on import; a package it needs is missing"
        ) from error


@cache
def folder(library: str) -> Path | None:
    """Return the folder of LIBRARY's package, ``None`` where it is not installed."""
    spec = importlib.util.find_spec(PACKAGES[library])
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


@cache
def version(library: str) -> str:
    """Return the installed version of LIBRARY, as its distribution says.

    Raises:
        UnsupportedError: it is not installed, or too old.
    """
    try:
        found = installed_version(library)
    except PackageNotFoundError as error:
        raise UnsupportedError(f"{library} is not installed: pip install {library}") from error
    numbers = tuple(int(it) for it in re.findall(r"\d+", found)[:2])
    if numbers < (least := LEAST.get(library, ())):
        wanted = f"{library}>={'.'.join(map(str, least))}"
        raise UnsupportedError(f"{library} {found} is too old: pip install '{wanted}'")
    return found


@cache
def constant(library: str, file: str, name: str) -> Any:
    """Return the literal that LIBRARY's source FILE assigns to NAME, ``{}`` where there is none.

    The source is parsed, not run.

    >>> constant("mlx-lm", "utils.py", "MODEL_REMAPPING")["mistral"]
    'llama'
    """
    root = folder(library)
    found = assigned(root / file, name) if root else None
    return ast.literal_eval(found) if found else {}


def assigned(source: Path, name: str) -> ast.expr | None:
    """Return what the file SOURCE assigns to NAME, ``None`` if nothing; the rest is not parsed."""
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    found = re.search(rf"^{name} = (.+?)^(?=[\w@]|\Z)", text, re.MULTILINE | re.DOTALL)
    return ast.parse(found[1], mode="eval").body if found else None
