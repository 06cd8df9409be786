"""What the layers of a model are given as it reads a text, for the codes of their weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...converters.common.arrays import from_mlx, to_mlx
from ...converters.quantization.mlx import stem
from ...converters.values import Array
from ..options import Options
from .plan import Plan, hash_of
from .texts import batches, output, rows_of

if TYPE_CHECKING:
    import mlx.core as mx
    from mlx import nn

ROOM: Final = 1 << 30  # bytes of sums kept at a time; for more of them the text is read again
WIDEST: Final = 1 << 14  # columns of a layer whose sums are kept at all


class Calibration:
    """A model as it is before, and the text that it reads.

    Attributes:
        done: the weights whose codes were chosen for their inputs.

    Raises:
        WeighbridgeError: as the text, its tokens or the model's class do.
    """

    def __init__(self, plan: Plan, path: Path, options: Options) -> None:
        self._path = path
        self._rows = rows_of(path, plan.job.model, "--calibrate")
        self._module = original(plan)
        self._names = list(self._linear(plan))
        self._columns = {name: plan.decided.shapes[stem(name)][-1] for name in self._names}
        self._report, self.done = options.report, set[str]()
        self._plain: mx.array | None = None

    def _linear(self, plan: Plan) -> Iterator[str]:
        """Yield the weights that are quantized whose inputs say which codes are best."""
        from ...converters.runtimes.native.inputs import is_linear

        layers = dict(self._module.named_modules())
        for name in plan.schemes:
            if is_linear(layers.get(stem(name))) and plan.decided.shapes[stem(name)][-1] <= WIDEST:
                yield name

    def groups(self) -> Iterator[list[str]]:
        """Yield names of weights, in the order of the model, as many as are summed up at once."""
        some, taken = list[str](), 0
        for name in self._names:
            size = 4 * self._columns[name] ** 2
            if some and taken + size > ROOM:
                yield some
                some, taken = [], 0
            some.append(name)
            taken += size
        if some:
            yield some

    def products(self, names: Collection[str]) -> dict[str, Array]:
        """Return sums of products of the inputs of the weights NAMES, by name; reads the text.

        Weights that no input reaches are left out.
        """
        import mlx.core as mx

        from ...converters.runtimes.native.inputs import summing

        advance = self._report("reading the text of calibration", self._rows.size)
        with summing(self._module, {stem(name) for name in names}) as inputs:
            for some in batches(self._rows):
                mx.eval(output(self._module, some))
                advance(some.size)
        found = inputs.products()
        reached = (name for name in names if stem(name) in found)
        return {name: found[stem(name)] for name in reached if found[stem(name)].any()}

    def error_with(self, name: str, values: Array) -> float:
        """Return the squared error of the model's output with VALUES as its weight NAME, as a part of it.

        For the first rows of the text; the module is as before afterwards.
        """
        import mlx.core as mx
        from mlx.utils import tree_flatten

        some = next(batches(self._rows))
        if self._plain is None:
            self._plain = output(self._module, some).astype(mx.float32)
        weight = dict(tree_flatten(self._module.parameters()))[name]
        self._module.load_weights([(name, to_mlx(values).astype(weight.dtype))], strict=False)
        rest = output(self._module, some).astype(mx.float32) - self._plain
        error = float(from_mlx(rest.square().sum() / self._plain.square().sum()))
        self._module.load_weights([(name, weight)], strict=False)
        return error

    def facts(self) -> dict[str, Any]:
        """Return what the manifest says."""
        return {
            "text": self._path.name,
            "xxh3": hash_of([self._path.read_text(encoding="utf-8")]),
            "tokens": self._rows.size,
            "weights": len(self.done),
        }


def original(plan: Plan) -> nn.Module:
    """Return the class of the planned model with its weights as they are before, in eval mode."""
    weights = {name: to_mlx(plan.tensors.read(name)) for name in plan.tensors.headers}
    module: nn.Module = plan.target.load(plan.job.conversion.config, weights)
    return module
