"""Lower an exported torch graph to operations that coremltools translates.

coremltools lags behind torch. What it has no translation for is first rewritten with torch's own
decompositions, or with the few below, and only then refused: nothing in coremltools is patched.
Rows written for coremltools 9.0; a row is used only where the installed version lacks the operation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map_only

from ...errors import UnsupportedError
from ..captures.mlprogram.toolkit import quiet

with quiet():
    from coremltools.converters.mil.frontend.torch.ops import (  # noqa: F401  (fills the registry)
        convert_nodes,
    )
    from coremltools.converters.mil.frontend.torch.torch_op_registry import _TORCH_OPS_REGISTRY
    from coremltools.converters.mil.frontend.torch.utils import sanitize_op_kind

ATEN: Final = torch.ops.aten
TRANSLATIONS: Final = _TORCH_OPS_REGISTRY.name_to_func_mapping
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


# Operations that coremltools 9.0 translates into something else: of an exported GELU it drops
# `approximate` without a word (apple/coremltools#2863), an error of 2e-4. Or that it refuses
# without need: a norm whose epsilon is left to torch.
MISTRANSLATED: Final[Mapping[Any, Callable[..., Any]]] = {
    ATEN.gelu.default: gelu,
    ATEN.rms_norm.default: rms_norm,
}

# Operations that torch's own decompositions leave as they are.
DECOMPOSITIONS: Final[Mapping[Any, Callable[..., Any]]] = {
    ATEN.__and__.Tensor: ATEN.bitwise_and.Tensor,
    ATEN.__or__.Tensor: boolean_or,
    ATEN.alias.default: ATEN.clone.default,
    ATEN.bitwise_or.Tensor: boolean_or,
    ATEN.where.ScalarOther: where_scalar,
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


def lower(exported: ExportedProgram) -> ExportedProgram:
    """Decompose what coremltools cannot translate, and nothing else.

    Raises:
        UnsupportedError: operations that neither coremltools nor a decomposition knows, all of
            them with counts.
    """
    available = {**torch.export.default_decompositions(), **DECOMPOSITIONS}
    exported = exported.run_decompositions(dict(MISTRANSLATED))
    for _ in range(ROUNDS):
        missing = untranslated(exported)
        table = {target: available[target] for target in missing if target in available}
        if not table:
            break
        exported = exported.run_decompositions(table)
    if missing := untranslated(exported):
        listed = ", ".join(f"{kind(target)} ({n})" for target, n in missing.most_common())
        raise UnsupportedError(
            f"{missing.total()} operations have no Core ML translation: {listed};"
            " rewrite the model without them"
        )
    return exported
