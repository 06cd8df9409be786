"""Lower an exported torch graph to operations that coremltools translates.

coremltools lags behind torch. What it has no translation for is first rewritten with torch's own
decompositions, or with the few below, and only then refused. Translations of our own are
registered in ``translations.py``.
Rows written for coremltools 9.0; a row is used only where the installed version lacks the operation. Of the
decompositions 9.1.dev1 has six itself (``&``, ``|``, ``alias``, ``unfold``, ``where`` with numbers); what 9.0
mistranslates it mistranslates too, or refuses.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch._decomp.decompositions import affine_grid_generator, upsample_bicubic2d_vec
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

from ...errors import UnsupportedError
from ..captures import rewrites
from ..captures.interpolated.graphs import (
    CUBIC,
    LINEAR,
    MATRICES,
    SMOOTH,
    Choice,
    always,
    interpolated,
)
from ..captures.interpolated.places import GRID, affine_grid, grids
from ..captures.mlprogram.toolkit import quiet
from ..captures.rewrites import (
    bucketize,
    cosine_similarity,
    distances,
    median,
    median_of_all,
    windows,
)
from ..captures.rewriting import scattering
from ..captures.rewriting.einsums import REST, einsum
from ..captures.scans import SCAN, doubled
from ..captures.spectra.graphs import as_products
from ..common.hints import counted

with quiet():
    from coremltools.converters.mil.frontend.torch.ops import (  # noqa: F401  (fills the registry)
        convert_nodes,
    )
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY
    from coremltools.converters.mil.frontend.torch.utils import sanitize_op_kind

ATEN: Final = torch.ops.aten
TRANSLATIONS: Final = _TORCH_OPS_REGISTRY.name_to_func_mapping
MOST_AXES: Final = 5
VIEWS: Final = frozenset({ATEN.view.default, ATEN.reshape.default, ATEN._unsafe_view.default})
SHAPELESS: Final = VIEWS | {ATEN.clone.default, ATEN.contiguous.default}  # take any axes
POOLS: Final = tuple(
    getattr(ATEN, f"{kind}_pool{axes}d").default for kind in ("max", "avg") for axes in (1, 2, 3)
)
ROUNDS: Final = 4  # a decomposition may bring operations that need one themselves


def where_scalar(condition: Tensor, x: Any, y: Any) -> Tensor:
    """Rewrite ``where`` with Python numbers as ``where`` of tensors."""
    given = next((value for value in (x, y) if isinstance(value, Tensor)), None)
    dtype = torch.get_default_dtype() if given is None else given.dtype
    a, b = (v if isinstance(v, Tensor) else ATEN.full.default([1], v, dtype=dtype) for v in (x, y))
    result: Tensor = ATEN.where.self(condition, a, b)
    return result


def boolean_or(x: Tensor, y: Tensor) -> Any:
    """Rewrite ``|`` of booleans; of integers it is left, and so refused."""
    if x.dtype is y.dtype is torch.bool:
        return ATEN.logical_or.default(x, y)
    return NotImplemented


def clamp(x: Tensor, least: Any = None, most: Any = None) -> Any:
    """Rewrite a clamp of integers; it is translated as one of numbers in floating point, which index nothing."""
    if x.is_floating_point() or isinstance(least, float) or isinstance(most, float):
        return NotImplemented
    for pick, bound in ((ATEN.maximum.default, least), (ATEN.minimum.default, most)):
        x = x if bound is None else pick(x, ATEN.full.default([1] * x.ndim, bound, dtype=x.dtype))
    return x


def zeros_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    """Rewrite zeros of another dtype than X; they are translated as of its own."""
    if dtype in (None, x.dtype) or x.is_floating_point():
        return NotImplemented
    return x.to(dtype) * 0


def gelu(x: Tensor, approximate: str = "none") -> Any:
    """Rewrite the tanh approximation of GELU (Hendrycks and Gimpel 2016, section 2)."""
    if approximate == "none":
        return NotImplemented
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + torch.tanh(inner))


def rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Rewrite RMSNorm (Zhang and Sennrich 2019, equation 4), which has no epsilon by default."""
    axes = list(range(-len(shape), 0))
    least = torch.finfo(x.dtype).eps if eps is None else eps
    scaled = x * torch.rsqrt((x * x).mean(axes, keepdim=True) + least)
    return scaled if weight is None else scaled * weight


def group_norm(  # torch's own arguments
    x: Tensor,
    groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _cudnn: bool = True,
) -> Tensor:
    """Rewrite group norm (Wu and He 2018, equation 1), of a batch of any size."""
    wide = x.reshape(x.shape[0], groups, -1)
    centred = wide - wide.mean(-1, keepdim=True)
    scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps)
    result, channels = scaled.reshape(x.shape), (1, -1, *[1] * (x.dim() - 2))
    result = result if weight is None else result * weight.reshape(channels)
    return result if bias is None else result + bias.reshape(channels)


def scatter_value(x: Tensor, dim: int, index: Tensor, value: float) -> Any:
    """Rewrite a scatter of one number as one of tensors, or of any size."""
    if varies(x, index):
        return scattering.scatter_value(x, dim, index, value)
    return ATEN.scatter.src(x, dim, index, (index * 0).to(x.dtype) + value)


def where_sizes_vary(rewrite: Any) -> Callable[..., Any]:
    """Return REWRITE of a scatter of sizes that vary, which coremltools does not translate."""
    return lambda x, dim, index, source: (
        rewrite(x, dim, index, source) if varies(x, index) else NotImplemented
    )


def varies(*tensors: Tensor) -> bool:
    """Say whether a size of one of TENSORS varies."""
    return any(not isinstance(size, int) for it in tensors for size in it.shape)


def with_letters(equation: str, operands: list[Tensor], **_: Any) -> Any:
    """Rewrite an einsum with dots for axes, which coremltools does not count."""
    return einsum(equation, operands) if REST in equation else NotImplemented


def grid(theta: Tensor, size: list[int], aligned: bool) -> Any:
    """Rewrite the places of an affine grid, those of boxes as torch does."""
    flat = affine_grid(theta, size, aligned)
    return affine_grid_generator(theta, size, aligned) if flat is NotImplemented else flat


def strided(pool: Any) -> Callable[..., Any]:
    """Return how POOL is rewritten where its stride is left to torch, which takes the size."""

    def rewrite(x: Tensor, size: list[int], stride: list[int] | None = None, *rest: Any) -> Any:
        return NotImplemented if stride else pool(x, size, size, *rest)

    return rewrite


# Operations that coremltools 9.0 translates into something else: of an exported GELU it drops
# `approximate` without a word (apple/coremltools#2863), an error of 2e-4.
# Triangles of infinities become NaN: it multiplies by 0. Zeros and clamped integers have another dtype,
# and deviations are divided by the whole count where nothing is said of it.
# Or that it refuses
# without need: epsilons or a stride that is left to torch, group norms and scatters of sizes that vary.
MISTRANSLATED: Final[Mapping[Any, Callable[..., Any]]] = {
    GRID: grid,  # it has no name for one
    ATEN.atan2.default: rewrites.atan2,
    ATEN.clamp.default: clamp,
    ATEN.clamp_max.default: lambda x, most: clamp(x, None, most),
    ATEN.clamp_min.default: clamp,
    ATEN.cosine_similarity.default: cosine_similarity,
    ATEN.einsum.default: with_letters,
    ATEN.gelu.default: gelu,
    ATEN.group_norm.default: group_norm,
    ATEN.pad.default: rewrites.pad,
    ATEN.rrelu.default: rewrites.rrelu,  # coremltools draws nothing in training either
    ATEN.scatter.src: where_sizes_vary(scattering.scatter),
    ATEN.scatter.value: scatter_value,
    ATEN.scatter_add.default: where_sizes_vary(scattering.scatter_add),
    ATEN.scatter_reduce.two: scattering.scatter_reduce,
    ATEN.rms_norm.default: rms_norm,
    **{it: rewrites.corrected(it) for it in (ATEN.std.correction, ATEN.var.correction)},
    **{it: rewrites.place_in_all(it) for it in (ATEN.argmax.default, ATEN.argmin.default)},
    ATEN.std_mean.correction: partial(rewrites.with_mean, ATEN.std.correction),
    ATEN.threshold.default: rewrites.threshold,
    ATEN.trunc.default: rewrites.trunc,
    ATEN.var_mean.correction: partial(rewrites.with_mean, ATEN.var.correction),
    ATEN.tril.default: rewrites.lower,
    ATEN.triu.default: rewrites.upper,
    ATEN.zeros_like.default: zeros_like,
    ATEN.upsample_bicubic2d.vec: upsample_bicubic2d_vec,  # of sizes that vary
    ATEN.upsample_nearest2d.vec: rewrites.nearest,
    **{pool: strided(pool) for pool in POOLS},
}

# Interpolations that coremltools lacks, or leaves aliased without a word, or refuses by a factor that is no whole one.
INTERPOLATED: Final[Mapping[Any, Choice]] = {
    **dict.fromkeys((*SMOOTH, CUBIC, LINEAR[2]), always),
    **dict.fromkeys(LINEAR[:2], lambda axes: any(it.factor and not it.whole for it in axes)),
}

# Operations that torch's own decompositions leave as they are.
DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    **rewrites.RARE,
    **dict.fromkeys((ATEN.fmod.Tensor, ATEN.fmod.Scalar), rewrites.fmod),
    ATEN.lerp.Scalar: rewrites.lerp,
    ATEN.log_sigmoid.default: rewrites.log_sigmoid,
    ATEN.nansum.default: rewrites.nansum,
    ATEN.__and__.Tensor: ATEN.bitwise_and.Tensor,
    ATEN.__or__.Tensor: boolean_or,
    ATEN._cdist_forward.default: distances,
    ATEN.alias.default: ATEN.clone.default,
    ATEN.bitwise_or.Tensor: boolean_or,
    ATEN.bucketize.Tensor: bucketize,
    ATEN.index_add.default: scattering.index_add,
    ATEN.index_copy.default: scattering.index_copy,
    ATEN.median.default: median_of_all,
    ATEN.median.dim: median,
    ATEN.unfold.default: windows,
    ATEN.where.ScalarOther: where_scalar,
    SCAN: doubled,
}


# A mask of the smallest float32 overflows to -inf in float16, and a row without any key to NaN.
# coremltools' own choice for attention masks is finite, and leaves room to add a score to.
MASKED: Final = -3e4
HALF_MAXIMUM: Final = 65504.0
CLAMPS: Final = frozenset(
    {ATEN.clamp.default, ATEN.clamp_min.default, ATEN.clamp_max.default, ATEN.hardtanh.default}
)


def within_half(value: Any) -> Any:
    """Return VALUE, or a large number of its sign where float16 cannot hold it finite.

    >>> within_half(torch.finfo(torch.float32).min), within_half(1e-7), within_half("none")
    (-30000.0, 1e-07, 'none')
    """
    if isinstance(value, float) and HALF_MAXIMUM < abs(value) < float("inf"):
        return math.copysign(MASKED, value)
    return value


def bound_constants(exported: ExportedProgram) -> None:
    """Replace numbers in the graph that overflow in float16, in place; bounds of clamps stay."""
    for node in exported.graph.nodes:
        if node.op == "call_function" and node.target not in CLAMPS:
            node.args = tree_map_only(float, within_half, node.args)
            node.kwargs = tree_map_only(float, within_half, node.kwargs)
    for name, value in exported.constants.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() == 0:
            exported.constants[name] = torch.tensor(within_half(value.item()), dtype=value.dtype)


def kind(target: Any) -> str:
    """Return the name under which coremltools looks for a translation of TARGET."""
    name = target.name() if hasattr(target, "name") else getattr(target, "__name__", str(target))
    return str(sanitize_op_kind(name))


def untranslated(exported: ExportedProgram) -> Counter[Any]:
    """Count the operations of EXPORTED that coremltools has no translation for."""
    targets = (node.target for node in exported.graph.nodes if node.op == "call_function")
    return Counter(t for t in targets if kind(t) not in TRANSLATIONS)


def runs_of(order: Sequence[int]) -> list[list[int]]:
    """Return the axes in ORDER that stay beside one another, as runs.

    >>> runs_of([0, 1, 3, 2, 4, 5])
    [[0, 1], [3], [2], [4, 5]]
    """
    runs: list[list[int]] = []
    for axis in order:
        if runs and runs[-1][-1] + 1 == axis:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def merge_axes(exported: ExportedProgram) -> None:
    """Let permutations of more axes than Core ML has permute those together that stay together, in place.

    Windows of an image are six axes between two views; what they hold is the same in four.
    """
    graph = exported.graph
    for node in list(graph.nodes):
        if (order := order_of(node)) and len(order) > MOST_AXES:
            merge(graph, node, order)
    graph.eliminate_dead_code()
    exported.graph_module.recompile()


def order_of(node: Any) -> list[int]:
    """Return the order in which NODE puts the axes of its input; none if it is no permutation."""
    if node.target not in (ATEN.permute.default, ATEN.transpose.int):
        return []
    axes = list(range(node.meta["val"].dim()))
    if node.target is ATEN.permute.default:
        return [axes[axis] for axis in node.args[1]]
    first, second = node.args[1:]
    axes[first], axes[second] = axes[second], axes[first]
    return axes


def merge(graph: Any, node: Any, order: Sequence[int]) -> None:
    """Merge the axes of NODE, which puts those of a view in this ORDER, where a view follows."""
    source = node.args[0]
    if source.target not in VIEWS or not all(user.target in SHAPELESS for user in node.users):
        return
    runs, sizes = runs_of(order), source.meta["val"].shape
    merged = [math.prod(sizes[axis] for axis in run) for run in sorted(runs)]
    shape = [size if isinstance(size, int) else -1 for size in merged]
    if shape.count(-1) > 1 or len(shape) > MOST_AXES:
        return
    with graph.inserting_before(node):
        view = graph.call_function(ATEN.view.default, (source.args[0], shape))
    view.meta = {**source.meta, "val": source.meta["val"].reshape(merged)}
    node.target, node.args = ATEN.permute.default, (view, [sorted(runs).index(it) for it in runs])
    node.meta["val"] = view.meta["val"].permute(node.args[1])
    for user in node.users.keys() - {it for it in node.users if it.target in VIEWS}:
        user.meta["val"] = node.meta["val"]


def decompositions_of(targets: Collection[Any]) -> dict[Any, Callable[..., Any]]:
    """Return our decompositions of TARGETS, or torch's, for those that have one."""
    own = {it: DECOMPOSITIONS[it] for it in targets if it in DECOMPOSITIONS}
    if len(own) == len(targets):  # torch makes all of its table when it is asked for any
        return own
    torchs = torch.export.default_decompositions()
    return {it: torchs[it] for it in targets if it in torchs} | own


def lower(exported: ExportedProgram) -> ExportedProgram:
    """Decompose what coremltools cannot translate, and nothing else.

    Raises:
        UnsupportedError: operations that neither coremltools nor a decomposition knows, all of
            them with counts.
    """
    exported = as_products(interpolated(exported, INTERPOLATED, "Core ML"), "Core ML")
    matrices = [*exported.graph_module.meta[MATRICES], *grids(exported)]
    table = dict(MISTRANSLATED)
    for _ in range(ROUNDS):
        table |= decompositions_of(untranslated(exported))
        if not table:
            break
        exported, table = exported.run_decompositions(table), {}
    merge_axes(exported)
    exported.graph_module.meta[MATRICES] = matrices
    if missing := untranslated(exported):
        listed = ", ".join(f"{kind(target)} ({n})" for target, n in missing.most_common())
        raise UnsupportedError(
            f"{counted(missing.total(), 'operation')} without a Core ML translation: {listed};"
            " rewrite the model without them"
        )
    return exported
