"""Recording a module with ``torch.export``."""

from __future__ import annotations

import contextlib
import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, Final
from unittest import mock

import mlx.core as mx
import numpy as np
import torch
from torch.export import Dim, ExportedProgram
from torch.export._trace import _export as _export_at

from ....errors import BadInputError, UnsupportedError
from ...common.arrays import from_mlx, to_torch
from ...common.memory import pass_on_shortage
from ..tracing import unused_left_out
from .operations.decompositions import decomposed, functional
from .operations.recurrent.recorded import check_packed, kept_whole
from .ports import ASKED, FIXED, HELD
from .recording.arguments import Inputs, by_name, leaves, mapped
from .recording.autograd.functions import Use, functions_noted
from .recording.autograd.lifting import lift
from .recording.autograd.transforms import autograd_refused, transforms_noted
from .recording.autograd.writes import pass_hidden_writes
from .recording.blocks import detach_blocks, drop_answers, refused_in_autocast
from .recording.chosen.reads import keep_reads_whole
from .recording.comparing import SameMasks
from .recording.cures import cured
from .recording.deciding.counted import count_reads
from .recording.deciding.experts import has_experts
from .recording.deciding.holding import candidates, holding, is_open, shows
from .recording.deciding.indifferent import without_indifferent
from .recording.deciding.masks import as_the_example, held, is_decision, is_mask
from .recording.deciding.none import skips_nothing
from .recording.deciding.sizes import sizes_open
from .recording.deciding.some import taken_to_show_some
from .recording.failures import refuse
from .recording.hooks import hooks_refused, refuse_hooks
from .recording.kept.counters import refuse_counters
from .recording.kept.numbers import Counted, numbers_known
from .recording.pure import made_pure
from .recording.sources import drop_unchanged
from .recording.strides import order_as_stored

FAKE: Final = "torch._subclasses.fake_tensor"  # logs each failure with a traceback
Dynamic = Mapping[str, Mapping[int, str]]


def _tensor(value: Any) -> Any:
    """Return VALUE as a tensor of its own: torch takes inputs that are one object for one input."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, mx.array):
        return to_torch(from_mlx(value))
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def check_form(dynamic: Any) -> None:
    """Refuse what is no mapping of inputs to their axes, and those to names.

    Raises:
        BadInputError: it is not; how it is written is said.
    """
    axes = list(dynamic.values()) if isinstance(dynamic, Mapping) else [None]
    names = [
        isinstance(axis, int) and axis >= 0 and isinstance(name, str)
        for each in axes
        if isinstance(each, Mapping)
        for axis, name in each.items()
    ]
    if not all(names) or not all(isinstance(each, Mapping) for each in axes):
        raise BadInputError(
            f"`dynamic` is {dynamic!r}; it maps an input to its axes, counted from 0, and those to names:"
            ' {"x": {0: "batch"}}'
        )


def _check_dynamic(inputs: Mapping[str, Any], dynamic: Dynamic) -> None:
    inputs = leaves(inputs)
    for name, axes in dynamic.items():
        if name not in inputs:
            raise BadInputError(f"`dynamic` names {name!r}, which is not among the example inputs")
        axis = max(axes, default=-1)
        if not isinstance(inputs[name], torch.Tensor) or axis >= inputs[name].ndim:
            raise BadInputError(f"`dynamic` names axis {axis} of input {name!r}, which it has not")


def _widened(name: str, value: Any, dynamic: Dynamic) -> Any:
    """Repeat along varying axes of size 1: torch takes a 1 for a constant."""
    for axis in dynamic.get(name, {}):
        if value.shape[axis] == 1:
            value = value.repeat_interleave(2, dim=axis)
    return value


def example(inputs: Mapping[str, Any], dynamic: Dynamic) -> dict[str, Any]:
    """Return INPUTS as tensors, at least 2 long along every axis that may vary."""
    tensors = mapped(lambda _, value: _tensor(value), inputs)
    _check_dynamic(tensors, dynamic)
    return mapped(lambda name, value: _widened(name, value, dynamic), tensors)


def _shapes(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> dict[str, Any] | None:
    """Return which sizes ``torch.export`` shall try to keep open."""
    if not any(dynamic.values()):
        return None
    unnamed = set(tensors) - set(inspect.signature(module.forward).parameters)
    if unnamed:
        raise UnsupportedError(
            f"sizes of {', '.join(sorted(unnamed))} cannot vary: torch.export needs inputs that are "
            f"parameters of {type(module).__name__}.forward, not of its **kwargs"
        )
    return mapped(
        lambda name, value: (
            dict.fromkeys(dynamic.get(name, {}), Dim.AUTO)
            if isinstance(value, torch.Tensor)
            else None
        ),
        tensors,
    )


def _functional(program: ExportedProgram) -> ExportedProgram:
    """Return PROGRAM, which is changed, without updates in place."""
    drop_answers(program)
    pass_hidden_writes(program)
    detach_blocks(program)
    pure = made_pure(program)
    changed = functional(program) if pure is None else decomposed(pure)
    drop_unchanged(changed)
    order_as_stored(changed)
    keep_reads_whole(changed)
    count_reads(changed)
    return changed


def functionalized(program: ExportedProgram) -> ExportedProgram:
    """Return PROGRAM, which stays as it is, as :func:`record` returns programs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copied = deepcopy(program.graph_module)
        for node, old in zip(copied.graph.nodes, program.graph.nodes, strict=True):
            node.name = old.name  # a copy renames what is called as a builtin is, such as ``input``
        return _functional(program._update(copied, deepcopy(program.graph_signature)))


def record(module: torch.nn.Module, inputs: Inputs, dynamic: Dynamic) -> ExportedProgram:
    """Record MODULE on INPUTS, functionalized, with operations that have a handler kept whole."""
    return refuse_counters(
        module,
        lambda: example(by_name(module, inputs), dynamic),
        lambda: _recorded_once(module, inputs, dynamic),
    )


def _recorded_once(module: torch.nn.Module, inputs: Inputs, dynamic: Dynamic) -> ExportedProgram:
    with contextlib.suppress(Counted), numbers_known(module):
        return _recorded(module, inputs, dynamic)
    return _recorded(module, inputs, dynamic)


def _recorded(module: torch.nn.Module, inputs: Inputs, dynamic: Dynamic) -> ExportedProgram:
    refuse_hooks(module)
    tensors = example(by_name(module, inputs), dynamic)
    try:
        with transforms_noted() as transforms:
            program = _exported(module, tensors, dynamic)
    except Exception as error:
        found = _as_decided(module, tensors, dynamic) if is_decision(error) else None
        if found is None and transforms:
            found = _tried(module, tensors, dynamic, partial(_exported, export=_export_gradients))
        return found or refuse(error, type(module).__name__)
    if not is_open(program):
        return program
    return _as_held(module, tensors, dynamic) or program


def _as_decided(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram | None:
    """Return MODULE recorded as it decides for TENSORS by masks, or by whole numbers; ``None`` if it cannot be."""
    ways = [_by_masks, _with_some, _as_held]
    if not any(map(is_mask, tensors)):
        ways = [_with_some, _as_held, _by_masks]
    ways = [_by_all_experts, *ways] if has_experts(module) else ways
    found = (way(module, tensors, dynamic) for way in ways)
    return next((program for program in found if program), None)


def _by_all_experts(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram | None:
    """Return MODULE recorded with every expert on every token; ``None`` where more is decided by values."""
    with holding(module, {}):
        program = _tried(module, tensors, dynamic)
    return None if program is None or is_open(program) else program


def _with_some(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram | None:
    """Return MODULE recorded with masks that show something; ``None`` where it matters that it skips what shows nothing."""
    with taken_to_show_some(module):
        plain = _tried(module, tensors, dynamic, _looked_at)
    if plain is None or not skips_nothing(plain, module, tensors):
        return None
    with taken_to_show_some(module):
        program = _tried(module, tensors, dynamic)
    return None if program is None or is_open(program) else program


def _by_masks(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram | None:
    with as_the_example():
        program = _tried(module, tensors, dynamic)
        known = program is not None and held(program) and not is_open(program)
    return program if known else None


def _as_held(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram | None:
    """Return MODULE recorded with those whole numbers held that decide; ``None`` if that is not enough."""
    may = candidates(tensors, dynamic)
    with holding(module, may) as known:
        _tried(module, tensors, dynamic, _looked_at)
    values = {name: may[name] for name in sorted(known.read - known.looked_up)}
    with holding(module, values):
        program = _tried(module, tensors, dynamic) or _by_masks(module, tensors, dynamic)
    if program is None or is_open(program) or (values and not shows(program)):
        return None
    program.graph_module.meta[HELD] = values
    return program


def _tried(
    module: torch.nn.Module,
    tensors: Mapping[str, Any],
    dynamic: Dynamic,
    attempt: Callable[..., ExportedProgram] | None = None,
) -> ExportedProgram | None:
    """Return MODULE recorded; ``None`` where that fails: the error of the first attempt says what to do."""
    try:
        return (attempt or _exported)(module, tensors, dynamic)
    except Exception as error:
        pass_on_shortage(error)
        return None


def _exported(
    module: torch.nn.Module,
    tensors: Mapping[str, Any],
    dynamic: Dynamic,
    export: Callable[..., ExportedProgram] | None = None,
) -> ExportedProgram:
    with recording(module, tensors, dynamic) as uses, SameMasks():
        with sizes_open() as sizes:
            program = (export or _export)(module, tensors, dynamic)
            if export and uses:
                raise UnsupportedError("an autograd.Function has no backward below autograd")
        changed = _functional(program)
    asked = without_indifferent(changed, module, tensors, sizes.conditions, sizes.choices)
    changed.graph_module.meta.update({FIXED: sizes.fixed, ASKED: asked})
    lift(changed, uses)
    check_packed(changed.graph)
    return changed


def _looked_at(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram:
    """Return MODULE recorded as it is, which is enough to see what decides."""
    with recording(module, tensors, dynamic), SameMasks(), sizes_open():
        return _export(module, tensors, dynamic)


def _export(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram:
    shapes = _shapes(module, tensors, dynamic)
    return torch.export.export(module, (), tensors, dynamic_shapes=shapes, strict=False)


def _export_gradients(
    module: torch.nn.Module, tensors: Mapping[str, Any], dynamic: Dynamic
) -> ExportedProgram:
    """Export MODULE, which differentiates by ``torch.func``, below autograd: derivatives are operations there."""
    shapes = _shapes(module, tensors, dynamic)
    with torch.no_grad(), autograd_refused():
        return _export_at(  # type: ignore[no-any-return]
            module, (), tensors, shapes, strict=False, pre_dispatch=False
        )


@contextlib.contextmanager
def recording(
    module: torch.nn.Module, inputs: Mapping[str, Any], dynamic: Dynamic
) -> Iterator[dict[int, Use]]:
    """Record MODULE in the block, whatever the caller's mode; yield the uses of ``autograd.Function``."""
    quiet = mock.patch.object(logging.getLogger(FAKE), "disabled", True)
    with warnings.catch_warnings(), torch.enable_grad(), cured(module, inputs), hooks_refused():
        warnings.simplefilter("ignore")
        with (
            quiet,
            unused_left_out(varying=any(dynamic.values())),
            kept_whole(),
            refused_in_autocast(),
            functions_noted() as uses,
        ):
            yield uses
