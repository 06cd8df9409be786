"""Graphs whose interpolations become products, of fixed sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from ....errors import UnsupportedError
from ..mlprogram.arithmetic import evaluate

ATEN: Final = torch.ops.aten
SMOOTH: Final = {ATEN._upsample_bilinear2d_aa.vec: 1.0, ATEN._upsample_bicubic2d_aa.vec: 2.0}
CUBIC: Final = ATEN.upsample_bicubic2d.vec
LINEAR: Final = (
    ATEN.upsample_linear1d.vec,
    ATEN.upsample_bilinear2d.vec,
    ATEN.upsample_trilinear3d.vec,
)
NEAREST: Final = ATEN.upsample_nearest2d.vec
MATRICES: Final = "matrices"  # in a graph's notes: what it multiplies by, as arithmetic


class Axis(NamedTuple):
    """How an axis is interpolated.

    Attributes:
        before: its size.
        after: its new size.
        step: how far new elements lie apart, in old ones.
        aligned: whether the first and last elements stay where they are.
        factor: by how much it grows, where that was said and no size was.
    """

    before: int
    after: int
    step: float
    aligned: bool
    factor: float | None

    @property
    def whole(self) -> bool:
        """Whether each element becomes as many whole ones."""
        return not self.after % self.before and self.factor in (None, self.after / self.before)


Choice = Callable[[Sequence[Axis]], bool]


def axes_of(node: Any) -> list[Axis]:
    """Return how NODE, an interpolation in a graph, treats its last axes; none where sizes vary."""
    x, wanted, *rest = node.args
    aligned, factors = (*([False] if node.target is NEAREST else []), *rest, None)[:2]
    sizes = [*x.meta["val"].shape[2:], *(wanted or ())]
    if not all(isinstance(it, int) for it in sizes):
        return []
    found = []
    for at, size in enumerate(x.meta["val"].shape[2:]):
        factor = factors[at] if factors else None
        after = wanted[at] if wanted else int(size * factors[at])
        step = 1 / factor if factor else size / after
        step = (size - 1) / (after - 1) if aligned and after > 1 else 0.0 if aligned else step
        found.append(Axis(size, after, step, bool(aligned), factor))
    return found


def matrix(target: Any, axis: Axis) -> list[Any]:
    """Return what AXIS is multiplied by where TARGET interpolates it, as arithmetic.

    >>> matrix(CUBIC, Axis(4, 8, 0.5, False, 2.0))
    ['cubic', 8.0, 4.0, 0.5, 0.0]
    """
    name = "smooth" if target in SMOOTH else "cubic" if target is CUBIC else "between"
    last = SMOOTH.get(target, float(axis.aligned))
    return [name, float(axis.after), float(axis.before), axis.step, last]


def always(_: Sequence[Axis]) -> bool:
    """Choose an interpolation whatever its axes are."""
    return True


def interpolated(
    program: Any, chosen: Mapping[Any, Choice], runtime: str, *, by_size: bool = False
) -> Any:
    """Return PROGRAM, an ``ExportedProgram``, with interpolations CHOSEN by their axes as products, in place.

    Args:
        program: changed.
        chosen: by operation.
        runtime: what it is for.
        by_size: whether that has those without aliasing that follow the sizes alone.

    Raises:
        UnsupportedError: RUNTIME has no form for one of sizes that vary without aliasing.
    """
    made: list[Any] = []
    for node in [*program.graph.nodes]:
        if node.target not in chosen or not is_float(node):
            continue
        axes = axes_of(node)
        if axes and chosen[node.target](axes):
            made += multiplied(program, node, axes, len(made))
        elif not axes and node.target in SMOOTH and not (by_size and not any(node.args[2:])):
            raise UnsupportedError(
                f"{runtime} has no interpolate(..., antialias=True) of sizes that vary: give height and width fixed"
                " numbers in the signature"
            )
    program.graph_module.meta[MATRICES] = made
    program.graph_module.recompile()
    return program


def is_float(node: Any) -> bool:
    """Say whether NODE makes numbers in floating point."""
    return bool(node.meta["val"].is_floating_point())


def multiplied(program: Any, node: Any, axes: Sequence[Axis], count: int) -> Iterator[Any]:
    """Let products along AXES take the place of NODE; yield by what, where COUNT matrices are there."""
    graph, x = program.graph, node.args[0]
    for at, axis in enumerate(axes):
        made, along = matrix(node.target, axis), at + 2 - x.meta["val"].ndim
        value = torch.from_numpy(evaluate(made, none_of_it)).to(node.meta["val"].dtype)
        weight = constant(program, f"matrix_{count + at}", value, x.meta["val"])
        with graph.inserting_before(node):
            for target, *given in turned(weight, along):
                x = graph.call_function(target, (x, *given))
                known = (it.meta["val"] if it is weight else it for it in given)
                x.meta = {**node.meta, "val": target(x.args[0].meta["val"], *known)}
        yield made
    node.replace_all_uses_with(x)
    graph.erase_node(node)


def none_of_it(kind: str, name: str) -> Any:
    """Refuse to read a tensor: a matrix is of numbers alone."""
    raise KeyError(kind, name)


def turned(weight: Any, along: int) -> list[tuple[Any, ...]]:
    """Return what multiplies the axis ALONG by WEIGHT: operations, and what they are given besides.

    Of what does not lie in order in memory torch makes as many products, each by a WEIGHT of its own.
    """
    product = [(ATEN.contiguous.default,), (ATEN.linear.default, weight)]
    swap = (ATEN.transpose.int, along, -1)
    return product if along == -1 else [swap, *product, swap]


def constant(program: Any, name: str, value: Tensor, like: Tensor) -> Any:
    """Return a new input NAME of PROGRAM's graph that stands for VALUE, traced as its value LIKE is."""
    signature = program.graph_signature
    first = next(
        at for at, it in enumerate(signature.input_specs) if it.kind is InputKind.USER_INPUT
    )
    places = [it for it in program.graph.nodes if it.op == "placeholder"]
    with program.graph.inserting_before(places[first]):
        node = program.graph.placeholder(name)
    node.meta["val"] = like.fake_mode.from_tensor(value, static_shapes=True)  # type: ignore[attr-defined]
    spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), node.name, None)
    signature.input_specs.insert(first, spec)
    program.constants[node.name] = value
    return node
