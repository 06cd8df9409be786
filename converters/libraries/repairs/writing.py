"""The text of a ``model.py``: parts put before the class of an MLX library that they mend."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from ..packages import prepare
from .catalogue import Repair, chosen

# Library -> the file that its config.json names, whose name says which library's class it mends.
MODEL_FILES: Final = {
    "mlx-lm": "model.py",
    "mlx-vlm": "model_mlx_vlm.py",
    "mlx-embeddings": "model_mlx_embeddings.py",
}
PARTS: Final = Path(__file__).parent / "parts"
HEAD: Final = '''"""{module}, mended by Weighbridge: {names}."""

{imports}
{parts}


{arguments}


class Model({bases}, library.Model):
    """The library's class, mended."""
{settings}
'''
ARGUMENTS: Final = "@dataclass\nclass {name}(library.{name}):\n"
# What has the fields of a language model, by library.
READERS: Final = {"mlx-lm": "ModelArgs", "mlx-vlm": "TextConfig", "mlx-embeddings": "ModelArgs"}
WHOLE: Final = "ModelConfig"  # what has those of the whole model in mlx-vlm
# The loaders of the others look for the classes of towers beside the model's.
BESIDE: Final = "def __getattr__(name):\n    return getattr(library, name)"


def text(module: str, kind: str, names: Collection[str]) -> str:
    """Return the ``model.py`` that mends MODULE for model type KIND by the parts NAMES.

    >>> "class Activation" in text("mlx_lm.models.gpt_neox", "gpt_neox", ["activation"])
    True
    """
    library = library_of(module)
    repairs = chosen(library, kind, names)
    parts = [_part(repair) for repair in repairs]
    read = {READERS[library]: [it.fields for it in repairs], WHOLE: [it.whole for it in repairs]}
    fields = {name: own for name, rows in read.items() if (own := _fields(rows))}
    known = {k: v for it in repairs for k, v in it.settings.items()}
    settings = _indented(f"{k} = {v!r}" for k, v in known.items())
    return (
        HEAD.format(
            module=module,
            names=", ".join(repair.part for repair in repairs),
            imports=_imports(module, [*parts, DATACLASS] if fields else parts),
            parts="\n\n\n".join([parts[0].code, *(part.code.strip() for part in parts[1:])]),
            arguments=_arguments(library, fields),
            bases=", ".join(repair.part.title().replace("_", "") for repair in repairs),
            settings=f"\n{settings}" if settings else "",
        ).rstrip()
        + "\n"
    )


def library_of(module: str) -> str:
    """Return the library that MODULE is of.

    >>> library_of("mlx_vlm.models.glm4v")
    'mlx-vlm'
    """
    return module.partition(".")[0].replace("_", "-")


def _fields(rows: Iterable[Mapping[str, object]]) -> str:
    """Return the lines of a dataclass that has what ROWS name."""
    return _indented(f"{key}: object = {value!r}" for row in rows for key, value in row.items())


def _arguments(library: str, fields: Mapping[str, str]) -> str:
    """Return what reads the configuration in the place of LIBRARY's own, with FIELDS by class, and the rest."""
    own = [ARGUMENTS.format(name=it) + lines for it, lines in fields.items()]
    if not own and library != "mlx-vlm":
        own = [f"{READERS[library]} = library.{READERS[library]}"]
    return "\n\n\n".join([*own, *([] if library == "mlx-lm" else [BESIDE])])


class Part(NamedTuple):
    """A file of ``parts/``: what it imports, and its code."""

    imports: Sequence[ast.Import | ast.ImportFrom]
    code: str


def file_of(repair: Repair) -> Path:
    """Return the file of the part that REPAIR names."""
    return next(PARTS.rglob(f"{repair.part}.py"))


def _part(repair: Repair) -> Part:
    """Return the part that REPAIR names."""
    source = file_of(repair).read_text(encoding="utf-8")
    nodes = ast.parse(source).body
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    last = imports[-1] if imports else nodes[0]
    lines = source.splitlines()[last.end_lineno :]
    return Part(imports, "\n".join(lines).rstrip())


def _imports(module: str, parts: Sequence[Part]) -> str:
    """Return what PARTS and the MODULE that they mend are imported with, Python's own first."""
    package, _, file = module.rpartition(".")
    found: dict[str, set[str]] = {package: {f"{file} as library"}}
    for node in (it for part in parts for it in part.imports):
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        found.setdefault(module, set()).update(ast.unparse(it) for it in node.names)
    plain = [f"import {name}" for name in sorted(found.pop("", ()))]
    lines = [f"from {name} import {', '.join(sorted(found[name]))}" for name in sorted(found)]
    own = [line for line in lines if line.split()[1] in sys.stdlib_module_names]
    rest = [*plain, *(line for line in lines if line not in own)]
    return "\n\n".join("\n".join(kind) for kind in (own, rest) if kind)


def _indented(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines).replace("'", '"')


DATACLASS: Final = Part([ast.ImportFrom("dataclasses", [ast.alias("dataclass")], 0)], "")


def loaded(module: str, kind: str, names: Collection[str]) -> ModuleType:
    """Return the module that ``text`` is; no file of a model's directory is read for it."""
    prepare()
    made = ModuleType(f"{__package__}.{kind}")
    file = MODEL_FILES[library_of(module)]
    code = compile(text(module, kind, names), file, "exec", dont_inherit=True)
    exec(code, vars(made))  # noqa: S102  # our own text
    return made
