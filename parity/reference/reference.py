"""The reference: the source's own code, really in float64.

``module.double()`` is not enough. Libraries ask for float32 by name in norms, rotary embeddings and
softmax, and the error that leaves is as large as the one to be measured. :class:`TrueFloat64`
answers every such request with float64, and a census of all dtypes proves that none was missed.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...converters.common.arrays import from_torch, to_torch
from ...converters.common.dtypes import dtype_of
from ...converters.common.steps import each
from ...converters.models import Model, Signature
from ...converters.quantization.rounding import round_once
from ...converters.runtimes.torch import (
    DTYPES,
    bare,
    build,
    build_module,
    call,
    recording,
)
from ...converters.values import Array, LowRank
from ...errors import UnsupportedError
from ..goldens.rounding import parse_storage
from ..probes.probes import Probe
from ..weights.weights import own_copy

NARROW: Final = frozenset((torch.float32, torch.float16, torch.bfloat16))
CASTS: Final = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
}
HALF_MAX: Final = 65504.0
BLOCK: Final = 1 << 20  # elements rounded at a time
Outputs = dict[str, Array]


def _widen(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


class TrueFloat64(TorchFunctionMode):
    """Answer every request for a narrower floating dtype with float64.

    >>> with TrueFloat64():
    ...     torch.ones(1, dtype=torch.float32).float().dtype
    torch.float64
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION with every narrow dtype among its arguments replaced."""
        wide = {key: _widen(value) for key, value in (kwargs or {}).items()}
        return CASTS.get(function, function)(*map(_widen, args), **wide)


class RoundedConstants(TorchFunctionMode):
    """Round every Python number among the arguments through float16, as an ML program keeps them.

    What would vanish keeps the least magnitude (coremltools 9, passes/defs/quantization.py), and
    what would overflow, a mask's sentinel, stays as it is.

    >>> with RoundedConstants():
    ...     (torch.ones(1, dtype=torch.float64) * 0.1).item()
    0.0999755859375
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call FUNCTION with rounded constants."""
        named = {key: _half(value) for key, value in (kwargs or {}).items()}
        return function(*map(_half, args), **named)


def _half(value: Any) -> Any:
    if not isinstance(value, float) or not abs(value) <= HALF_MAX:
        return value
    rounded = float(np.float16(value))
    return math.copysign(2.0**-24, value) if value and not rounded else rounded


def constants_of(storage: str) -> contextlib.AbstractContextManager[object]:
    """Return the mode in which a source runs whose target keeps its weights in STORAGE."""
    return RoundedConstants() if parse_storage(storage).constants else contextlib.nullcontext()


class DtypeCensus(TorchDispatchMode):
    """Count the operations that read or make a tensor narrower than float64.

    Attributes:
        narrow: how often each ``operation: dtype`` was seen.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.narrow: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run FUNCTION and look at the dtypes on both of its sides."""
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in NARROW:
                self.narrow[f"{function}: {str(leaf.dtype).removeprefix('torch.')}"] += 1
        return result


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """Create tensors without a named dtype in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def true_float64() -> Iterator[DtypeCensus]:
    """Compute in float64, and prove it on leaving.

    Raises:
        UnsupportedError: some operation used a narrower dtype all the same; it is named.
    """
    census = DtypeCensus()
    with torch.no_grad(), default_float64(), census, TrueFloat64():
        yield census
    if census.narrow:
        worst = ", ".join(f"{what} ({count}x)" for what, count in census.narrow.most_common(5))
        raise UnsupportedError(
            f"the float64 reference would not be one: {worst}. The source makes these tensors in a"
            " way that Weighbridge cannot widen; build the module with float64 constants"
        )


def float64_module(model: Model) -> nn.Module:
    """Build MODEL in float64; buffers that it computes itself are computed in float64."""
    with default_float64(), TrueFloat64():
        return build_module(own_copy(model), "float64")


def float32_module(model: Model) -> nn.Module:
    """Build MODEL in float32."""
    return build_module(own_copy(model), "float32")


def narrow_module(model: Model, dtype: str) -> nn.Module:
    """Build MODEL as it runs in DTYPE: buffers that it computes itself stay in float32.

    So does ``from_pretrained(dtype=...)``; rotary frequencies in 16 bit would be another model.
    """
    module, exact = build_module(own_copy(model), dtype), float32_module(model)
    originals = dict(exact.named_modules())
    for path, child in module.named_modules():
        for name in child._non_persistent_buffers_set:
            setattr(child, name, getattr(originals[path], name))
    return module


def fold(module: nn.Module, updates: Mapping[str, LowRank]) -> None:
    """Put each update into its weight, the sum in float64."""
    for name, update in updates.items():
        weight = module.get_parameter(name)
        weight.data = to_torch(update.applied_to(from_torch(weight))).to(weight.dtype)


def round_weights(module: nn.Module, dtype: str, names: Collection[str] | None = None) -> nn.Module:
    """Round parameters and persistent floating-point buffers through DTYPE, in place.

    Args:
        module: what to round; it keeps its own dtype.
        dtype: such as ``bfloat16``.
        names: which of them; ``None`` for all.
    """
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and (names is None or name in names):
            tensor.copy_(rounded(tensor, dtype))
    return module


def rounded(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    """Return TENSOR in DTYPE, rounded once; from float64 to 16 bits torch goes through float32.

    >>> above_a_tie = torch.tensor([1 + 2.0**-8 + 2.0**-40], dtype=torch.float64)
    >>> above_a_tie.to(torch.bfloat16).item(), rounded(above_a_tie, "bfloat16").item()
    (1.0, 1.0078125)
    """
    if tensor.dtype is not torch.float64:
        return tensor.to(DTYPES[dtype])
    result = torch.empty(tensor.shape, dtype=DTYPES[dtype])
    wide, narrow = tensor.reshape(-1), result.view(-1)
    for start in range(0, len(wide), BLOCK):
        part = from_torch(wide[start : start + BLOCK])
        narrow[start : start + BLOCK] = to_torch(round_once(part, dtype_of(dtype)))
    return result


def stored_as(
    model: Model, compute: str, storage: str, names: Collection[str] | None = None
) -> nn.Module:
    """Build MODEL to compute in COMPUTE with the weights that a target keeps in STORAGE.

    A live adapter is folded into the weights first, in float64, as a merging target does.

    Args:
        model: the source.
        compute: ``float64`` or ``float32``.
        storage: ``stored``, the source's own weights with its adapter live, or a dtype, with
            ``+constants`` where the target rounds its constants too; see ``rounding``.
        names: the weights that the target rounds; ``None`` for all.
    """
    build = float64_module if compute == "float64" else float32_module
    storage, _, scalars = parse_storage(storage)
    if storage == "stored":
        return round_scalars(build(model), scalars)
    if model.adapter is None:
        module = build(model)
    else:
        whole = replace(model, adapter=replace(model.adapter, updates={}))
        module, wide = build(whole), float64_module(whole)
        updates = bare(own_copy(model)).updates
        fold(wide, updates)
        for name in updates:  # rounded once, from the float64 sum
            narrow = rounded(wide.get_parameter(name).data, storage)
            module.get_parameter(name).data = narrow.to(DTYPES[compute])
    return round_scalars(round_weights(module, storage, names), scalars)


def round_scalars(module: nn.Module, dtype: str) -> nn.Module:
    """Round the floating-point buffers of one element through DTYPE, in place; none if it is empty."""
    for tensor in module.buffers() if dtype else ():
        if tensor.numel() == 1 and tensor.is_floating_point():
            tensor.copy_(rounded(tensor, dtype))
    return module


def feed(signature: Signature, probe: Probe, dtype: str) -> dict[str, torch.Tensor]:
    """Return PROBE's inputs as tensors, floating-point ones in DTYPE."""
    tensors = {port.name: to_torch(probe.inputs[port.name]) for port in signature.inputs}
    return {
        name: tensor.to(DTYPES[dtype]) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }


def module_outputs(
    module: nn.Module, signature: Signature, probes: Sequence[Probe], dtype: str
) -> list[Outputs]:
    """Return MODULE's outputs for each probe, floating-point inputs fed in DTYPE."""
    names = tuple(port.name for port in signature.outputs)
    feeds = [feed(signature, probe, dtype) for probe in probes]
    with torch.no_grad():
        results = [call(module, tensors, names) for tensors in feeds]
    return [{name: from_torch(tensor) for name, tensor in row.items()} for row in results]


def float64_outputs(
    module: nn.Module, signature: Signature, probes: Sequence[Probe]
) -> list[Outputs]:
    """Return the float64 outputs of MODULE for each probe.

    Args:
        module: built in float64, see :func:`float64_module`.
        signature: names of inputs and outputs.
        probes: inputs.

    Raises:
        UnsupportedError: a narrower dtype took part; see :func:`true_float64`.
    """
    feeds = [feed(signature, probe, "float64") for probe in probes]
    names = tuple(port.name for port in signature.outputs)
    with true_float64():
        each_feed = each("checking: float64 reference, probe", feeds)
        results = [call(module, tensors, names) for tensors in each_feed]
    return [{name: from_torch(tensor) for name, tensor in row.items()} for row in results]


def float64_sites(
    module: nn.Module, signature: Signature, probes: Sequence[Probe]
) -> list[dict[str, Array]]:
    """Return the float64 output of every submodule of MODULE for each probe."""
    feeds = [feed(signature, probe, "float64") for probe in probes]
    names = tuple(port.name for port in signature.outputs)
    recorded: list[dict[str, Array]] = []
    for tensors in each("recording inner sites, probe", feeds):
        with recording(module, None) as sites, true_float64():
            call(module, tensors, names)
        recorded.append(sites)
    return recorded


def unneeded(model: Model, probe: Probe) -> set[str]:
    """Return the torch names of MODEL's tensors on which no output depends, or that are not loaded.

    A target may lack them: a pooler that no output uses, positions that it counts itself.

    Args:
        model: what is run, in float32.
        probe: one is enough, since dependence is on the graph and not on values.
    """
    module, found = build(own_copy(model), "float32")
    unused = {*unused_weights(module, model.signature, probe)}
    return {name for name, weight in found.items() if weight is None or weight in unused}


def unused_weights(module: nn.Module, signature: Signature, probe: Probe) -> list[str]:
    """Return the parameters of MODULE on which no output depends, and its integer buffers.

    Args:
        module: built in float32; its gradients are used and cleared.
        signature: names the outputs that matter.
        probe: one is enough, since dependence is on the graph and not on values.
    """
    names = tuple(port.name for port in signature.outputs)
    module.requires_grad_(requires_grad=True)
    with torch.enable_grad():
        results = call(module, feed(signature, probe, "float32"), names)
        total = sum(it.sum() for it in results.values() if it.requires_grad)
    if isinstance(total, torch.Tensor):
        torch.autograd.backward(total)
    unused = unreached(module)
    module.zero_grad(set_to_none=True)
    module.requires_grad_(requires_grad=False)
    return unused + [name for name, it in module.named_buffers() if not it.is_floating_point()]


def unreached(module: nn.Module) -> list[str]:
    """Return the parameters of MODULE that have no gradient, experts that were not chosen aside.

    An expert is a module with two numbers in its path, such as ``layers.3.experts.7``. Where a
    sibling of it was reached, it was not chosen for this input and may be for another.
    """
    reached = {_sibling(name) for name, it in module.named_parameters() if it.grad is not None}
    return [
        name
        for name, it in module.named_parameters()
        if it.grad is None and (_sibling(name) == name or _sibling(name) not in reached)
    ]


def _sibling(name: str) -> str:
    """Return NAME without its last number if there are more before it.

    >>> _sibling("layers.3.experts.7.up"), _sibling("layers.3.up")
    ('layers.3.experts.*.up', 'layers.3.up')
    """
    parts = name.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    if len(numbers) > 1:
        parts[numbers[-1]] = "*"
    return ".".join(parts)


def forced_sites(
    module: nn.Module,
    signature: Signature,
    probes: Sequence[Probe],
    corrections: Sequence[Mapping[str, Array]],
    dtype: str = "float32",
) -> list[dict[str, Array]]:
    """Return what each submodule of MODULE computes from the reference's inputs in DTYPE.

    Args:
        module: built in DTYPE.
        signature: names of inputs and outputs.
        probes: inputs.
        corrections: float64 outputs of every site, per probe.
        dtype: of the computation.
    """
    names = tuple(port.name for port in signature.outputs)
    recorded: list[dict[str, Array]] = []
    for probe, fixed in zip(probes, corrections, strict=True):
        with recording(module, fixed) as sites, torch.no_grad():
            call(module, feed(signature, probe, dtype), names)
        recorded.append(dict(sites))
    return recorded
