"""Modules of MLX in PyTorch: values and gradients against MLX, and each as ONNX and Core ML.

    python benchmarks/captures/mlx_to_torch.py [MODULE ...] [--no-exports]

The modules are those of ``tests/support/mlx_modules.py``. Each is traced once and run at the sizes that it
was traced at and, where they vary, at others. Errors are of the largest value; of gradients, of the largest
among all parameters. Exports are those of the verbs, with their checks. Writes
``results/mlx_to_torch.json``, module by module.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import numpy as np
import torch
from mlx import nn
from mlx.utils import tree_flatten

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.mlx_to_torch.captured import CapturedMlx
from weighbridge.converters.models import Signature
from weighbridge.errors import WeighbridgeError
from weighbridge.jobs.export import export_coreml, export_onnx
from weighbridge.tests.support.mlx_modules import MODULES, VOCABULARY, built
from weighbridge.tests.support.side_by_side import machine

RESULT: Final = Path(__file__).parents[1] / "results" / "mlx_to_torch.json"
SIZES: Final = ((2, 5), (3, 11))  # batch and sequence: traced at the first, run at both
LARGER: Final = ((6, 9), (8, 12))  # where a module computes few tokens in another way
BAR: Final = 1e-5
EXPORTS: Final[dict[str, tuple[Any, str]]] = {
    "onnx": (export_onnx, ".onnx"),
    "coreml": (export_coreml, ".mlpackage"),
}


def inputs_of(signature: Signature, sizes: Sequence[int]) -> dict[str, np.ndarray]:
    """Return inputs for SIGNATURE, whose named sizes are SIZES in order."""
    draw = np.random.default_rng(sum(sizes))
    known = dict(zip(("batch", "sequence"), sizes, strict=True))
    made = {}
    for port in signature.inputs:
        shape = [known[size] if isinstance(size, str) else size for size in port.shape]
        if port.role == "attention_mask":
            made[port.name] = np.ones(shape, np.int64)
            made[port.name][0, -2:] = 0
        elif port.dtype == "int64":
            made[port.name] = draw.integers(0, VOCABULARY, shape)
        else:
            made[port.name] = draw.standard_normal(shape).astype(np.float32)
    return made


def errors(
    module: nn.Module, captured: CapturedMlx, inputs: dict[str, np.ndarray]
) -> dict[str, float]:
    """Return the largest error of an output, and of a gradient, over the largest value."""
    arrays = {name: mx.array(it) for name, it in inputs.items()}
    wanted = module(**arrays)
    found = captured(**{name: torch.tensor(it) for name, it in inputs.items()})
    weight = np.random.default_rng(0).standard_normal(found.shape).astype(np.float32)
    captured.zero_grad()
    (found * torch.tensor(weight)).sum().backward()

    def loss() -> mx.array:
        return (module(**arrays) * mx.array(weight)).sum()

    _, tree = nn.value_and_grad(module, loss)()
    gradients = dict(tree_flatten(tree))
    own = {name: it.grad for name, it in captured.named_parameters() if it.grad is not None}
    largest = max(float(mx.abs(it).max()) for it in gradients.values())
    gaps = [np.abs(np.array(it) - own[name].numpy()).max() for name, it in gradients.items()]
    value = np.array(wanted)
    gap = np.abs(value - found.detach().numpy()).max() / np.abs(value).max()
    return {"value": float(gap), "gradient": float(max(gaps) / largest)}


def traced(name: str) -> dict[str, Any]:
    """Return what a capture of the module NAME errs by."""
    module, signature = built(name)
    sizes = LARGER if name == "qwen3_moe" else SIZES
    first, *others = [inputs_of(signature, it) for it in sizes]
    captured = capture(module, to="torch", inputs=first, dynamic=signature.dynamic)
    rows = [errors(module, captured, it) for it in (first, *others)]
    worst = {key: max(row[key] for row in rows) for key in rows[0]}
    return {"module": name, "operations": len(captured.census().operations), **worst}


def exported(name: str) -> dict[str, str]:
    """Return the verdict of each export of the module NAME."""
    spec, found = f"weighbridge.tests.support.mlx_modules:{name}", {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, (export, suffix) in EXPORTS.items():
            try:
                found[kind] = export(spec, Path(folder, name + suffix)).status
            except WeighbridgeError as error:
                found[kind] = str(error).partition("\n")[0]
    return found


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", default=list(MODULES))
    parser.add_argument("--no-exports", action="store_true")
    given = parser.parse_args()
    for name in given.modules:
        row = traced(name)
        if not given.no_exports:
            row |= exported(name)
            keep(row)
        print(row, flush=True)


def keep(row: dict[str, Any]) -> None:
    """Put ROW into the result, in place of an earlier one of its module."""
    rows = json.loads(RESULT.read_text())["rows"] if RESULT.exists() else []
    known = {it["module"]: it for it in [*rows, row]}
    ordered = [known[name] for name in MODULES if name in known]
    document = {"rows": ordered, "bar": BAR, "machine": machine()}
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
