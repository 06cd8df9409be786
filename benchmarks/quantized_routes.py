"""Every type of the atlas, quantized by mlx-lm, home to PyTorch and back: are the values those of MLX?

    python benchmarks/quantized_routes.py [TYPE ...]

Each tiny model goes to MLX, is quantized there by mlx-lm to 4 bits in groups of 32, and then

- home dense (``--dequantize fp32``) and to MLX again,
- home as compressed-tensors and to MLX again, where all weights must be ``scale * (code - zero)`` of the same
  codes, and no further from MLX's values than was stated.

The oracle is ``mx.dequantize`` on what mlx-lm's own loader holds of the quantized directory. Of all types, writes
``results/quantized_routes.json``.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np

from weighbridge.errors import WeighbridgeError
from weighbridge.tests.support.atlas import rows, sizes, tiny

RESULT: Final = Path(__file__).parent / "results" / "quantized_routes.json"
GROUP, BITS = 32, 4
# Sizes that groups divide, in place of those of the atlas.
WIDE: Final = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 128),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size"), 192),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 128,
    "moe_shared_expert_intermediate_size": 128,
    "shared_intermediate_size": 128,
    "dim_model_base": 32,
    "head_dim": 32,
    "kv_lora_rank": 32,
    "q_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 48,
    "v_head_dim": 32,
}
LIKEWISE: Final = {48: 128, 12: 32, 192: 512, 24: 64, 96: 256}  # what follows from the hidden size
BATCH: Final = 4  # types to a process
WORKERS: Final = os.cpu_count() or 1
Values = dict[str, np.ndarray[Any, np.dtype[np.float32]]]


def by_mlx(folder: Path) -> tuple[Values, Values]:
    """Return what mlx-lm's loader holds of FOLDER, dense in float32, and the step of what is quantized."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    found, steps = {}, {}
    hidden: set[str] = set()
    for path, layer in model.named_modules():
        if "scales" in layer:
            parts = [layer[it].astype(mx.float32) for it in ("scales", "biases")]
            dense = mx.dequantize(
                layer.weight, *parts, group_size=layer.group_size, bits=layer.bits, dtype=mx.float32
            )
            found[f"{path}.weight"] = np.array(dense)
            step = np.repeat(np.abs(np.array(parts[0])), layer.group_size, axis=-1)
            steps[f"{path}.weight"] = step
            hidden |= {f"{path}.{it}" for it in ("weight", "scales", "biases")}
    for name, array in tree_flatten(model.parameters()):
        if name not in hidden:
            found[name] = np.array(array.astype(mx.float32))
    return found, steps


def quantized(source: Path, target: Path) -> Path:
    """Write SOURCE, quantized by mlx-lm, at TARGET."""
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    model, config = load_model(source)
    with contextlib.redirect_stdout(io.StringIO()):
        model, config = quantize_model(model, config, GROUP, BITS)
    save_model(target, model)
    save_config(config, target / "config.json")
    return target


def convert(framework: str, source: Path, target: Path, hub: Path, **how: Any) -> Path:
    """Convert SOURCE by the product's own way, unchecked; from the original HUB what only it has."""
    from weighbridge.jobs.converting import convert as converted
    from weighbridge.jobs.options import Options

    def go(original: str | None) -> None:
        options = Options(check="none", original=original, **how)
        converted(str(source), target, framework, options=options)

    try:
        go(None)
    except WeighbridgeError as error:
        if "original" not in str(error):
            raise
        go(str(hub))
    return target


def compared(wanted: Values, found: Values, room: Values) -> str:
    """Say how FOUND differs from WANTED by more than ROOM; empty where it does not."""
    if found.keys() != wanted.keys():
        return f"{len(found.keys() ^ wanted.keys())} weights have other names"
    for name, value in wanted.items():
        allowed = room.get(name, np.zeros(1, np.float32)) + 1e-6 * np.abs(value).max(initial=0)
        if value.shape != found[name].shape or not np.all(np.abs(found[name] - value) <= allowed):
            return f"{name} has other values"
    return ""


def measure(kind: str, folder: Path) -> dict[str, Any]:
    """Return what becomes of KIND on each way, in FOLDER."""
    row: dict[str, Any] = {"kind": kind}
    step = "make"
    try:
        tiny.make(kind, folder / "hub", tiny.layouts(kind)[0], gain=tiny.GAIN)
        step = "mlx"
        convert("mlx", folder / "hub", folder / "mlx", folder / "hub")
        step = "quantize"
        source = quantized(folder / "mlx", folder / "quantized")
        wanted, steps = by_mlx(source)
        row["quantized"] = len(steps)
        step = "dense"
        home = convert("torch", source, folder / "dense", folder / "hub", dequantize="fp32")
        again = convert("mlx", home, folder / "dense-mlx", folder / "hub")
        row["dense"] = compared(wanted, by_mlx(again)[0], {}) or "equal"
        if not steps:
            return row | {"failed": "no layer that groups of 32 divide"}
        step = "compressed"
        way = {"quant_method": "compressed-tensors", "allow_lossy": True}
        home = convert("torch", source, folder / "packed", folder / "hub", **way)
        facts = json.loads((home / "weighbridge.json").read_text())["transcoded"]
        row["worst_step"] = max(facts["losses"].values(), default=0.0)
        again = convert("mlx", home, folder / "packed-mlx", folder / "hub")
        room = {name: row["worst_step"] * step for name, step in steps.items()}
        row["compressed"] = compared(wanted, by_mlx(again)[0], room) or "within what was stated"
    except (Exception, SystemExit) as error:
        row["failed"] = (
            f"{step}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        )
        row["failed"] = row["failed"].replace(f"{folder}/", "")[:300]
        problems = getattr(error, "problems", ())
        row["problems"] = [problem[:200] for problem in problems[:2]]
    return row


def wider(value: Any) -> Any:
    """Return VALUE with the sizes in it that follow from the hidden size made to follow from ours."""
    if isinstance(value, dict):
        return {key: wider(inner) for key, inner in value.items()}
    return LIKEWISE.get(value, value) if isinstance(value, int) else value


def main(kinds: list[str]) -> None:
    """Print a JSON line for each of KINDS."""
    sizes.TEXT.update(WIDE)
    sizes.OVERRIDES.update(wider(sizes.OVERRIDES))
    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(kind, Path(folder))), flush=True)


def measured(kinds: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of KINDS, a few to a process."""

    def batch(some: list[str]) -> list[dict[str, Any]]:
        command = [sys.executable, __file__, "--here", *some]
        done = subprocess.run(
            command, env=os.environ | rows.ENVIRONMENT, capture_output=True, text=True, check=False
        )
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        lost = [{"kind": kind, "failed": "the process ended"} for kind in some[len(found) :]]
        return [*found, *lost]

    with ThreadPoolExecutor(WORKERS) as pool:
        for some in pool.map(batch, [kinds[at : at + BATCH] for at in range(0, len(kinds), BATCH)]):
            yield from some


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        main(sys.argv[2:])
        sys.exit()
    counts: Counter[str] = Counter()
    found = []
    for row in measured(
        [name for name in sys.argv[1:] or tiny.types() if name not in rows.UNPAIRED["mlx-lm"]]
    ):
        print(json.dumps(row), flush=True)
        found.append(row)
        counts[f"dense: {row.get('dense', 'not reached')[:40]}"] += 1
        counts[f"compressed-tensors: {row.get('compressed', 'not reached')[:40]}"] += 1
    for what, count in sorted(counts.items()):
        print(f"{count:4} {what}")
    if not sys.argv[1:]:
        RESULT.write_text(json.dumps({"counts": counts, "rows": found}, indent=1) + "\n")
