"""Weights from PyTorch to ONNX and Core ML and back, family by family: are they what they were?

    python benchmarks/round_trips.py [--write] [--column COLUMN] [NAME ...]

A family is exported as a user does, its file converted back with ``--like`` and a directory without weights,
and every tensor compared with the source's: ``exact``, ``rounded`` to float16 once, ``near``, computed back
from what an exporter folded, by at most two units of the last digit of float32 (of float16 in a file in half
precision), ``by product``, other numbers than the source's, of which torch makes the same weight to the bit of
the file's precision, or ``zeros``, since no output needs it. Each is done with the record that an export of ours leaves, and without it. What came back from
ONNX goes on to MLX where a class reads it, and is compared with what the source becomes there. Results of
single families are added to ``results/round_trips.json``; ``--write`` puts the table into ``docs/onnx.md``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from click.testing import CliRunner

from weighbridge.benchmarks.captures import cpu_steps  # noqa: F401  (MLX's BLAS)
from weighbridge.converters.common.exits import Exit
from weighbridge.tests.support.coreml import modules
from weighbridge.tests.support.coreml.families import MODULES
from weighbridge.tests.support.coreml.models import MODELS, MORE, PACKAGED, make
from weighbridge.tests.support.coreml.records import without_record

RESULT: Final = Path(__file__).with_name("results") / "round_trips.json"
PAGE: Final = Path(__file__).parent.parent / "docs" / "onnx.md"
VISION: Final = ("DINOv2", "SigLIP", "Swin", "Segformer", "MobileNet")  # made by functions
NAMES: Final = (*MODELS, *MORE, *PACKAGED, *VISION)
FILES: Final = {"onnx": "m.onnx", "coreml": "m.mlpackage"}
# What is asked of an export, by the column of the table.
WAYS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "ONNX": ("onnx", ()),
    "ONNX, fp16": ("onnx", ("--precision", "fp16")),
    "Core ML, float32": ("coreml", ("--precision", "float32")),
    "Core ML, mixed": ("coreml", ("--precision", "mixed")),
}
PLAIN: Final = {
    "ONNX": "ONNX without record",
    "Core ML, float32": "Core ML without record",
    "Core ML, mixed": "Core ML, mixed, without record",
}
NORMED: Final = re.compile(r"(.*parametrizations\.\w+\.original)([01])")  # torch's weight norm
# What an exporter makes of tensors, by the ends of their names.
MADE: Final = {"A_log": lambda w: -np.exp(w.astype(np.float32))}
ONWARD: Final = "on to MLX"
COLUMNS: Final = (*WAYS, *PLAIN.values(), ONWARD)
UNITS: Final = 2  # of the last digit
Row = dict[str, Any]


def command(*words: object) -> tuple[int, str]:
    """Run the command of WORDS; return its exit code and output.

    Raises:
        SystemExit: it was interrupted or ended, which says nothing of the family.
    """
    from weighbridge.cli import main

    result = CliRunner().invoke(main, [str(it) for it in words])
    if result.exit_code in (Exit.INTERRUPTED, Exit.TERMINATED):
        raise SystemExit(result.exit_code)
    return result.exit_code, result.output


def source(name: str, folder: Path) -> str:
    """Write the model of the family NAME to FOLDER; return what an export is given.

    Of types whose inputs a directory does not tell, that is a function.
    """
    if name not in VISION:
        return str(make(name, folder))
    module, _ = getattr(modules, MODULES[name])()
    module.save_pretrained(folder)
    return f"{modules.__name__}:{MODULES[name]}"


def tried(name: str, folder: Path, columns: Collection[str] = COLUMNS) -> Row:
    """Return what becomes of the family NAME, by those COLUMNS of the table."""
    model, row = source(name, folder / "source"), Row()
    shutil.copytree(
        folder / "source", folder / "like", ignore=shutil.ignore_patterns("*.safetensors")
    )
    for column, (form, options) in WAYS.items():
        asked = [it for it in (column, PLAIN.get(column, column)) if it in columns]
        if not asked and not (column == "ONNX" and ONWARD in columns):
            continue
        file = folder / column / FILES[form]
        file.parent.mkdir()
        code, said = command("export", form, model, file, "--check", "none", *options)
        for again in dict.fromkeys(asked or [column]):
            if again != column and not code:
                without_record(file)
            row[again] = {"refused": last(said)} if code else back(form, file, folder, again)
    if ONWARD in columns:
        row[ONWARD] = onward(folder)
    return row


def back(form: str, file: Path, folder: Path, column: str) -> Row:
    """Convert FILE of FORM back, and say what its tensors are beside those of the source in FOLDER."""
    target = folder / f"back {column}"
    words = ("--like", folder / "like", "--check", "none")
    code, said = command("convert", f"{form}-to-torch", file, target, *words)
    if code:
        return {"refused": last(said)}
    half = "fp16" in column or "mixed" in column
    return beside(tensors(folder / "source"), tensors(target), half=half)


def onward(folder: Path) -> Row:
    """Say what MLX gets of what came back from ONNX, beside what it gets of the source."""
    came, made = folder / "back ONNX", []
    if not came.exists():
        return {"refused": "nothing came back"}
    for path in (folder / "source", came):
        target = folder / f"{path.name} in MLX"
        code, said = command("convert", "torch-to-mlx", path, target, "--check", "none")
        if code:
            return {"refused": last(said)}
        made.append(tensors(target))
    return beside(*made)


def tensors(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors in FOLDER."""
    from safetensors.numpy import load_file

    return {key: it for file in folder.glob("*.safetensors") for key, it in load_file(file).items()}


def beside(was: Mapping[str, Any], now: Mapping[str, Any], *, half: bool = False) -> Row:
    """Say what the tensors NOW are beside what they WERE; HALF of a file in float16."""
    both = was.keys() & now.keys()
    kinds = {name: kind(name, was[name], now[name], half=half) for name in both}
    for name in [name for name, it in kinds.items() if it == "differs"]:
        if (pair := pair_of(name, kinds)) and product(was, pair, half=half) == product(
            now, pair, half=half
        ):
            kinds[name] = "by product"
    return {
        **Counter(sorted(kinds.values())),
        "differ": sorted(name for name, it in kinds.items() if it == "differs"),
        "absent": sorted(was.keys() - now.keys()),
        "unknown": sorted(now.keys() - was.keys()),
    }


def kind(name: str, was: Any, now: Any, *, half: bool) -> str:
    """Say what NOW, the tensor NAME, is beside WAS."""
    if was.shape != now.shape:
        return "differs"
    if np.array_equal(was, now.astype(was.dtype)):
        return "exact"
    if half and np.array_equal(was.astype(np.float16).astype(now.dtype), now):
        return "rounded"
    if not now.any():
        return "zeros"
    made = MADE.get(name.rpartition(".")[2])
    if made and np.array_equal(*(made(it).astype("f2" if half else "f4") for it in (was, now))):
        return "by value"
    unit = np.finfo(np.float16 if half else np.float32).eps
    scale = max(1.0, float(np.abs(was).max(initial=0)))  # of one plus a weight, as in Gemma's norms
    gap = float(np.abs(was.astype(np.float64) - now).max(initial=0))
    return "near" if gap <= UNITS * unit * scale else "differs"


def pair_of(name: str, known: Collection[str]) -> tuple[str, str] | None:
    """Return the norms and the direction that NAME is one of, if both are among those KNOWN."""
    found = NORMED.fullmatch(name)
    pair = (f"{found[1]}0", f"{found[1]}1") if found else None
    return pair if pair and {*pair} <= {*known} else None


def product(arrays: Mapping[str, Any], pair: tuple[str, str], *, half: bool) -> bytes:
    """Return the bytes of what torch makes of a PAIR of ARRAYS in float64, rounded to float32, or in HALF to float16.

    Directions whose norms are already those asked for are the product as they are, in float32 too.
    """
    import torch

    g, v = (torch.from_numpy(arrays[name].astype(np.float32)) for name in pair)
    axis = next((at for at, size in enumerate(g.shape) if size > 1), 0)
    made = torch._weight_norm(v, g, axis)
    if not torch.equal(
        made, v
    ):  # of a model as it was trained: what is exact, as an export computes it
        made = torch._weight_norm(v.double(), g.double(), axis).float()
    return (made.half() if half else made).numpy().tobytes()


def last(said: str) -> str:
    """Return the line of SAID that tells what is wrong, and the first of its problems."""
    lines = said.strip().splitlines() or [""]
    at = next((n for n, line in enumerate(lines) if line.startswith("Error")), len(lines) - 1)
    plain = " ".join(" ".join(lines[at : at + 2]).split())
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+/", "", plain)[:300]


def cell(found: Row) -> str:
    """Print what was FOUND as a cell of a table."""
    if "refused" in found:
        return "-"
    counts = [
        f"{found[it]} {it}"
        for it in ("exact", "rounded", "near", "by value", "by product", "zeros", "differs")
        if it in found
    ]
    rest = [f"{len(found[it])} {it}" for it in ("absent", "unknown") if found[it]]
    return ", ".join((*counts, *rest))


def cells(row: Row) -> list[str]:
    """Return the cells of ROW."""
    return [cell(row[it]) if it in row else "not tried" for it in COLUMNS]


def table(rows: Mapping[str, Row]) -> Iterator[str]:
    """Yield the lines of the table of ROWS."""
    yield f"| family | {' | '.join(COLUMNS)} |"
    yield "|---" * (len(COLUMNS) + 1) + "|"
    for name, row in rows.items():
        yield f"| {name} | {' | '.join(cells(row))} |"


def main() -> None:
    """Try families, keep the results, and print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--column", choices=COLUMNS, action="append", help="only this one")
    parser.add_argument("--write", action="store_true", help="the table of all results, no trial")
    arguments = parser.parse_args()
    rows = json.loads(RESULT.read_text()) if RESULT.is_file() else {}
    for name in () if arguments.write else arguments.names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found = tried(name, Path(folder), arguments.column or COLUMNS)
        known = {**rows.get(name, {}), **found}
        rows[name] = {it: known[it] for it in COLUMNS if it in known}
        print(f"| {name} | {' | '.join(cells(rows[name]))} |", flush=True)
        for column, found in rows[name].items():
            if told := found.get("refused") or found["differ"] or found["unknown"]:
                print(f"    {column}: {told}", flush=True)
        ordered = {it: rows[it] for it in NAMES if it in rows}
        RESULT.write_text(json.dumps(ordered, indent=1) + "\n")
    if arguments.write:
        marked = r"(<!-- round trips -->\n).*?(<!-- end of round trips -->)"
        text = "\n".join(table(rows))
        page = re.sub(marked, rf"\g<1>\n{text}\n\n\g<2>", PAGE.read_text(), flags=re.DOTALL)
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
