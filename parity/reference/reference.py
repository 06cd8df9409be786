"""The source as it runs: in float64, in float32 and in 16 bits, with weights as a target stores them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import nn

from ...converters.captures.throughout import throughout
from ...converters.common.arrays import from_torch, to_torch
from ...converters.common.dtypes import dtype_of
from ...converters.common.memory import pass_on_shortage
from ...converters.common.steps import each, step
from ...converters.models import Model, Signature
from ...converters.quantization.rounding import round_once
from ...converters.runtimes.streamed.modules import bare_module, open_module, tensors_of
from ...converters.runtimes.streamed.tensors import FileTensor
from ...converters.runtimes.streamed.together import together
from ...converters.runtimes.streamed.weights import changed, remade
from ...converters.runtimes.torch import DTYPES, call, recording, torch_side
from ...converters.values import Array, LowRank
from ..goldens.rounding import parse_storage
from ..probes.probes import Probe, compared
from ..weights.weights import own_copy
from .float64 import TrueFloat64, default_float64, true_float64

BLOCK: Final = 1 << 20  # elements rounded at a time
Outputs = dict[str, Array]


def float64_module(model: Model) -> nn.Module:
    """Build MODEL in float64; buffers that it computes itself are computed in float64."""
    with default_float64(), TrueFloat64():
        return open_module(own_copy(model), "float64")


def float32_module(model: Model) -> nn.Module:
    """Build MODEL in float32."""
    return open_module(own_copy(model), "float32")


def narrow_module(model: Model, dtype: str, probes: Sequence[Probe] = ()) -> nn.Module:
    """Build MODEL as it runs in DTYPE: a user's own that does not run on the first of PROBES, in DTYPE throughout."""
    module = open_module(own_copy(model), dtype)
    if model.factory is None or not probes:
        return module
    try:
        module_outputs(module, model.signature, probes[:1], dtype)
    except Exception as error:  # whatever a user's module raises
        pass_on_shortage(error)
        return throughout(module, DTYPES[dtype])
    return module


def fold(module: nn.Module, updates: Mapping[str, LowRank], storage: str = "float64") -> None:
    """Put each update into its weight, the sum in float64, rounded once to STORAGE."""
    on_disk = tensors_of(module)

    def summed(weight: torch.Tensor, update: LowRank) -> torch.Tensor:
        total = to_torch(update.applied_to(from_torch(weight.double())))
        return rounded(total, storage)

    for name, update in updates.items():
        if name in on_disk:
            tensor, add = on_disk[name], partial(summed, update=update)
            tensor.weight = remade(tensor.weight, add)
        else:
            weight = module.get_parameter(name)
            weight.data = summed(weight, update).to(weight.dtype)


def round_weights(module: nn.Module, dtype: str, names: Collection[str] | None = None) -> nn.Module:
    """Round parameters and persistent floating-point buffers through DTYPE, in place.

    Args:
        module: what to round; it keeps its own dtype.
        dtype: such as ``bfloat16``.
        names: which of them; ``None`` for all.
    """
    on_disk = tensors_of(module)
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point() or (names is not None and name not in names):
            continue
        if name in on_disk:
            on_disk[name].weight = changed(on_disk[name].weight, partial(rounded, dtype=dtype))
        elif not isinstance(tensor, FileTensor):  # one by another name has been rounded
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
            ``+constants`` where the target rounds its constants too, ``+wide`` where it rounds nothing
            that the source keeps in more bits; see ``rounding``.
        names: the weights that the target rounds; ``None`` for all.
    """
    build = float64_module if compute == "float64" else float32_module
    storage, _, scalars, keeps = parse_storage(storage)
    if storage == "stored":
        return round_scalars(build(model), scalars)
    if model.adapter is None:
        module = build(model)
    else:
        whole = replace(model, adapter=replace(model.adapter, updates={}))
        module, bare = build(whole), bare_module(own_copy(model))
        wide = {bare.places.get(it) for it in torch_side(model).wide} if keeps else set()
        for kept, dtype in ((True, compute), (False, storage)):
            some = {name: it for name, it in bare.updates.items() if (name in wide) == kept}
            fold(module, some, dtype)
        names = module.state_dict().keys() - wide if names is None else names
    return round_scalars(round_weights(module, storage, names), scalars)


def round_scalars(module: nn.Module, dtype: str) -> nn.Module:
    """Round the floating-point buffers of one element through DTYPE, in place; none if it is empty."""
    for tensor in scalars_of(module) if dtype else ():
        tensor.copy_(rounded(tensor, dtype))
    return module


def scalars_of(module: nn.Module) -> list[torch.Tensor]:
    """Return the floating-point buffers of MODULE that have one element."""
    return [it for it in module.buffers() if it.numel() == 1 and it.is_floating_point()]


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
        results = together(module, [partial(call, module, tensors, names) for tensors in feeds])
    return arrays(signature, probes, results)


def arrays(
    signature: Signature, probes: Sequence[Probe], results: Sequence[Mapping[str, torch.Tensor]]
) -> list[Outputs]:
    """Return RESULTS of each probe in numpy, at the positions that are compared."""
    rows = [{name: from_torch(tensor) for name, tensor in row.items()} for row in results]
    return [compared(signature, *it) for it in zip(probes, rows, strict=True)]


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

    def run(number: int, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        step(f"checking: float64 reference, probe {number} of {len(feeds)}")
        return call(module, tensors, names)

    with true_float64():
        results = together(module, [partial(run, *it) for it in enumerate(feeds, 1)])
    return arrays(signature, probes, results)


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


def forced_sites(
    module: nn.Module,
    signature: Signature,
    probes: Sequence[Probe],
    corrections: Sequence[Mapping[str, Array]],
) -> list[dict[str, Array]]:
    """Return what each submodule of MODULE computes from the reference's inputs in float32.

    Args:
        module: built in float32.
        signature: names of inputs and outputs.
        probes: inputs.
        corrections: float64 outputs of every site, per probe.
    """
    names = tuple(port.name for port in signature.outputs)
    recorded: list[dict[str, Array]] = []
    for probe, fixed in zip(probes, corrections, strict=True):
        with recording(module, fixed) as sites, torch.no_grad():
            call(module, feed(signature, probe, "float32"), names)
        recorded.append(dict(sites))
    return recorded
