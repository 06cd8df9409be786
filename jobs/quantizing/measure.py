"""What quantizing a model costs: its outputs on a text, and the time they take, before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from ...converters.common.arrays import from_mlx, to_mlx
from ...converters.quantization import dequantize, quantize
from ...converters.values import Array
from ...parity.quantized.loaded import mlx_module
from ..options import Options
from .calibration import original
from .check import opened
from .plan import Plan
from .texts import batches, output, rows_of

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn

TOKENS: Final = 1 << 12  # of the text that are read
BEFORE, AFTER, PLAIN = "before", "after", "by mx.quantize"


def measured(plan: Plan, folder: Path, path: Path, options: Options) -> dict[str, Any]:
    """Return how the outputs of PLAN's model and of FOLDER, what became of it, differ on the text in PATH.

    The third is the model with what ``mx.quantize`` makes of its weights by the same schemes. All of
    them are in memory.

    Raises:
        WeighbridgeError: as the text, its tokens or the model's class do.
    """
    rows = rows_of(path, plan.job.model, "--measure")
    rows = rows[: max(1, TOKENS // rows.shape[1])]
    modules = {BEFORE: original(plan), AFTER: mlx_module(opened(folder)), PLAIN: plainly(plan)}
    advance, costs = options.report("measuring the outputs", rows.size), Costs(reads_on(plan))
    for module in modules.values():
        module.eval()
        costs.run(module, rows[:1])  # the first run of a module takes longer
    for some in batches(rows):
        costs.add({name: costs.run(module, some) for name, module in modules.items()}, some)
        advance(some.size)
    return {"text": path.name, "tokens": rows.size, **costs.facts()}


def reads_on(plan: Plan) -> int:
    """Return how many tokens the model of PLAN chooses the next one of; 0 where it is no such model."""
    size = plan.job.conversion.config.get("vocab_size")
    return size if plan.target.library == "mlx-lm" and isinstance(size, int) else 0


def plainly(plan: Plan) -> nn.Module:
    """Return the model of PLAN, dense, with weights that went through ``mx.quantize``."""
    module, weights = original(plan), []
    for name, scheme in plan.schemes.items():
        dtype, values = plan.dtype(name), plan.tensors.read(name)
        moved = dequantize(quantize(values, scheme, dtype), scheme)
        weights.append((name, to_mlx(moved.astype(values.dtype))))
    module.load_weights(weights, strict=False)
    return module


class Costs:
    """Sums over tokens, for models that choose among VOCABULARY of them, or for others if that is 0."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.choices = vocabulary, 0
        self.size = 0.0  # squared, of the output before
        self.errors, self.divergences, self.surprises, self.seconds = (
            dict.fromkeys((BEFORE, AFTER, PLAIN), 0.0) for _ in range(4)
        )

    def run(self, module: nn.Module, ids: Array) -> tuple[mx.array, float]:
        """Return the output of MODULE for IDS in float32, and the seconds that it took."""
        import mlx.core as mx

        start = perf_counter()
        found = output(module, ids)
        mx.eval(found)
        return found.astype(mx.float32), perf_counter() - start

    def add(self, runs: Mapping[str, tuple[mx.array, float]], ids: Array) -> None:
        """Add the outputs in RUNS, by name of the model, for IDS."""
        wanted = runs[BEFORE][0]
        self.size += total(wanted * wanted)
        for name, (found, seconds) in runs.items():
            self.seconds[name] += seconds
            self.errors[name] += total((found - wanted) ** 2)
            if self.vocabulary and wanted.shape[-1] >= self.vocabulary:
                self._add_choices(name, found, wanted, ids)
        self.choices += ids.shape[0] * (ids.shape[1] - 1)

    def _add_choices(self, name: str, found: mx.array, wanted: mx.array, ids: Array) -> None:
        """Add what the logits FOUND say of the next tokens, where those WANTED are of the original."""
        import mlx.core as mx

        logs, before = (
            array[:, :-1] - mx.logsumexp(array[:, :-1], axis=-1, keepdims=True)
            for array in (found, wanted)
        )
        self.divergences[name] += total(mx.exp(before) * (before - logs))
        chosen = mx.take_along_axis(logs, to_mlx(ids[:, 1:, None]), axis=-1)
        self.surprises[name] -= total(chosen)

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says."""
        errors = {n: math.sqrt(self.errors[n] / self.size) for n in (AFTER, PLAIN)}
        found: dict[str, Any] = {"outputs": with_ratio(errors), "seconds": self.seconds}
        if any(self.surprises.values()):
            divergences = {n: self.divergences[n] / self.choices for n in (AFTER, PLAIN)}
            found["divergence"] = with_ratio(divergences)
            found["perplexity"] = {
                name: math.exp(total / self.choices) for name, total in self.surprises.items()
            }
        return found


def total(array: mx.array) -> float:
    """Return the sum of ARRAY."""
    return float(from_mlx(array.sum()))


def with_ratio(costs: Mapping[str, float]) -> dict[str, float]:
    """Return COSTS and the part that what was made has of that by ``mx.quantize``."""
    return {**costs, "ratio": costs[AFTER] / costs[PLAIN] if costs[PLAIN] else math.nan}
