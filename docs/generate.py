"""Write the generated parts of the documentation: what stands between ``begin`` and ``end`` marks.

``make docs`` runs it; with ``--check`` it changes nothing and fails when a part is out of date.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import click

import weighbridge
from weighbridge.cli import main as cli
from weighbridge.converters.common.exits import Exit
from weighbridge.converters.maps.notation import parser
from weighbridge.converters.routes import ROUTES
from weighbridge.trainers.config import TrainConfig
from weighbridge.trainers.configuration import reference
from weighbridge.verbs.failures import kinds

DOCS = Path(__file__).parent
ROOT = DOCS.parent
PART = re.compile(r"(<!-- begin (?P<name>[\w-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)
WIDTH = 100


def verbs(
    command: click.Command = cli, name: str = "weighbridge", parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the path of COMMAND and of every verb below it, each with its ``--help``."""
    settings = {"terminal_width": WIDTH, **command.context_settings}
    context = click.Context(command, parent=parent, info_name=name, **settings)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            yield from verbs(command.commands[child], child, context)


def command_line() -> str:
    """Return the help of every verb, a section each."""
    return "\n\n".join(f"## {name}\n\n```text\n{help_text}\n```" for name, help_text in verbs())


def table(*rows: tuple[str, ...]) -> str:
    """Return ROWS as a Markdown table, the first one as its head."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def exit_codes() -> str:
    """Return the table of exit codes."""
    return table(("exit code", "means"), *((str(code.value), code.means) for code in Exit))


def failures() -> str:
    """Return the table of the kinds of errors under ``--json``."""
    rows = ((f"`{row.kind}`", str(row.code.value), row.means) for row in kinds())
    return table(("kind", "exit code", "means"), *rows)


def routes() -> str:
    """Return the table of routes."""
    head = ("from", "to", "verb", "bit-exact", "checked in")
    rows = ((r.source, r.target, f"`{r.verb}`", r.exact, r.checked) for r in ROUTES)
    return table(head, *rows)


def packages() -> str:
    """Return the table of packages and root modules with the first line of each docstring."""
    found = [*ROOT.glob("*.py"), *ROOT.glob("[!.]*/**/__init__.py")]
    known = ("converters", "jobs", "parity", "trainers", "verbs")
    rows = {
        name: first_line(path)
        for path in found
        for name in [path.relative_to(ROOT).as_posix().removesuffix("__init__.py")]
        if name and (path.parent == ROOT or name.startswith(tuple(f"{k}/" for k in known)))
    }
    ordered = sorted(rows.items(), key=lambda row: row[0].split("/"))
    return table(("where", "what"), *((f"`{name}`", line) for name, line in ordered))


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, as Markdown."""
    line = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
    return re.sub(r"(?::\w+:)?`+([^`]+)`+", r"`\1`", line)


def layers() -> str:
    """Return the layers that the test of imports enforces, lowest first."""
    assigned = next(
        node.value
        for node in ast.parse((ROOT / "tests" / "test_layers.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
    rows = [
        (name, ", ".join(f"`{unit}`" for unit in units))
        for name, units in ast.literal_eval(assigned)
    ]
    return "\n".join(f"{number}. {name}: {units}" for number, (name, units) in enumerate(rows, 1))


def api() -> str:
    """Return a section for every public function and class, and a table of the errors."""
    objects = {name: getattr(weighbridge, name) for name in sorted(weighbridge.__all__)}
    errors = {name: it for name, it in objects.items() if is_error(it)}
    sections = [section(name, it) for name, it in objects.items() if name not in errors]
    lines = ((f"`{name}`", inspect.getdoc(it).partition("\n")[0]) for name, it in errors.items())
    return "\n\n".join([*sections, "## Errors", table(("error", "means"), *lines)])


def is_error(thing: object) -> bool:
    """Tell whether THING is a class of exceptions."""
    return isinstance(thing, type) and issubclass(thing, Exception)


def section(name: str, thing: Callable[..., object]) -> str:
    """Return heading, signature, docstring and example of the public THING called NAME."""
    text, _, example = (inspect.getdoc(thing) or "").partition("Example::\n")
    shown = "" if isinstance(thing, type) else parameters(thing)
    code = f"\n\n```python\n{textwrap.dedent(example).strip()}\n```" if example else ""
    return f"## {name}\n\n```text\nweighbridge.{name}{shown}\n\n{text.strip()}\n```{code}"


def parameters(function: Callable[..., object]) -> str:
    """Return the parameters of FUNCTION with their defaults, in lines that are not long."""
    named = inspect.signature(function).parameters.values()
    shown = [str(it.replace(annotation=it.empty)) for it in named]
    star = next((n for n, it in enumerate(named) if it.kind is it.KEYWORD_ONLY), None)
    words = shown if star is None else [*shown[:star], "*", *shown[star:]]
    return textwrap.fill(f"({', '.join(words)})", WIDTH, subsequent_indent="    ")


def grammar() -> str:
    """Return the grammar of a map, from the docstring of its parser."""
    docstring = inspect.getdoc(parser) or ""
    block = docstring.partition("::\n\n")[2].partition("\n\n")[0]
    return f"```text\n{textwrap.dedent(block)}\n```"


def settings() -> str:
    """Return the settings of a training run with their defaults and what they are."""
    rows = (
        (f"`{it.key}`", *(text.replace("``", "`") for text in (_coded(it.default), it.meaning)))
        for it in reference.settings(TrainConfig)
    )
    return table(("setting", "default", "what it is"), *rows)


def _coded(default: str) -> str:
    return " or ".join(
        it if it == reference.REQUIRED else f"`{it}`" for it in default.split(" or ")
    )


PARTS: dict[str, Callable[[], str]] = {
    "api": api,
    "command-line": command_line,
    "exit-codes": exit_codes,
    "failures": failures,
    "grammar": grammar,
    "layers": layers,
    "packages": packages,
    "routes": routes,
    "settings": settings,
}


def fill(text: str) -> str:
    """Return TEXT with every marked part made again."""
    return PART.sub(lambda found: f"{found[1]}{PARTS[found['name']]()}\n{found[3]}", text)


def outdated() -> dict[Path, str]:
    """Return the pages whose generated parts differ from what they should be, with that."""
    pages = {path: path.read_text() for path in sorted(DOCS.glob("*.md"))}
    return {path: new for path, text in pages.items() if (new := fill(text)) != text}


def main() -> None:
    """Write the outdated pages, or name them with ``--check``."""
    pages = outdated()
    if "--check" in sys.argv[1:] and pages:
        sys.exit(f"out of date (run make docs): {', '.join(path.name for path in pages)}")
    for path, text in pages.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
