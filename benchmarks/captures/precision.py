"""Captures in 16 bits: how far outputs and gradients are from float64, against PyTorch in 16 bits.

    python benchmarks/captures/precision.py

Tiny models with random weights, in bfloat16 and float16. An error is the root of the mean square of
what outputs, or all gradients together, differ from those in float64, as a part of these. PyTorch's
is that of the same module in the same dtype; three seeds, the mean of each. float32 is
there for comparison. Writes ``results/captures_precision.json``.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import mlx.core as mx
import torch
from mlx import nn as mlx_nn
from mlx.utils import tree_flatten
from torch import nn
from transformers import AutoConfig, AutoModel

import weighbridge
from weighbridge.converters.common.arrays import from_mlx, from_torch
from weighbridge.converters.common.arrays import to_mlx as array_to_mlx
from weighbridge.converters.common.arrays import to_torch as array_to_torch
from weighbridge.converters.runtimes.torch import DTYPES, cast

RESULT: Final = Path(__file__).resolve().parents[1] / "results" / "captures_precision.json"
SEEDS: Final = 3
COMMON: Final = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 96}
HEADS: Final = {"num_attention_heads": 4, "num_hidden_layers": 2}
TEXT: Final[dict[str, dict[str, Any]]] = {
    "bert": {**COMMON, **HEADS},
    "llama": {**COMMON, **HEADS, "use_cache": False},
    "qwen3": {**COMMON, **HEADS, "head_dim": 16, "num_key_value_heads": 2, "use_cache": False},
    "gpt2": {"vocab_size": 64, "n_embd": 64, "n_head": 4, "n_layer": 2, "use_cache": False},
}


def convolutions() -> nn.Module:
    """Return a convolutional network with batch and group norms."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.GELU(),
        nn.Conv2d(16, 32, 3, groups=2, stride=2),
        nn.GroupNorm(4, 32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def build(name: str, seed: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return a model in evaluation mode with weights of realistic gain, and inputs."""
    torch.manual_seed(seed)
    if name == "convolutions":
        module, inputs = convolutions(), {"input": torch.randn(4, 3, 12, 12)}
    else:
        module = AutoModel.from_config(AutoConfig.for_model(name, **TEXT[name]))
        inputs = {"input_ids": torch.randint(1, 64, (3, 12))}
    with torch.no_grad():
        for label, parameter in module.named_parameters():
            if parameter.ndim < 2:
                parameter.add_(0.1 * torch.randn_like(parameter))
            else:
                into = len(parameter) if ".c_" in label else parameter[0].numel()
                parameter.normal_(0, 1.5 / into**0.5)
    return module.eval(), inputs


def first(output: Any) -> Any:
    """Return the first output."""
    return next(iter(output.values())) if isinstance(output, Mapping) else output


def in_torch(module: nn.Module, dtype: str, inputs: Any, weights: torch.Tensor) -> dict[str, Any]:
    """Return the output, and gradients by name, in DTYPE."""
    own = cast(copy.deepcopy(module), dtype)
    output = first(own(**narrowed(inputs, dtype)))
    (output.double() * weights).sum().backward()
    found = {n: p.grad for n, p in own.named_parameters() if p.grad is not None}
    return {"": output.detach(), **found}


def narrowed(inputs: Mapping[str, torch.Tensor], dtype: str) -> dict[str, torch.Tensor]:
    """Return INPUTS, floating-point ones in DTYPE."""
    return {n: x.to(DTYPES[dtype]) if x.is_floating_point() else x for n, x in inputs.items()}


def in_mlx(module: nn.Module, dtype: str, inputs: Any, weights: torch.Tensor) -> dict[str, Any]:
    """Return the same of a capture."""
    given = narrowed(inputs, dtype)
    captured = weighbridge.capture(cast(copy.deepcopy(module), dtype), inputs=given)
    arrays = {name: array_to_mlx(from_torch(tensor)) for name, tensor in given.items()}
    scale = mx.array(weights.float().numpy())

    def loss() -> mx.array:
        return (first(captured(**arrays)).astype(mx.float32) * scale).sum()

    _, gradients = mlx_nn.value_and_grad(captured, loss)()
    found = {"": first(captured(**arrays)), **dict(tree_flatten(gradients))}
    return {name: array_to_torch(from_mlx(array)) for name, array in found.items()}


def error(found: Mapping[str, Any], exact: Mapping[str, Any], *, gradients: bool) -> float:
    """Return how far the output, or all gradients together, are from EXACT, as a part of it."""
    names = [name for name in exact if bool(name) is gradients]
    apart = sum(float((found[n].double() - exact[n].double()).square().sum()) for n in names)
    size = sum(float(exact[n].double().square().sum()) for n in names)
    return (apart / size) ** 0.5


def row(name: str, dtype: str) -> dict[str, float]:
    """Return the errors of a model in DTYPE, ours and PyTorch's."""
    found: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        module, inputs = build(name, seed)
        weights = torch.randn_like(first(module(**inputs))).double()
        exact = in_torch(module, "float64", inputs, weights)
        sides = {"ours": in_mlx, "torch": in_torch}
        for side, run in sides.items():
            values = run(module, dtype, inputs, weights)
            for kind in ("outputs", "gradients"):
                part = error(values, exact, gradients=kind == "gradients")
                found.setdefault(f"{kind} {side}", []).append(part)
    return {key: fmean(values) for key, values in found.items()}


def main() -> None:
    """Print a line for each model and dtype."""
    rows = {
        f"{name}, {dtype}": row(name, dtype)
        for name in [*TEXT, "convolutions"]
        for dtype in ("float32", "bfloat16", "float16")
    }
    for name, errors in rows.items():
        pairs = (
            f"{kind} {errors[f'{kind} ours']:.1e}, torch {errors[f'{kind} torch']:.1e}"
            for kind in ("outputs", "gradients")
        )
        print(f"{name}: {'; '.join(pairs)}")
    ratios = {
        kind: max(errors[f"{kind} ours"] / errors[f"{kind} torch"] for errors in rows.values())
        for kind in ("outputs", "gradients")
    }
    print("largest ratio:", ", ".join(f"{kind} {value:.2f}" for kind, value in ratios.items()))
    RESULT.write_text(json.dumps({"rows": rows, "largest ratio": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
