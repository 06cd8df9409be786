"""Single functions of the MLX libraries, run without the files around them.

``mlx_lm.utils`` imports transformers and with it PyTorch: two seconds and 240 MB for thirty lines that
decide how a model is quantized. These lines are taken from the installed file and run as they are.
"""

from __future__ import annotations
import __future__

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

from ...errors import UnsupportedError
from .packages import PACKAGES, folder, prepare, version

OWN: Final = frozenset({"mlx"})  # what these functions may import besides Python's own modules


def function(
    library: str, file: str, name: str, others: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return the function NAME of LIBRARY's source FILE, with the functions of that file it calls.

    Args:
        library: as users write it.
        file: in the library's package.
        name: of a function at the file's top level.
        others: what stands in for names of the file.

    >>> function("mlx-lm", "utils.py", "compute_bits_per_weight").__name__
    'compute_bits_per_weight'

    Raises:
        UnsupportedError: the library is not installed, or has no such function in this version.
    """
    found = code(library, file, name)
    if found is None:
        raise UnsupportedError(f"{library} {version(library)} has no {name} in {file}")
    prepare()  # relative imports inside of functions find model files without the package
    package = PACKAGES[library]
    names: dict[str, Any] = {"__name__": f"{package}.{Path(file).stem}", "__package__": package}
    exec(found, names)  # noqa: S102  (a part of an installed library)
    names.update(others or {})
    made: Callable[..., Any] = names[name]
    return made


@cache
def code(library: str, file: str, name: str) -> CodeType | None:
    """Return the imports of LIBRARY's source FILE and what NAME needs of it, compiled."""
    root = folder(library)
    if root is None:
        version(library)  # says what to install
        return None
    tree = ast.parse((root / file).read_text(encoding="utf-8"))
    own = {it.name: it for it in tree.body if isinstance(it, ast.FunctionDef)}
    if name not in own:
        return None
    needed = {name, *called(own, name)}
    kept = [it for it in tree.body if light(it) or getattr(it, "name", None) in needed]
    flags = __future__.annotations.compiler_flag  # nothing is imported for a type alone
    module = ast.Module(kept, type_ignores=[])
    made: CodeType = compile(module, str(root / file), "exec", flags, dont_inherit=True)
    return made


def light(statement: ast.stmt) -> bool:
    """Say whether STATEMENT imports from Python itself or from MLX."""
    if isinstance(statement, ast.Import):
        names = [alias.name for alias in statement.names]
    elif isinstance(statement, ast.ImportFrom) and not statement.level and statement.module:
        names = [statement.module]
    else:
        return False
    return all(it.partition(".")[0] in OWN | sys.stdlib_module_names for it in names)


def called(functions: Mapping[str, ast.FunctionDef], name: str) -> Iterator[str]:
    """Yield those of FUNCTIONS that NAME mentions, and what these do."""
    seen, left = {name}, [name]
    while left:
        used = {it.id for it in ast.walk(functions[left.pop()]) if isinstance(it, ast.Name)}
        fresh = (used & functions.keys()) - seen
        seen |= fresh
        left += fresh
        yield from fresh
