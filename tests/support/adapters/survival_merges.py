"""Merges into a small Llama by the verb, and what of the update the written layers compute."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from weighbridge.errors import MismatchError
from weighbridge.tests.support.adapters import made
from weighbridge.tests.support.adapters.survival import GROUP, agreement
from weighbridge.tests.support.large_models import KINDS, layout_of

SIZES: Final = {"hidden_size": 128, "intermediate_size": 192, "vocab_size": 256} | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
}
INPUTS: Final = 2048
Arrays = dict[str, np.ndarray]


def write_base(folder: Path, bits: int) -> Arrays:
    """Write a Llama in MLX's layout; return its matrices as they are in it, in float64."""
    import mlx.core as mx

    kind = KINDS["llama"]
    dtype = "bfloat16" if bits == 16 else "float16"
    config = {**kind.config, **SIZES, "dtype": dtype, "torch_dtype": dtype}
    layout = layout_of(kind._replace(config=config), SIZES["num_hidden_layers"])
    dense = made.random_arrays(layout, seed=1)
    own = ml_dtypes.bfloat16 if bits == 16 else np.float16
    arrays: Arrays = {}
    for name, array in dense.items():
        if bits == 16 or array.ndim == 1:
            arrays[name] = array.astype(own)
            continue
        parts = mx.quantize(mx.array(array.astype(own)), GROUP, bits)
        stem = name.removesuffix("weight")
        leaves = ("weight", "scales", "biases")
        arrays |= {stem + leaf: np.array(part) for leaf, part in zip(leaves, parts, strict=True)}
    if bits != 16:
        config["quantization"] = {"group_size": GROUP, "bits": bits}
    made.write_base(folder, config, arrays, "mlx", 1)
    return matrices(folder)


def matrices(folder: Path) -> Arrays:
    """Return the matrices of the model in FOLDER by module, in real arithmetic, by MLX's own code."""
    import mlx.core as mx

    tensors = mx.load(str(folder / "model.safetensors"))
    recipe = json.loads((folder / "config.json").read_text()).get("quantization", {})
    found = {}
    for name, array in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf != "weight" or array.ndim != 2:
            continue
        if array.dtype == mx.uint32:
            scales, biases = (
                tensors[f"{module}.{it}"].astype(mx.float32) for it in ("scales", "biases")
            )
            own = recipe.get(module) or recipe
            dense = mx.dequantize(array, scales, biases, own["group_size"], own["bits"])
        else:
            dense = array.astype(mx.float32)
        found[module] = np.array(dense).astype(np.float64)
    return found


def step_of(folder: Path, module: str, weight: np.ndarray, bits: int) -> float:
    """Return the median rounding step of MODULE."""
    import mlx.core as mx

    if bits == 16:
        return float(np.median(np.abs(np.spacing(weight.astype(ml_dtypes.bfloat16)))))
    scales = mx.load(str(folder / "model.safetensors"))[f"{module}.scales"]
    return float(np.median(np.abs(np.array(scales.astype(mx.float32)))))


def sized(
    updates: Mapping[str, made.Update], steps: Mapping[str, float], ratio: float
) -> dict[str, made.Update]:
    """Return UPDATES, each so large that its rms is RATIO times the step of its layer."""
    return {
        module: it._replace(
            b=(it.b * (ratio * steps[module] / np.sqrt(np.mean(delta(it) ** 2)))).astype(np.float32)
        )
        for module, it in updates.items()
    }


def delta(update: made.Update) -> np.ndarray:
    """Return the change that UPDATE makes, in float64."""
    return update.scale * (update.b.astype(np.float64) @ update.a.astype(np.float64))


def merge(folder: Path, adapter: Path, **ways: Any) -> Mapping[str, Any] | None:
    """Merge ADAPTER into the base in FOLDER; return what is said of each weight, None if refused."""
    from weighbridge import jobs
    from weighbridge.jobs.options import Options

    options = replace(Options(check="none"), force=ways.pop("force", False))
    name = "-".join(["out", *ways]) + ("-forced" if options.force else "")
    try:
        outcome = jobs.merge(str(folder / "base"), adapter, folder / name, options=options, **ways)
    except MismatchError:
        return None
    return outcome.facts["merged"]


def measure(bits: int, ratio: float) -> dict[str, Any]:
    """Merge an adapter of RATIO into a base of BITS in all ways."""
    from weighbridge.converters.adapters.merging.survival import Survival, judge

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = write_base(folder / "base", bits)
        touched = {m: w for m, w in before.items() if "layers" in m}
        steps = {m: step_of(folder / "base", m, w, bits) for m, w in touched.items()}
        updates = made.random_updates({m: w.shape for m, w in touched.items()}, 8, seed=2)
        updates = sized(updates, steps, ratio)
        made.write_adapter(folder / "adapter", updates, "mlx")
        refused = merge(folder, folder / "adapter") is None
        said = merge(folder, folder / "adapter", force=True)
        after = matrices(folder / "out-forced")
        generator = np.random.default_rng(4)
        rows = []
        for weight, it in said.items():
            module = weight.removesuffix(".weight")
            change = delta(updates[module])
            x = generator.standard_normal((INPUTS, change.shape[1]))
            lost = x @ (after[module] - before[module] - change).T
            figures = {key: it[key] for key in Survival._fields}
            row = {"verdict": it.get("verdict") or judge(Survival(**figures))}
            row["functional_error"] = float(np.linalg.norm(lost) / np.linalg.norm(x @ change.T))
            rows.append(row | {"cosine": it["cosine"]})
        promoted = merge(folder, folder / "adapter", promote=True) if bits != 16 else {}
    verdicts = Counter(row["verdict"] for row in rows)
    counts = Counter(map(agreement, rows))
    kept = promoted is not None and all(it["verdict"] == "pass" for it in promoted.values())
    errors = [row["functional_error"] for row in rows]
    return {
        "bits": bits,
        "ratio": ratio,
        "refused": refused,
        "verdicts": dict(verdicts),
        **dict(counts),
        "errors": [round(min(errors), 3), round(max(errors), 3)],
        "promote_keeps_all": kept,
        "ok": len(rows) == len(updates)
        and not counts["too lax"] + counts["too strict"]
        and (refused == bool(verdicts["refuse"]))
        and kept,
    }


def zeros(bits: int) -> dict[str, Any]:
    """Merge an adapter of zeros into a base of BITS; say whether all tensors keep their bytes."""
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = write_base(folder / "base", bits)
        shapes = {m: w.shape for m, w in before.items() if "layers" in m}
        updates = {
            module: it._replace(b=np.zeros_like(it.b))
            for module, it in made.random_updates(shapes, 8, seed=2).items()
        }
        made.write_adapter(folder / "adapter", updates, "mlx")
        written = merge(folder, folder / "adapter") is not None
        files = [folder / part / "model.safetensors" for part in ("base", "out")]
        same = written
        if written:
            one, other = (safe_open(file, "mlx") for file in files)
            same = sorted(one.keys()) == sorted(other.keys()) and all(
                bytes(memoryview(one.get_tensor(n))) == bytes(memoryview(other.get_tensor(n)))
                for n in one.keys()  # noqa: SIM118  (no mapping)
            )
        return {"bits": bits, "ratio": 0.0, "identical_bytes": same, "ok": same}
