"""Print ``docs/atlas.md`` from ``benchmarks/results/atlas.json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HEAD = """\
# Atlas

Every `model_type` that transformers {transformers} and mlx-lm {mlx-lm} both implement: a tiny random checkpoint,
no two sizes alike, matrices with a gain of {gain:g}, goes to MLX and back. Written by `python benchmarks/atlas/run.py`; do not edit.

| what | means |
|---|---|
| layout | *saved*: as `save_pretrained` writes it; *hub*: as the published checkpoints are, where that differs |
| forward | our MLX weights are, byte for byte, what the class's own `sanitize` makes of the checkpoint |
| home | MLX to Hugging Face gives the checkpoint's bytes and its config.json (*original*: with `--original`, for what the class drops) |
| trained | after every MLX weight was changed: MLX to Hugging Face to MLX gives the same bytes (*n*: all but n weights, which no checkpoint gives because the class adds or multiplies, or makes two of one tensor) |
| logits | largest error of mlx-lm on our directory against transformers in float64, relative to the largest logit, and the bar: {times:g} times the error of transformers in float32, the worst of nine runs that round otherwise, at least {floor:g} |
| long | the same for {long} tokens, past every window, chunk and number of keys that the configurations name |
| check | what `convert` says at its defaults; a row whose check contradicts the two forwards is a gap |
| greedy | 64 tokens that mlx-lm generates with its own cache after the long text: *equal* to transformers' choice in float64, ties apart; a tie is behind by less than the bar of *long*; tokens that stand for pictures or sound are never chosen, as in a text they mean nothing; *-*: the directory does not run |

A row is **repaired** if mlx-lm's class computes wrongly, and the directory that `--repair` writes loads in mlx-lm,
agrees with transformers on both texts within the same bar, and comes home byte for byte, trained or not.

A row is an **upstream** fault only if mlx-lm, given the same checkpoint without us, computes with the same
weights bit for bit, or refuses it in the same words; `tests/support/atlas/faults.py` says why, with the smallest
change that makes both agree, and a test repeats it: it fails when upstream mends the fault.

{counts}

"""
WIDTH = 300  # of a reason
TOTALS = {
    "pass": "pass",
    "repaired": "repaired",
    "upstream": "upstream fault",
    "gap": "gap",
    "unpaired": "no pair of classes",
}


def file_name(library: str) -> str:
    """Return the name of the page about LIBRARY.

    >>> file_name("mlx-lm"), file_name("mlx-vlm")
    ('atlas', 'atlas-mlx-vlm')
    """
    return "atlas" if library == "mlx-lm" else f"atlas-{library}"


def write_table(source: Path, target: Path) -> None:
    """Print the result in SOURCE as Markdown to TARGET."""
    target.write_text(page_of(json.loads(source.read_text())))


def page_of(result: Mapping[str, Any]) -> str:
    """Return the page of a result, of whichever library."""
    from weighbridge.tests.support.atlas import tower_table

    library = next(name for name in ("mlx-lm", *tower_table.ABOUT) if name in result["versions"])
    return page(result) if library == "mlx-lm" else tower_table.page(library, result)


def page(result: Mapping[str, Any]) -> str:
    """Return the page of a result."""
    from weighbridge.tests.support.atlas.logits import FLOOR, LONG, TIMES
    from weighbridge.tests.support.atlas.tiny import GAIN

    rows, numbers = result["rows"], {"floor": FLOOR, "times": TIMES, "long": LONG[1], "gain": GAIN}
    head = HEAD.format(**result["versions"], **numbers, counts="\n".join(counts(rows)))
    return head + "\n".join([*table(rows), "", *reasons(rows)]) + "\n"


def counts(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield how many rows came to what."""
    kinds = len({row["kind"] for row in rows})
    yield f"**{kinds} types, {len(rows)} rows: {totals(rows)}.**"
    whole, some = right(rows)
    yield ""
    yield f"**{len(whole)} of {kinds} types end in a directory that runs right in MLX and comes back, in every layout;"
    yield f"{len(some)} in one layout at least.** The others: {', '.join(sorted({row['kind'] for row in rows} - whole))}."
    texts = [greedy(row) for row in rows if row.get("greedy") is not None]
    yield f"Greedy texts are transformers' own in {texts.count('equal')} of {len(texts)} rows that run."


def totals(rows: list[Mapping[str, Any]]) -> str:
    """Return how many of ROWS came to what, in words."""
    found = Counter(row["status"] for row in rows)
    return ", ".join(f"{found[key]} {name}" for key, name in TOTALS.items() if found[key])


def right(rows: list[Mapping[str, Any]]) -> tuple[set[str], set[str]]:
    """Return the types whose directories run right and come back, in every layout and in one."""
    wrong = {row["kind"] for row in rows if row["status"] not in ("pass", "repaired")}
    some = {row["kind"] for row in rows if row["status"] in ("pass", "repaired")}
    return some - wrong, some


def table(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| type | layout | forward | home | trained | logits | long | check | greedy | verdict |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        cells = (row["kind"], row["layout"], short(row["forward"]), going_home(row))
        figures = (errors(row), errors(row, "long_"), both_checks(row), greedy(row))
        cells = (*cells, short(row["trained"]), *figures, TOTALS[row["status"]])
        yield f"| {' | '.join(cells)} |"


def short(text: str) -> str:
    """Return what a cell says of a step."""
    if text.startswith("exact but "):
        return text.split()[2]
    return {"exact": "exact", "": "-"}.get(text, "differs")


def going_home(row: Mapping[str, Any]) -> str:
    """Return what the cell of the way home says."""
    same = "exact" if row["config"] in ("", "exact") else "config differs"
    found = short(row["inverse"]) if same == "exact" else same
    return f"{found}, original" if "--original" in row["notes"] else found


def errors(row: Mapping[str, Any], text: str = "") -> str:
    """Return the error of the logits of the short TEXT, or the long one, and its bar."""
    error = row[f"{text}error"]
    if error is None:
        return "-" if row[f"{text}bar"] is None or not row["accepted"] else "refused"
    return f"{error:.1e} of {row[f'{text}bar']:.1e}"


def both_checks(row: Mapping[str, Any]) -> str:
    """Return what the cell of the checks says: as it is, and repaired."""
    after = checked(row.get("mended_check", ""))
    return checked(row["check"]) + (f", repaired {after}" if row["status"] == "repaired" else "")


def greedy(row: Mapping[str, Any]) -> str:
    """Return what the cell of generation says."""
    found = row.get("greedy")
    if found is None:
        return "-"
    return "equal" if found <= row["long_bar"] else f"behind by {found:.1e}"


def checked(check: str) -> str:
    """Return what the cell of a check says: its status, or that it refuses."""
    return check if check in ("PASS", "DIFFERS", "UNVERIFIED") else "refused" if check else "-"


def reasons(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why rows do not pass."""
    for status in ("repaired", "upstream", "gap", "unpaired"):
        chosen = [row for row in rows if row["status"] == status]
        if chosen:
            yield f"## {TOTALS[status].capitalize()}\n"
            yield from (f"- **{row['kind']}** ({row['layout']}): {plain(row)}" for row in chosen)
            yield ""


def plain(row: Mapping[str, Any]) -> str:
    """Return the reason of a row in Markdown."""
    why = row["why"] if len(row["why"]) <= WIDTH else row["why"][:WIDTH] + " ..."
    return why.replace("|", "\\|").replace("<", "&lt;").rstrip(".") + "."
