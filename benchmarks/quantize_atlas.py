"""Every type of the atlas quantized to 4 bits by ``weighbridge quantize`` and by mlx-lm: the same bytes?

    python benchmarks/quantize_atlas.py [TYPE ...]

Each tiny PyTorch checkpoint is quantized with ``--method mlx``, converted on the way, and by mlx-lm's
own loader and ``quantize_model``; where mlx-lm does not read the checkpoint, both quantize what the
product converts of it. Names, dtypes, shapes and bytes of all tensors are compared, and
the ``quantization`` of ``config.json``. Writes ``results/quantize_atlas.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from quantized_routes import BITS, GROUP, WIDE, convert, wider

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.tests.support.atlas import rows, sizes, tiny

RESULT: Final = Path(__file__).parent / "results" / "quantize_atlas.json"
BATCH: Final = 8  # types to a process


def ours(source: Path, target: Path) -> None:
    """Quantize SOURCE into TARGET by the product's own way, unchecked."""
    from weighbridge.jobs.api import quantize

    quantize(source, target, bits=BITS, group_size=GROUP, method="mlx", check="none")


def theirs(source: Path, target: Path) -> None:
    """Quantize SOURCE into TARGET as ``mlx_lm.convert -q`` does."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(source, lazy=True)
    with contextlib.redirect_stdout(io.StringIO()):
        model, config = quantize_model(model, config, GROUP, BITS)
    save_model(target, model)
    save_config(config, target / "config.json")


def difference(made: Path, expected: Path) -> str:
    """Say how the directory MADE differs from the one that is EXPECTED; empty where it does not."""
    mine, other = open_checkpoint(made), open_checkpoint(expected)
    if apart := mine.headers.keys() ^ other.headers.keys():
        return f"{len(apart)} tensors have other names, {min(apart)} first"
    for name, header in other.headers.items():
        if mine.headers[name] != header:
            return f"{name} is {mine.headers[name]}, not {header}"
        if mine.read(name).tobytes() != other.read(name).tobytes():
            return f"{name} has other bytes"
    configs = [json.loads((it / "config.json").read_text()) for it in (made, expected)]
    same = configs[0].get("quantization") == configs[1].get("quantization")
    return "" if same else "config.json has another quantization"


def measure(kind: str, folder: Path) -> dict[str, Any]:
    """Return what becomes of KIND on both ways, in FOLDER."""
    row: dict[str, Any] = {"kind": kind}
    step = "make"
    try:
        tiny.make(kind, folder / "hub", tiny.layouts(kind)[0], gain=tiny.GAIN)
        source, row["source"] = folder / "hub", "PyTorch"
        try:
            theirs(source, folder / "theirs")
        except (Exception, SystemExit):
            step = "convert"
            source, row["source"] = convert("mlx", source, folder / "mlx", source), "MLX"
            step = "mlx-lm"
            theirs(source, folder / "theirs")
        step = "weighbridge"
        ours(source, folder / "ours")
        row["result"] = difference(folder / "ours", folder / "theirs") or "the same bytes"
        row["weights"] = sum(
            it.endswith(".scales") for it in open_checkpoint(folder / "ours").headers
        )
    except (Exception, SystemExit) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        row["result"] = f"{step}: {reason}".replace(f"{folder}/", "")[:300]
        row["problems"] = [
            problem[:200].replace(f"{folder}/", "")
            for problem in getattr(error, "problems", ())[:2]
        ]
    return row


def here(kinds: list[str]) -> None:
    """Print a JSON line for each of KINDS."""
    sizes.TEXT.update(WIDE)
    sizes.OVERRIDES.update(wider(sizes.OVERRIDES))
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(kind, Path(folder))), flush=True)


def measured(kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of KINDS, a few to a process: some end it."""
    for at in range(0, len(kinds), BATCH):
        some = kinds[at : at + BATCH]
        command = [sys.executable, __file__, "--here", *some]
        done = subprocess.run(
            command, env=os.environ | rows.ENVIRONMENT, capture_output=True, text=True, check=False
        )
        yield from (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))


def main(kinds: list[str]) -> None:
    """Print a row for each of KINDS, and how often each result came; keep both."""
    counts: Counter[str] = Counter()
    found = []
    for row in measured(kinds):
        print(json.dumps(row), flush=True)
        found.append(row)
        first = row["result"].partition(":")[0]
        known = ("make", "convert", "mlx-lm", "weighbridge")
        counts[first if first in known else row["result"][:60]] += 1
    for what, count in counts.most_common():
        print(f"{count:4} {what}")
    document = {"counts": dict(counts.most_common()), "rows": found}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(sys.argv[2:])
    else:
        main([name for name in sys.argv[1:] or tiny.types() if name not in rows.UNPAIRED["mlx-lm"]])
