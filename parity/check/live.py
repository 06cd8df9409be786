"""Parity of two live modules, for a test suite."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...converters.captures.torch_to_mlx.recording.arguments import by_name
from ...converters.common.arrays import to_mlx, to_torch
from ...converters.common.memory import pass_on_shortage
from ...converters.common.policy import Policy
from ...converters.models import Model, Port, Signature
from ...converters.models.factories import copied, framework_of, reason_of, require_taking
from ...converters.values import Array
from ...errors import BadInputError, UsersCodeError
from ..goldens.recorder import Recorder
from ..probes.given import grouped
from ..probes.probes import Probe
from .candidate import Candidate
from .check import Check
from .modes import notes_on_modes
from .verdict import Verdict, decide

ROLES = {
    "input_ids": "token_ids",
    "attention_mask": "attention_mask",
    "token_type_ids": "token_types",
    "position_ids": "positions",
}


def as_numpy(value: Any) -> Array:
    """Return a torch, MLX or numpy array as numpy."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    return np.asarray(value)


def _outputs(module: Any, inputs: Mapping[str, Array]) -> tuple[Port, ...]:
    """Run MODULE once and return its outputs as ports; None fields are left out."""
    result = _result(module, inputs)
    if isinstance(result, Mapping):
        named = dict(result.items())
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        named = {f"output_{index}": value for index, value in enumerate(values)}
    return tuple(
        Port(name, str(value.dtype).rpartition(".")[2], tuple(value.shape), "")
        for name, value in named.items()
        if hasattr(value, "dtype")
    )


def _result(module: Any, inputs: Mapping[str, Array]) -> Any:
    if framework_of(module) == "mlx":
        return module(**{name: to_mlx(array) for name, array in inputs.items()})
    import torch

    with torch.no_grad():
        return module(**{name: to_torch(array) for name, array in inputs.items()})


def signature_of(module: Any, inputs: Mapping[str, Array]) -> Signature:
    """Return the signature of MODULE called with INPUTS by keyword."""
    ports = tuple(
        Port(name, array.dtype.name, array.shape, ROLES.get(name, ""))
        for name, array in inputs.items()
    )
    return Signature(ports, _outputs(module, inputs))


def signature_given(spec: str, module: Any, path: Path) -> Signature:
    """Return what MODULE takes and gives, from a user's own inputs in the file PATH; a size may vary.

    Raises:
        UsersCodeError: the module does not run on them.
    """
    probes = [*grouped(path).values()]
    with running(spec, f"{path} ({', '.join(probes[0])})"):
        found = signature_of(module, probes[0])
    names: dict[tuple[int, ...], str] = {}
    return replace(found, inputs=tuple(_varying(port, probes, names) for port in found.inputs))


@contextmanager
def running(spec: str, inputs: str) -> Iterator[None]:
    """Say of what a module raises that SPEC does not run on INPUTS.

    Raises:
        UsersCodeError: it raises something.
    """
    try:
        yield
    except Exception as error:
        pass_on_shortage(error)
        raise UsersCodeError(f"{spec} does not run on {inputs}: {reason_of(error)}") from error


def _varying(
    port: Port, probes: Sequence[Mapping[str, Array]], names: dict[tuple[int, ...], str]
) -> Port:
    """Return PORT with a name for each size that is not the same in all PROBES; sizes that are equal in all share theirs."""
    shapes = [it[port.name].shape for it in probes if port.name in it]
    sizes = zip(*(it for it in shapes if len(it) == len(port.shape)), strict=True)
    shape = tuple(
        size[0] if len({*size}) == 1 else names.setdefault(size, f"{port.name}_{axis}")
        for axis, size in enumerate(sizes)
    )
    return replace(port, shape=shape)


class LiveCheck(Check):
    """A check of modules in memory: their computation.

    Weights that no output needs are not judged, since two live modules may lay them out as they
    like, and there is no text side. Where the two differ, weights and sites are looked at to say why.
    """

    def verdict(self) -> Verdict:
        """Run outputs and structure, precision if the module's weights are narrow."""
        stages = self.runs()
        self.unchecked.append(
            "weights that these inputs do not use (live modules: no fingerprints)"
        )
        status = decide(stages, self.candidate.runtime)
        if status != "DIFFERS":
            return Verdict(status, tuple(stages), (), self.provenance(stages))
        stages = [self.fingerprints(), *stages]
        faults = self.blame(stages)
        return Verdict(status, tuple(stages), faults, self.provenance(stages))


def compare_modules(reference: Any, candidate: Any, inputs: Any) -> Verdict:
    """Check a live module against another, on copies.

    Args:
        reference: the reference, a module in float32; torch's of the two where one is MLX's, since
            float64 is computed in torch.
        candidate: the other.
        inputs: arrays of torch, MLX or numpy, by name, in order as a list or tuple, or one alone.

    Raises:
        BadInputError: one is no module, both are MLX's, or an input is empty or no array.
        UsersCodeError: one cannot be copied, or does not run on the inputs.
    """
    pair = [(module, framework_of(module)) for module in (reference, candidate)]
    (first, kind), (second, other) = pair if pair[0][1] == "torch" else reversed(pair)
    if kind != "torch":
        raise BadInputError("one of the two modules has to be torch's: float64 is computed there")
    arrays = _arrays(by_name(first, inputs))
    words = "other torch" if other == "torch" else "MLX"
    source = Model("the torch model", kind, None, {}, factory=first)
    target = Model(f"the {words} model", other, None, {}, factory=second)
    notes = [*notes_on_modes(source, target)]
    module, judged_module = copied(first).eval(), copied(second)
    if not isinstance(inputs, Mapping):
        in_order(judged_module, [*arrays])
    given = ", ".join(f"{name}: {it.dtype} {it.shape}" for name, it in arrays.items())
    with running(source.spec, given):
        signature = signature_of(module, arrays)
    try:
        require_taking(judged_module, [*arrays])
    except UsersCodeError as error:
        raise UsersCodeError(f"{error}; inputs in a list go by order") from None
    source = replace(source, factory=module, declared=signature)
    judged = Candidate(replace(target, factory=judged_module, declared=signature), other, Policy())
    precisions = {judged.storage} - {"float32"}
    golden = Recorder(source, [Probe("inputs", arrays)]).record("verdict", tuple(precisions), None)
    return LiveCheck(golden, judged, {}, unchecked=notes).verdict()


def _arrays(inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return INPUTS as arrays of numpy.

    Raises:
        BadInputError: there are none, one is empty, or one is no array.
    """
    arrays = {name: as_numpy(value) for name, value in inputs.items()}
    wrong = [
        f"{name} {'is empty' if not it.size else 'is no array of numbers'}"
        for name, it in arrays.items()
        if not it.size or it.dtype.kind in "OSU"
    ]
    if wrong or not arrays:
        raise BadInputError(f"nothing to compare: {', '.join(wrong) or 'no inputs are given'}")
    return arrays


def in_order(module: Any, names: Sequence[str]) -> None:
    """Let MODULE, a copy, take inputs of these NAMES, in the order of its own parameters."""
    call = "forward" if framework_of(module) == "torch" else "__call__"
    plain = getattr(type(module), call)

    def by_position(self: Any, **inputs: Any) -> Any:
        return plain(self, *(inputs[name] for name in names))

    module.__class__ = type(type(module).__name__, (type(module),), {call: by_position})


def assert_parity(reference: Any, candidate: Any, inputs: Any) -> None:
    """Assert that a live module computes what another computes: torch and MLX, or torch and torch.

    Both are copied and run in eval mode; neither is changed.

    Args:
        reference: the reference, in float32. Of torch's and MLX's it is torch's, in either order.
        candidate: the other.
        inputs: arrays of torch, MLX or numpy: by name, where both have the same names; else in order,
            as a list or tuple, or one alone.

    Raises:
        AssertionError: they differ, or it could not be established; the message is the report, with
            the sites and the weights that differ.
        BadInputError: one is no module, both are MLX's, or an input is empty or no array.
        UsersCodeError: one cannot be copied, or does not run on the inputs.
    """
    verdict = compare_modules(reference, candidate, inputs)
    if verdict.passed:
        return
    from rich.console import Console

    from ..report import render

    text = io.StringIO()
    render(verdict, Console(file=text, width=100, no_color=True))
    raise AssertionError(f"{verdict.status}\n{text.getvalue()}")
