"""Parity of two live modules, for a test suite."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...converters.common.policy import Policy
from ...converters.models import Model, Port, Signature
from ...converters.values import Array
from ..probes.probes import Probe
from .candidate import Candidate
from .check import Check
from .verdict import Verdict

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
    """Run a torch MODULE once and return its outputs as ports; None fields are left out."""
    import torch

    from ...converters.common.arrays import to_torch

    with torch.no_grad():
        result = module(**{name: to_torch(array) for name, array in inputs.items()})
    if isinstance(result, Mapping):
        named = dict(result.items())
    else:
        values = result if isinstance(result, tuple | list) else (result,)
        named = {f"output_{index}": value for index, value in enumerate(values)}
    return tuple(
        Port(name, str(value.dtype).removeprefix("torch."), tuple(value.shape), "")
        for name, value in named.items()
        if isinstance(value, torch.Tensor)
    )


def signature_of(module: Any, inputs: Mapping[str, Array]) -> Signature:
    """Return the signature of a torch MODULE called with INPUTS by keyword."""
    ports = tuple(
        Port(name, array.dtype.name, array.shape, ROLES.get(name, ""))
        for name, array in inputs.items()
    )
    return Signature(ports, _outputs(module, inputs))


class LiveCheck(Check):
    """A check of modules in memory: their computation only.

    Weights are not fingerprinted, since two live modules may lay them out as they like, and there
    is no text side.
    """

    def verdict(self) -> Verdict:
        """Run outputs and structure, precision if the module's weights are narrow."""
        from .verdict import decide

        stages = self.runs()
        self.unchecked.append(
            "weights that these inputs do not use (live modules: no fingerprints)"
        )
        status = decide(stages, self.candidate.runtime)
        return Verdict(status, tuple(stages), (), self.provenance(stages))


def compare_modules(torch_model: Any, mlx_model: Any, inputs: Mapping[str, Any]) -> Verdict:
    """Check a live MLX module against a live torch module; both are called by keyword.

    Args:
        torch_model: the reference, a ``torch.nn.Module`` in float32; it is copied, not changed.
        mlx_model: the candidate, an ``mlx.nn.Module`` with float32 parameters.
        inputs: keyword inputs, arrays of torch, MLX or numpy.
    """
    from ..goldens.recorder import Recorder

    arrays = {name: as_numpy(value) for name, value in inputs.items()}
    reference = copy.deepcopy(torch_model).eval()
    signature = signature_of(reference, arrays)
    source = Model("the torch model", "torch", None, {}, factory=reference, declared=signature)
    target = Model("the MLX model", "mlx", None, {}, factory=mlx_model, declared=signature)
    candidate = Candidate(target, "mlx", Policy())
    precisions = {candidate.storage} - {"float32"}
    golden = Recorder(source, [Probe("inputs", arrays)]).record("verdict", tuple(precisions), None)
    return LiveCheck(golden, candidate, {}).verdict()


def assert_parity(torch_model: Any, mlx_model: Any, inputs: Mapping[str, Any]) -> None:
    """Assert that a live MLX module computes what a live torch module computes.

    Args:
        torch_model: the reference, in float32; it is copied, not changed.
        mlx_model: the candidate.
        inputs: keyword inputs for both, arrays of torch, MLX or numpy.

    Raises:
        AssertionError: they differ, or it could not be established; the message is the report.
    """
    verdict = compare_modules(torch_model, mlx_model, inputs)
    if verdict.passed:
        return
    from rich.console import Console

    from ..report import render

    text = io.StringIO()
    render(verdict, Console(file=text, width=100, no_color=True))
    raise AssertionError(f"{verdict.status}\n{text.getvalue()}")
