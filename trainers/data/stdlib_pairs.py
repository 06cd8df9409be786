"""Real training data on every machine: docstrings of the standard library and their functions.

``python -m weighbridge.trainers.data.stdlib_pairs OUT`` writes three JSONL files. The pairs are those of
the running Python; another version gives others, so compare before and after on one machine.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import sysconfig
import textwrap
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ...converters.common.system import writing
from ...errors import TargetExistsError, WeighbridgeError

SKIPPED: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests"}  # not the library itself
    | {"idlelib", "lib2to3", "turtledemo"}  # applications that happen to lie beside it
)
MIN_WORDS: Final = 4  # a shorter first paragraph hardly describes anything
MIN_LINES: Final = 3  # one-line bodies look alike
VALIDATION: Final = 200
TEST: Final = 500

BLOCKS: Final = (ast.stmt, ast.excepthandler, ast.match_case)  # what a function can stand in
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Pair(NamedTuple):
    """A description and the function it describes; MODULE is the path inside the library."""

    query: str
    document: str
    module: str


def extract_pairs(root: Path | None = None) -> list[Pair]:
    """Return every distinct pair of the Python files under ROOT, in path order.

    Args:
        root: a folder of Python source; the standard library of the running Python if not given.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    queries: set[str] = set()
    documents: set[str] = set()
    pairs = []
    for pair in (pair for path in library_sources(root) for pair in _file_pairs(path, root)):
        if pair.query not in queries and pair.document not in documents:
            pairs.append(pair)
        queries.add(pair.query)
        documents.add(pair.document)
    return pairs


def split_pairs(
    pairs: Sequence[Pair], *, validation: int = VALIDATION, test: int = TEST
) -> dict[str, list[Pair]]:
    """Split PAIRS into test, validation and train, no module in two of them.

    Modules go in the order of the MD5 of their path: to test until it holds TEST pairs (the
    surplus of its last module is unused), to validation until it holds VALIDATION, then to train.
    """
    splits: dict[str, list[Pair]] = {"train": [], "validation": [], "test": []}
    modules: dict[str, list[Pair]] = {}
    for pair in pairs:
        modules.setdefault(pair.module, []).append(pair)
    for module in sorted(modules, key=lambda name: hashlib.md5(name.encode()).digest()):  # noqa: S324 - an order, not a secret
        full = {"test": len(splits["test"]) >= test}
        full["validation"] = len(splits["validation"]) >= validation
        split = next((name for name in ("test", "validation") if not full[name]), "train")
        splits[split] += modules[module]
    splits["test"] = splits["test"][:test]
    splits["validation"] = splits["validation"][:validation]
    return splits


def write_pairs(out: Path, root: Path | None = None) -> dict[str, int]:
    """Write OUT/train.jsonl, validation.jsonl and test.jsonl; return how many pairs each has.

    Raises:
        TargetExistsError: a file of that name holds something else.
        WeighbridgeError: the disk is full or refuses.
    """
    splits = split_pairs(extract_pairs(root))
    texts = {out / f"{name}.jsonl": _lines(pairs) for name, pairs in splits.items()}
    with writing(out):
        if kept := [str(file) for file, text in texts.items() if _differs(file, text)]:
            raise TargetExistsError(f"{', '.join(kept)}: there already; choose another folder")
        out.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text, encoding="utf-8")
    return {name: len(pairs) for name, pairs in splits.items()}


def _lines(pairs: Sequence[Pair]) -> str:
    return "".join(json.dumps(pair._asdict(), ensure_ascii=False) + "\n" for pair in pairs)


def _differs(file: Path, text: str) -> bool:
    """Say whether FILE holds something other than TEXT."""
    return os.path.lexists(file) and file.read_bytes() != text.encode()


def library_sources(root: Path) -> Iterator[Path]:
    """Yield the Python files below ROOT that are the library itself, in the order of their paths."""
    for path in sorted(root.rglob("*.py"), key=lambda path: path.relative_to(root).parts):
        if SKIPPED.isdisjoint(path.relative_to(root).parts):
            yield path


def _file_pairs(path: Path, root: Path) -> Iterator[Pair]:
    try:
        source = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in old modules
            tree = ast.parse(source)
    except (SyntaxError, ValueError, OSError):
        return
    module = path.relative_to(root).as_posix()
    lines = source.splitlines()
    for node in _statements(tree):
        if not isinstance(node, Function) or not (query := _first_paragraph(node)):
            continue
        document = _without_docstring(node, lines)
        if document.count("\n") + 1 >= MIN_LINES:
            yield Pair(query, document, module)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what ``ast.walk`` does, in its order, but for expressions: nine of ten nodes, and no functions."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        for name in node._fields:
            held = getattr(node, name)
            if isinstance(held, list) and held and isinstance(held[0], BLOCKS):
                waiting.extend(held)
        yield node


def _first_paragraph(node: Function) -> str:
    """Return the docstring's first paragraph in one line, empty where it says too little."""
    if len(node.body) < 2:  # nothing but the docstring
        return ""
    words = (ast.get_docstring(node) or "").split("\n\n")[0].split()
    return " ".join(words) if len(words) >= MIN_WORDS else ""


def _without_docstring(node: Function, lines: Sequence[str]) -> str:
    """Return the lines of the signature and of the body, less the docstring's own."""
    docstring, first = node.body[0], node.body[1]
    signature = lines[node.lineno - 1 : docstring.lineno - 1]
    body = lines[first.lineno - 1 : node.end_lineno]
    return textwrap.dedent("\n".join([*signature, *body]))


def main() -> None:
    """Write the pairs to the folder that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("Usage: python -m weighbridge.trainers.data.stdlib_pairs OUT")
    try:
        counts = write_pairs(Path(sys.argv[1]))
    except WeighbridgeError as error:
        sys.exit(f"Error: {error}")
    sys.stdout.write(" ".join(f"{name} {count}" for name, count in counts.items()) + "\n")


if __name__ == "__main__":
    main()
