"""The way from a torch module to a captured one: record, count, translate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram

from ...common.steps import step
from .captured import Captured
from .census import Census, census_of
from .dtypes import to_mlx
from .earlier import stored
from .exporting import Dynamic, check_form, example, functionalized, record
from .graph import build_graph
from .indexed import check_example
from .parameters import Tensor, canonical_names
from .passes import table
from .passes.draft import Draft
from .ports import ASKED, read_ports, read_settings
from .recording.alike import computes_alike, twin
from .recording.arguments import Inputs, by_name, leaves
from .recording.deciding.masks import DECIDED
from .recording.modes import Modes, Other, check_modes, readers_of_mode
from .recording.recorded import Recording
from .recording.sources import input_names, sources, structure, writes
from .recording.verifying import verify
from .storage.masters import inputs_in, narrowed, on_masters


def capture_torch(
    module: torch.nn.Module,
    *,
    inputs: Inputs,
    dynamic: Dynamic | None = None,
    passes: Iterable[str] | None = None,
    modes: Modes = "lazy",
    compute: str = "",
) -> Captured:
    """Record MODULE on example INPUTS and return it in MLX.

    Args:
        module: in train or eval mode, which is recorded with it.
        inputs: arguments of ``forward``, by name or in order: torch tensors, arrays of numpy or MLX, constants, or
            dictionaries, lists and tuples of these.
        dynamic: input (``states.0`` of a list) -> axis -> name of its dimension, for sizes that may vary; all others are
            fixed to those of the example. Equal names are equal sizes.
        passes: names of rewrites that make the graph faster (``passes.table.PASSES``); all if ``None``, none if empty.
        modes: when the other mode is recorded, of a module that computes something else in it:
            ``lazy``, when ``train()`` or ``eval()`` asks for it; ``both``, now; ``one``, never.
        compute: the dtype to compute in, such as ``bfloat16``, where it is not that of MODULE: its
            parameters stay as they are, and are cast as they are read.

    Raises:
        BadInputError: a pass or one of MODES is not known, or DYNAMIC has another form.
        UnsupportedError: torch cannot record the module, an operation has no handler (with the census
            of all that have none; nothing has run in MLX by then), or one does not give in MLX the
            shape or dtype that torch recorded.
        MismatchError: an example names rows that a table has not.
    """
    chosen = None if passes is None else table.check_names(passes)
    check_form(dynamic or {})
    check_modes(modes)
    record_one = _Recorder(inputs_in(compute, by_name(module, inputs)), dynamic or {}, chosen)
    there = narrowed(module, compute) if compute else module
    recording = record_one(there)
    masters = on_masters(recording, module) if compute else recording
    in_mode, moded = partial(record_one.in_mode, recording), recording.mode is not None
    other = Other(there, in_mode, modes) if moded else None
    return Captured(masters, tensors_of(module.state_dict(keep_vars=True)), other)


def from_exported(program: ExportedProgram) -> Captured:
    """Return PROGRAM, which ``torch.export.export`` recorded, in MLX.

    Its mode is the one that it was exported in, and every ``autograd.Function`` in it has the gradient
    of its forward: torch has left its backward out. Positional inputs have the names that the program gives them.

    Raises:
        UnsupportedError: see ``capture_torch``.
    """
    functional = functionalized(program)
    census_of(functional.graph_module).check()
    return Captured(_recording(functional, {}, None), tensors_of(program.state_dict))


@dataclass(frozen=True)
class _Recorder:
    """Records modules on the same inputs."""

    inputs: Mapping[str, Any]
    dynamic: Dynamic
    passes: tuple[str, ...] | None

    def __call__(self, module: torch.nn.Module) -> Recording:
        """Return what is kept of MODULE, in the mode that it is in; recorded, or as an earlier run did."""
        found = self._kept(module, lambda: self._recorded(module))
        places = {port.name: port.places for port in found.ports}
        check_example(places, leaves(example(self.inputs, self.dynamic)))
        return found

    def in_mode(self, recorded: Recording, module: torch.nn.Module, training: bool) -> Recording:
        """Return what is kept of MODULE in a mode; it is RECORDED, as the module is, where it does the same."""
        one, other = twin(module), twin(module.train(training))

        def found() -> Recording:
            inputs = example(self.inputs, self.dynamic)
            same = one and other and computes_alike(one, other, inputs)
            return recorded if same else self._recorded(module)

        return self._kept(module, found)

    def _kept(self, module: torch.nn.Module, made: Callable[[], Recording]) -> Recording:
        key = stored.key_of(module, self.inputs, self.dynamic, self.passes)
        found = stored.recall(key)
        if found is None:
            found = made()
            stored.keep(found, key)
        return found

    def _recorded(self, module: torch.nn.Module) -> Recording:
        step("recording in torch.export")
        with readers_of_mode() as readers:
            program = record(module, self.inputs, self.dynamic)
        step("building the graph in MLX")
        census_of(program.graph_module).check()
        recording = _recording(program, self.dynamic, self.passes)
        return replace(recording, mode=module.training if readers else None)


def census_torch(
    module: torch.nn.Module, *, inputs: Inputs, dynamic: Dynamic | None = None
) -> Census:
    """Count the operations of MODULE as it would be recorded, supported or not."""
    return census_of(record(module, inputs, dynamic or {}).graph_module)


def tensors_of(state: Mapping[str, torch.Tensor]) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a STATE by their first names."""
    trainable = {
        name
        for name, first in canonical_names(state).items()
        if isinstance(state[first], torch.nn.Parameter) and state[first].requires_grad
    }
    firsts = dict.fromkeys(canonical_names(state).values())
    return {name: Tensor(to_mlx(state[name]), name in trainable) for name in firsts}


def _recording(
    program: ExportedProgram,
    dynamic: Dynamic,
    passes: tuple[str, ...] | None,
) -> Recording:
    state = program.state_dict
    first = canonical_names(state)
    reads, constants = sources(program)
    positions = writes(program)
    names = input_names(program)
    ports = read_ports(program, names, dynamic)
    draft = Draft(program.graph_module, constants)
    table.apply(draft, passes)
    made = Recording(
        graph=build_graph(draft.module),
        ports=ports,
        names={name: (first[name], state[name].dtype) for name in state},
        reads=reads,
        constants={name: to_mlx(tensor) for name, tensor in draft.constants.items()},
        writes=positions,
        structure=structure(program, len(positions)),
        decided=DECIDED in program.graph_module.meta,
        settings=read_settings(program, names),
        conditions=program.graph_module.meta.get(ASKED, {}),
    )
    verify(made.graph, draft.module, made.constants)
    return made
