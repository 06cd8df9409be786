"""Sixty models, captured as they are: outputs and the gradient of every parameter against PyTorch.

    python benchmarks/captures/zoo.py [NAME ...] [--seconds 300] [--again]

Tiny, random weights of realistic gain, default settings, on the CPU, each run once before: some change their
weights then, as RWKV does in evaluation mode. The truth is the PyTorch module in float64, or
in float32 where its code makes tensors of that dtype or has gradients without a number in float64, as Longformer
(``truth`` in the row).
Outputs are held to the bar of the check's structure stage (``parity/reference/floors.json``: how much more than
the source's own float32 a correct implementation errs). The gradient is that of the outputs against random
cotangents; its error is the largest over all parameters, relative to the largest entry of any; the bar is 1e-5.
Where one run of PyTorch allows less, the worst of nine that round in other ways does (``runs``).
Where PyTorch's own float32 misses that, and the capture errs no more than that by the same study, the row says
``float32``; it is not counted as passed.
What capture refuses counts as refused, with its reason. Writes ``results/captures_zoo.json`` and goes on from it.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from weighbridge.tests.support.captures.children import in_a_child
from weighbridge.tests.support.captures.zoo import ZOO

RESULT: Final = Path(__file__).parents[1] / "results" / "captures_zoo.json"
GRADIENT_BAR: Final = 1e-5
BAR: Final = 57
PACKAGES: Final = ("mlx", "torch", "transformers", "weighbridge")


def leaves(output: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of an output, in order."""
    from torch.utils import _pytree as pytree

    plain = dict(output) if hasattr(output, "keys") else output
    return [
        x
        for x in pytree.tree_leaves(plain)
        if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]


def reference(
    module: torch.nn.Module, inputs: dict[str, Any], dtype: torch.dtype
) -> tuple[Any, Any, Any]:
    """Return outputs, cotangents and gradients by name of MODULE in DTYPE."""
    model = copy.deepcopy(module).to(dtype)
    if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # torch's grouped products have no float64
    given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    torch.manual_seed(1)
    outputs = leaves(model(**given))
    weights = [
        torch.randn(o.shape, generator=torch.Generator().manual_seed(2)).to(dtype) for o in outputs
    ]
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    loss = sum((o * w).sum() for o, w in zip(outputs, weights, strict=True) if o.requires_grad)
    gradients = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    found = {n: g for n, g in zip(named, gradients, strict=True) if g is not None}
    return [o.detach() for o in outputs], weights, found


def exact(module: torch.nn.Module, inputs: dict[str, Any]) -> tuple[Any, Any, str]:
    """Return outputs, gradients and their dtype: float64, unless the module's code knows float32 only."""
    for name in ("float64", "float32"):
        with suppress(RuntimeError):
            outputs, _, gradients = reference(module, inputs, getattr(torch, name))
            if all(bool(x.isfinite().all()) for x in (*outputs, *gradients.values())):
                return outputs, gradients, name
    raise RuntimeError("the module runs in neither float64 nor float32, with finite gradients")


def captured_run(
    module: torch.nn.Module, example: dict[str, Any], inputs: dict[str, Any], weights: Any
) -> tuple[Any, Any]:
    """Return outputs and gradients by name of the capture of MODULE with EXAMPLE, given INPUTS."""
    import mlx.core as mx
    from mlx import nn
    from mlx.utils import tree_flatten
    from torch.utils import _pytree as pytree

    from weighbridge.converters.captures import capture
    from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch

    captured = capture(module, inputs=example)
    arrays = {name: to_mlx(value) for name, value in inputs.items()}

    def outputs() -> list[mx.array]:
        found = pytree.tree_leaves(captured(**arrays))
        return [x for x in found if isinstance(x, mx.array) and mx.issubdtype(x.dtype, mx.floating)]

    def loss() -> mx.array:
        return sum((o * to_mlx(w)).sum() for o, w in zip(outputs(), weights, strict=True))

    results = [to_torch(x) for x in outputs()]
    if not tree_flatten(captured.trainable_parameters()):  # frozen by its own code
        return results, {}
    _, tree = nn.value_and_grad(captured, loss)()
    return results, {name: to_torch(g) for name, g in tree_flatten(tree)}


def gradient_error(found: dict[str, torch.Tensor], truth: dict[str, torch.Tensor]) -> float:
    """Return the largest error of any entry, relative to the largest entry."""
    some = {name: g for name, g in truth.items() if g.numel()}
    if not some:
        return 0.0
    zero = torch.zeros(())
    errors = [(found.get(name, zero).double() - g).abs().max() for name, g in some.items()]
    return worst(errors) / worst([g.abs().max() for g in some.values()])


def worst(values: Iterable[Any]) -> float:
    """Return the largest of VALUES; NaN if one is, which ``max`` may pass over."""
    return float(torch.tensor([float(value) for value in values], dtype=torch.float64).max())


def measured(name: str) -> dict[str, Any]:
    """Return how far the model called NAME is from PyTorch's."""
    torch.manual_seed(0)
    return compared(lambda: (ZOO[name].build(), ZOO[name].inputs()))


def compared(made: Callable[[], Any], example: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return how far the capture of a module is from it, both as MADE gives them with inputs.

    It is captured with EXAMPLE, or with these inputs.
    """
    from weighbridge.errors import WeighbridgeError

    start = time.process_time()
    try:
        module, inputs = made()
        with torch.no_grad():  # what a module keeps of a run then is no part of a graph
            module(**inputs)
        truth, gradients64, dtype = exact(module, inputs)
        own, weights, gradients = reference(module, inputs, torch.float32)
    except Exception as error:
        return {"stage": "torch", "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    try:
        found, theirs = captured_run(module, example or inputs, inputs, weights)
    except WeighbridgeError as error:
        return {"stage": "refused", "reason": str(error)[:600]}
    except Exception as error:
        return {"stage": "crash", "reason": f"{type(error).__name__}: {str(error)[:300]}"}
    tied = {n: g for n, g in gradients64.items() if n in theirs}

    def row(runs: list[tuple[Any, Any]]) -> dict[str, Any]:
        values = {
            "truth": dtype,
            "allowed": allowed(found, [outputs for outputs, _ in runs], truth, dtype),
            "gradient": gradient_error(theirs, tied),
            "gradient_of_torch": worst(gradient_error(own, gradients64) for _, own in runs),
            "without_gradient": sorted(set(gradients64) - set(theirs)),
            "seconds": time.process_time() - start,
        }
        return {"stage": judged(values), "runs": len(runs), **values}

    once = row([(own, gradients)])
    if once["stage"] != "wrong":
        return once
    return row([(own, gradients), *rounded_otherwise(module, inputs)])


def rounded_otherwise(module: torch.nn.Module, inputs: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Return outputs and gradients of eight more float32 runs of MODULE, which round in other ways.

    One run may be nearly exact by chance; a check takes the worst of nine, too.
    """
    from weighbridge.parity.reference.several import RUNS, other_rounding

    def once() -> tuple[Any, Any]:
        outputs, _, gradients = reference(module, inputs, torch.float32)
        return outputs, gradients

    with other_rounding(module, "float32") as moved:
        return [moved(seed, once) for seed in range(RUNS)]


def judged(row: dict[str, Any]) -> str:
    """Return ``pass``, ``wrong``, or ``float32`` where the gradient errs no more than torch's own does.

    Then no float32 can meet the bar; how much more a correct implementation may err is studied.
    """
    if not row["allowed"] <= 1 or row["without_gradient"]:
        return "wrong"
    if row["gradient"] <= GRADIENT_BAR:
        return "pass"
    return "float32" if row["gradient"] <= study().k * row["gradient_of_torch"] else "wrong"


def study() -> Any:
    """Return what the null study found for MLX on the CPU in float32."""
    from weighbridge.parity.reference.floors import floor

    found = floor("mlx", "cpu", "float32")
    if found is None:
        raise SystemExit("there is no null study for MLX on the CPU in float32")
    return found


def allowed(found: Any, runs: list[Any], truth: Any, dtype: str) -> float:
    """Return the largest share that an output uses of the error that the worst of RUNS allows.

    Where the truth is float32 itself, the source's own error is not known: then the gradient's bar holds.
    """
    from weighbridge.parity.check.distances import distance
    from weighbridge.parity.reference.several import worst_of

    if len(found) != len(truth):
        return float("inf")
    if dtype == "float32":
        errors = [distance(f.numpy(), t.numpy()).whole for f, t in zip(found, truth, strict=True)]
        return worst(errors) / GRADIENT_BAR
    limits = study()

    def errors(outputs: Any) -> dict[str, Any]:
        pairs = zip(outputs, truth, strict=True)
        return {str(i): distance(x.detach().numpy(), t.numpy()) for i, (x, t) in enumerate(pairs)}

    own = worst_of([errors(outputs) for outputs in runs])
    return worst(limits.allowed(error, own[name]) for name, error in errors(found).items())


def save(rows: dict[str, dict[str, Any]], path: Path) -> None:
    """Write the rows and what they sum up to."""
    stages = Counter(row["stage"] for row in rows.values())
    result = {
        "versions": {name: version(name) for name in PACKAGES},
        "models": len(rows),
        "passed": stages["pass"],
        "beyond float32": stages["float32"],
        "bar": BAR,
        "gradient_bar": GRADIENT_BAR,
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def main() -> int:
    """Measure what was asked for and has not been, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--seconds", type=float, default=300, help="at most, for one model")
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    rows = json.loads(options.out.read_text())["rows"] if options.out.exists() else {}
    for name in options.names or ZOO:
        if name not in rows or options.again:
            rows[name] = in_a_child(measured, name, options.seconds)
            save({key: rows[key] for key in ZOO if key in rows}, options.out)
        row = rows[name]
        figures = " ".join(
            f"{key} {row[key]:.2g}"
            for key in ("allowed", "gradient", "gradient_of_torch")
            if key in row
        )
        print(f"{name:38} {row['stage']:8} {figures} {row.get('reason', '')[:300]}", flush=True)
    passed = sum(row["stage"] == "pass" for row in rows.values())
    print(f"{passed} of {len(ZOO)} pass")
    return 0 if passed >= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
