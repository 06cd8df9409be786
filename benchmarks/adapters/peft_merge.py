"""Merge with ``weighbridge merge`` and with PEFT's ``merge_and_unload``: the same float32 numbers.

    python benchmarks/adapters/peft_merge.py [CASE ...]

PEFT adds in float32; here the sum is formed in float64 and rounded once. So the two may differ by what
PEFT rounds: with u = 2^-24, at most ``(r + 3) u`` of the largest weight for an update of rank r (r
products and sums, the scale, the sum with the weight, and our own rounding), and with DoRA, whose norm of
n numbers is rounded as well, ``(2 (r + 3) + n / 2) u``. PEFT in float64 is the judge of who is nearer.
Tensors that no update changes must have the bytes of the base. No embedding is tied: of those PEFT
merges one end alone. Writes ``results/adapters_peft_merge.json``.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from weighbridge.tests.support.adapters.cases import CASES, adapted, build, save
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "adapters_peft_merge.json"
UNIT: Final = 2.0**-24  # the rounding of float32
RANK: Final = 8  # the largest of any case; the usual one is 4


def tensors(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the model in FOLDER."""
    from safetensors.numpy import load_file

    return {name: a for file in folder.glob("*.safetensors") for name, a in load_file(file).items()}


def compare(name: str) -> dict[str, Any]:
    """Merge the adapter of the case NAME both ways; return how the results differ."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        model = build(case, folder / "base")
        peft = adapted(model, case, folder / "adapter")
        exactly = copy.deepcopy(peft).double()
        save(exactly.merge_and_unload(), case, folder / "exact")
        save(peft.merge_and_unload(), case, folder / "theirs")
        try:
            merge(folder)
        except Exception as error:
            return {"case": name, "ok": False, "error": f"{type(error).__name__}: {error}"}
        parts = (tensors(folder / part) for part in ("base", "exact", "theirs", "ours"))
        return {"case": name} | figures(*parts, dora=bool(case.lora.get("use_dora")))


def merge(folder: Path) -> None:
    """Run the verb on what lies in FOLDER."""
    from weighbridge import jobs
    from weighbridge.jobs.options import Options

    jobs.merge(
        str(folder / "base"), folder / "adapter", folder / "ours", options=Options(check="none")
    )


def figures(
    base: Mapping[str, np.ndarray],
    exact: Mapping[str, np.ndarray],
    theirs: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    *,
    dora: bool,
) -> dict[str, Any]:
    """Return how far OURS is from THEIRS and both are from EXACT, in units of rounding."""
    changed = [name for name in theirs if not np.array_equal(base[name], theirs[name])]
    found: dict[str, Any] = {
        "names": ours.keys() ^ theirs.keys() == set(),
        "tensors": len(theirs),
        "changed": len(changed),
        "kept": sum(ours[n].tobytes() == base[n].tobytes() for n in base if n not in changed),
    }
    worst = {"ours_to_theirs": 0.0, "ours_to_exact": 0.0, "theirs_to_exact": 0.0, "of_bar": 0.0}
    for name in changed:
        unit = UNIT * np.abs(exact[name]).max()
        steps = 2 * (RANK + 3) + ours[name].shape[-1] / 2 if dora else RANK + 3
        distances = {
            "ours_to_theirs": np.abs(ours[name].astype(float) - theirs[name]).max() / unit,
            "ours_to_exact": np.abs(ours[name] - exact[name]).max() / unit,
            "theirs_to_exact": np.abs(theirs[name] - exact[name]).max() / unit,
        }
        distances["of_bar"] = distances["ours_to_theirs"] / steps
        worst = {key: max(value, float(distances[key])) for key, value in worst.items()}
    whole = found["names"] and found["kept"] == len(theirs) - len(changed)
    found |= {key: round(value, 3) for key, value in worst.items()}
    return found | {"ok": bool(whole and changed and worst["of_bar"] <= 1)}


def show(row: Mapping[str, Any]) -> str:
    """Return ROW as a line."""
    if "error" in row:
        return f"{row['case']:28} REFUSED: {row['error']}"
    return (
        f"{row['case']:28} {row['changed']:3} of {row['tensors']:3} changed, the rest"
        f" {'kept' if row['changed'] + row['kept'] == row['tensors'] else 'NOT KEPT'};"
        f" roundings: ours to PEFT {row['ours_to_theirs']:6.2f}, ours to exact"
        f" {row['ours_to_exact']:5.2f}, PEFT to exact {row['theirs_to_exact']:6.2f}"
        f" {'ok' if row['ok'] else 'NOT EQUAL'}"
    )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="CASE")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.cases:
        rows.append(compare(name))
        print(show(rows[-1]), flush=True)
    document = {"cases": rows, "ok": all(row["ok"] for row in rows), "machine": machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
