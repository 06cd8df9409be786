"""Print the pages of atlases whose types take more than text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from weighbridge.tests.support.atlas.table import (
    TOTALS,
    checked,
    errors,
    going_home,
    reasons,
    short,
    totals,
)

HEAD = """\
# Atlas of {library}

{about} A tiny random
checkpoint as `save_pretrained` of transformers {transformers} writes it, matrices with a gain of {gain:g}, goes to MLX
({library} {version}) and back. Written by `python benchmarks/atlas/run.py --library {library}`; do not edit.

| what | means |
|---|---|
| home | MLX to Hugging Face gives the checkpoint's bytes and its config.json (*original*: with `--original`, for what the class drops) |
| trained | after every MLX weight was changed, those of towers too: MLX to Hugging Face to MLX gives the same bytes (*n*: all but n weights, which no checkpoint gives because the class adds or multiplies, or makes two of one tensor) |
| text | largest error of {library} on our directory against transformers in float64, relative to the largest {output}, and the bar: {times:g} times the error of transformers in float32, the worst of nine runs that round otherwise, at least {floor:g}{padding} |
| long | the same for {long} tokens, past every window; of a video, the masks that a click finds in two frames |
| picture | the same with a picture, as arrays that transformers' processor would give, through `{way}`; of a detector, scores, boxes and masks, each by its own largest |
| check | what `convert` says at its defaults: UNVERIFIED where it ran no picture through a tower, as in rows from before it could |

A row is **repaired** if the class computes wrongly, and the directory that `--repair` writes does not, and comes home byte
for byte, trained or not; its figures are those of that directory. A directory **runs right** if {library}'s own loader, strict, takes it and all that was measured is within its bar.
A row is an **upstream** fault if `tests/support/atlas/tower_faults.py` says why, and a test repeats it without us; any
other that does not run right is a **gap**, ours or upstream's, with what was seen.

{counts}

| type | home | trained | text | long | picture | check | verdict |
|---|---|---|---|---|---|---|---|
"""
ABOUT = {
    "mlx-vlm": "Every `model_type` that transformers and mlx-vlm both implement and that has a tower, or that mlx-lm does not have.",
    "mlx-embeddings": "Every `model_type` that transformers and mlx-embeddings both implement.",
}
WAYS = {
    "mlx-vlm": "get_input_embeddings` and `language_model",
    "mlx-embeddings": "the class itself",
}


def page(library: str, result: Mapping[str, Any]) -> str:
    """Return the page of the RESULT of LIBRARY."""
    from weighbridge.tests.support.atlas.logits import FLOOR, LONG, TIMES
    from weighbridge.tests.support.atlas.tiny import GAIN

    rows, embeds = result["rows"], library == "mlx-embeddings"
    head = HEAD.format(
        library=library,
        version=result["versions"][library],
        transformers=result["versions"]["transformers"],
        about=ABOUT[library],
        way=WAYS[library],
        output="hidden state" if embeds else "logit",
        padding="; of two texts the first is padded on the left, the other on the right"
        if embeds
        else "",
        counts="\n".join(counts(rows, result["types"])),
        floor=FLOOR,
        times=TIMES,
        long=LONG[1],
        gain=GAIN,
    )
    return head + "\n".join([*map(line, rows), "", *reasons(rows)]) + "\n"


def counts(rows: list[Mapping[str, Any]], types: list[str]) -> Iterator[str]:
    """Yield how many ROWS came to what, and which of TYPES have none."""
    right = [row["kind"] for row in rows if row["status"] in ("pass", "repaired")]
    left = sorted({*types} - {row["kind"] for row in rows})
    yield f"**{len(rows)} of {len(types)} types were measured: {totals(rows)}.**"
    yield ""
    yield f"**{len(right)} of {len(types)} types ({len(right) / len(types):.0%}) end in a directory that runs right and comes back.**"
    if left:
        yield f"Not measured: {', '.join(left)}."


def repaired(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ROW with the figures of the repaired directory where it is what the row comes to."""
    names = [f"{it}error" for it in ("", "long_", "seen_")] if row["status"] == "repaired" else []
    return {**row, **{name: row[f"mended_{name}"] for name in names}}


def line(row: Mapping[str, Any]) -> str:
    """Return the line of ROW."""
    figures = (errors(repaired(row), prefix) for prefix in ("", "long_", "seen_"))
    cells = (row["kind"], going_home(row), short(row["trained"]), *figures, checked(row["check"]))
    return f"| {' | '.join((*cells, TOTALS[row['status']]))} |"
