"""A captured module: an ``mlx.nn.Module`` that computes what a torch module computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import torch

from ....errors import MismatchError
from ...quantization import Blocks
from ...values import LowRank
from ..specs import AdapterSpec
from .adapters import inserting
from .dtypes import cast, to_mlx, to_torch
from .graph import Tap
from .parameters import Branch, Tensor, plant
from .ports import accept, shown
from .quantized import weights
from .recording.arguments import fed
from .recording.recorded import Recording
from .segments import kept
from .storage import loading, masters, saving
from .storage.precision import Dtypes, dtypes_of
from .storage.wiring import Wiring

Output = Any  # an array, or a tuple or dictionary of outputs


def _arranged(structure: Any, results: Any) -> Output:
    """Return STRUCTURE with positions replaced by results."""
    if isinstance(structure, dict):
        return {key: _arranged(below, results) for key, below in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_arranged(below, results) for below in structure)
    return results[structure]


def _replacement(value: mx.array, correction: mx.array) -> mx.array:
    """Return CORRECTION in place of VALUE where it has its shape."""
    fits = correction.shape == value.shape
    return mx.array(correction).astype(value.dtype) if fits else value


class Captured(Branch):
    """A torch module in MLX: same parameter names and layouts, same results, differentiable.

    It begins in the mode that the torch module was in. ``train()`` and ``eval()`` change what it
    computes as in torch; the other mode is recorded when first asked for, and both have one set of
    parameters and buffers. Parameters may have another dtype than the one recorded (``set_dtype``):
    they are cast as they are read, so that float32 masters can be trained through a 16-bit graph.

    Under ``mx.compile``, modules with batch statistics need ``state`` among the outputs, and those
    with dropout ``mx.random.state`` among inputs and outputs; a compiled function keeps the mode
    that it was compiled in.
    """

    def __init__(
        self,
        recording: Recording,
        tensors: Mapping[str, Tensor],
        other: Callable[[], Recording] | None = None,
    ) -> None:
        super().__init__()
        self._recording = recording
        self._other = other
        self._wiring = Wiring(self, recording)
        for name, tensor in tensors.items():
            self._wiring.locations[name] = plant(self, name, tensor)
        for branch in self.modules():  # type: ignore[no-untyped-call]
            branch._quantizer = self._to_quantized
        if recording.mode is not None:
            self.train(recording.mode)

    def __call__(self, *arguments: Any, **inputs: Any) -> Output:
        """Return what the torch module returns: an array, tuple, or dictionary (of a ``ModelOutput``).

        Arguments are given by name or in order, nested as in the example that was recorded. Those that
        are no tensors may be given by name, as they were recorded.

        Raises:
            MismatchError: they do not fit; all problems are listed.
        """
        names = [port.name for port in self._recording.ports]
        return self._run(fed(names, arguments, inputs), None)

    def _set_training_mode(self, mode: bool) -> None:
        """Go into train or eval mode; what computes something else there is recorded now.

        Raises:
            UnsupportedError: torch cannot record the module in that mode.
        """
        self.in_mode(mode)
        super()._set_training_mode(mode)

    def in_mode(self, training: bool) -> Recording:
        """Return the recording of train or eval mode."""
        if self._recording.mode in (None, training) or self._other is None:
            return self._recording
        return self._other()

    def _run(self, inputs: Mapping[str, mx.array], tap: Tap | None) -> Output:
        recording = self.in_mode(self.training)
        results = self._results(recording, inputs, tap)
        for position, name in recording.writes.items():
            location = self._wiring.location(name)
            location.set(cast(mx.stop_gradient(results[position]), location.get().dtype))
        return _arranged(recording.structure, results)

    def _results(
        self, recording: Recording, inputs: Mapping[str, mx.array], tap: Tap | None = None
    ) -> Any:
        values = self._wiring.values(recording)
        values.update(accept(recording.ports, recording.settings, recording.conditions, inputs))
        results = self._wiring.graph(recording, whole=tap is not None).run(values, tap)
        return [
            result if place in recording.writes else shown(recording.ports, values, result)
            for place, result in enumerate(results)
        ]

    def holds(self, inputs: Mapping[str, mx.array]) -> bool:
        """Tell whether what the module decided by the example's masks is what it would decide for INPUTS.

        Where it is not, all floating results are NaN. Of all the computation only that of the decisions is done.
        """
        recording = self.in_mode(self.training)
        return not recording.decided or bool(self._results(recording, inputs)[-1].item())

    def save(self, path: str | Path, *, sizes: saving.Sizes = ()) -> None:
        """Write the computation with its weights to ``PATH.mlxfn``, which runs in MLX alone.

        ``mx.import_function(path)`` takes the inputs by name (``states.0`` for a nested one) in the
        recorded dtypes, and returns the list of all arrays that this module returns, in order. It is
        read back and compared before PATH is replaced.

        Args:
            path: the file to write.
            sizes: for inputs whose sizes vary, dimension -> size, once for each that the file takes.

        Raises:
            BadInputError: PATH is called otherwise, or a dimension has no size.
            UnsupportedError: the module draws random numbers, or MLX cannot write it.
        """
        recording = self.in_mode(self.training)

        def run(inputs: dict[str, mx.array]) -> list[mx.array]:
            leaves = saving.flat(_arranged(recording.structure, self._results(recording, inputs)))
            return [leaf for leaf in leaves if isinstance(leaf, mx.array)]

        for location in self._wiring.locations.values():  # MLX 0.32 writes others in a wrong order
            location.set(mx.contiguous(location.get()))
        mx.eval(self.state)
        saving.save(run, recording.ports, Path(path), tuple(sizes))

    def load_torch_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Replace all parameters and buffers by those of STATE, in the dtypes that they have here.

        Raises:
            MismatchError: names or shapes differ; all are listed, and nothing was replaced.
        """
        loading.check(self._wiring, state)
        for name, tensor in state.items():
            location = self._wiring.location(name)
            location.set(cast(to_mlx(tensor), location.get().dtype))

    def share(self, other: Captured) -> None:
        """Take the tensors of OTHER, its adapters and quantized weights, for those of the same names.

        Both then hold one copy: what changes in one changes in the other.

        Raises:
            MismatchError: OTHER lacks some of them; all are listed.
        """
        problems = [name for name in self._wiring.locations if name not in other._wiring.locations]
        if problems:
            raise MismatchError("the captured modules do not have the same tensors", problems)
        for key in [key for key in self if key in other]:
            self[key] = other[key]
        self._wiring.follow(other._wiring)

    def trace(
        self, inputs: Mapping[str, mx.array], corrections: Mapping[str, mx.array] | None = None
    ) -> tuple[Output, dict[str, mx.array]]:
        """Run and return the outputs and what every site computed, before its own correction.

        A site is a submodule, by its path; its correction replaces its output for all that follows, and
        for its parents. See ``sites`` for what is not visible. Corrections of other names or shapes
        do nothing.
        """
        corrections = corrections or {}
        seen: dict[str, mx.array] = {}

        def tap(sites: tuple[str, ...], value: mx.array) -> mx.array:
            for site in sites:
                seen[site] = value
                if site in corrections:
                    value = _replacement(value, corrections[site])
            return value

        return self._run(inputs, tap), seen

    @property
    def recording(self) -> Recording:
        """What was recorded first, none of its tensors."""
        return self._recording

    @property
    def other(self) -> Callable[[], Recording] | None:
        """What records the other mode; ``None`` where there is no other."""
        return self._other

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of all sites, in order of computation."""
        return self._recording.graph.sites

    def update(self, parameters: Any, strict: bool = True) -> Captured:  # type: ignore[override]
        """Replace parameters (see ``mlx.nn.Module.update``); a list may be names that are numbers."""
        super().update(_named(parameters, self), strict)
        return self

    def leaf_modules(self) -> Any:
        """Return the submodules without submodules; this one under no name if it holds weights itself."""
        below = super().leaf_modules()  # type: ignore[no-untyped-call]
        return {**below, "": self} if self._to_quantized(self) else below

    def update_modules(self, modules: Any, strict: bool = True) -> Captured:
        """Replace submodules (see ``mlx.nn.Module.update_modules``), never this one itself."""
        super().update_modules({path: it for path, it in modules.items() if path}, strict)
        return self

    def _to_quantized(self, branch: Branch) -> Callable[..., Branch] | None:
        return weights.quantizer_of(self._wiring, branch)

    def torch_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the state dict of the torch module, tied names included, without adapters.

        Every tensor has the dtype that the torch module had it in; a quantized weight has its canonical values,
        in float32, which no 16-bit dtype holds.
        """
        names, wiring = self._recording.names, self._wiring
        tensors = {
            first: torch.from_numpy(weights.blocks_of(wiring, first).dense())
            if first in wiring.schemes
            else to_torch(wiring.location(first).get(), self._recording.masters.get(first, dtype))
            for first, dtype in names.values()
        }
        return {name: tensors[first] for name, (first, _) in names.items()}

    def insert_adapters(
        self, specs: Mapping[str, AdapterSpec], seed: int = 0, *, train: Iterable[str] = ()
    ) -> None:
        """Insert a trainable low-rank update at every weight of SPECS and freeze everything else.

        Adds ``<module>.lora_a``, shape (in, rank), and ``<module>.lora_b``, shape (rank, out); the
        module computes ``y + scale * (x @ lora_a) @ lora_b`` (LoRA, Hu et al. 2021, equation 3).
        With ``dora`` also ``<module>.lora_m``, shape (out,), the lengths that the rows of the sum
        are scaled to (DoRA, Liu et al. 2024, equation 5). All are in float32, or float64.

        Args:
            specs: by name of the weight.
            seed: of ``lora_a``.
            train: names of parameters or modules that stay trainable, such as ``head`` or ``*.bias``.

        Raises:
            MismatchError: a name is no weight of a linear layer, embedding or convolution, or one of
                TRAIN names no parameter.
        """
        inserting.check_trainable(self._wiring, train)
        inserting.insert_new(self._wiring, specs, seed)
        inserting.leave_trainable(self._wiring, train)

    def set_adapters(
        self,
        updates: Mapping[str, LowRank],
        *,
        train: Iterable[str] = (),
        grids: Mapping[str, Blocks] | None = None,
    ) -> None:
        """Insert the adapters of UPDATES (weight name -> update), or replace those that are there.

        An update lies as its weight. Linear layers, embeddings and convolutions compute with the
        factors; any other parameter (a ``Conv1D``, the experts of a layer) is summed with its update
        in each call. All can be trained, and TRAIN names what else can (see ``insert_adapters``).

        Args:
            updates: weight name -> update.
            train: what else can be trained.
            grids: weight name -> a quantized weight. What is computed with is then the sum of the
                weight and its update, rounded to the values that its codes can have; gradients pass
                the rounding as if there were none.

        Raises:
            MismatchError: a name is no parameter, or an update has another shape; all are listed.
        """
        inserting.check_trainable(self._wiring, train)
        inserting.insert_updates(self._wiring, updates, grids or {})
        inserting.leave_trainable(self._wiring, train)

    def adapter_updates(self) -> dict[str, LowRank]:
        """Return weight name -> update, as trained so far, in float32."""
        return inserting.updates_in(self._wiring)

    def quantize(
        self,
        predicate: weights.Predicate | None = None,
        *,
        bits: int | None = None,
        group_size: int | None = None,
        mode: str = "affine",
    ) -> weights.Report:
        """Quantize linear layers, embeddings and experts to MLX's blocks, frozen from then on.

        ``<module>.weight`` becomes words of codes beside ``<module>.scales`` and
        ``<module>.biases``, as in ``mlx.nn.QuantizedLinear``, and runs ``mx.quantized_matmul``.
        Gradients flow through it to whatever is trained around it.

        Args:
            predicate: (name of the weight, its array) -> whether to quantize it, or the scheme as a
                dictionary of ``bits``, ``group_size`` and ``mode``.
            bits: width of a code; MLX's default of MODE, 4 for ``affine``.
            group_size: columns that share a scale; likewise, 64 for ``affine``.
            mode: ``affine``, ``mxfp4``, ``mxfp8`` or ``nvfp4``.

        Returns:
            What is quantized now, and what of two axes or more is not, and why.

        Raises:
            UnsupportedError: MLX has no such scheme.
        """
        record = {"bits": bits, "group_size": group_size, "mode": mode}
        return weights.quantize(self._wiring, predicate, record)

    def set_blocks(self, blocks: Mapping[str, Blocks], *, strict: bool = True) -> dict[str, str]:
        """Put quantized weights in the place of dense ones, codes and scales as they are.

        Returns:
            Without STRICT: name -> why it is left as it is, for those that do not fit.

        Raises:
            MismatchError: a name is no parameter that can be quantized, or the shapes differ; all are
                listed, and nothing is changed.
        """
        return weights.set_blocks(self._wiring, blocks, strict=strict)

    def blocks(self) -> dict[str, Blocks]:
        """Return weight name -> codes and scales as they are stored."""
        return {name: weights.blocks_of(self._wiring, name) for name in self._wiring.schemes}

    def checkpoint(self, modules: Iterable[str]) -> set[str]:
        """Compute the values of MODULES, by path, again for the gradient instead of keeping them.

        Returns:
            Those that stay as they are, because in the mode that this is in they draw random numbers
            or have statistics of the batch.
        """
        self._wiring.segments = tuple(modules)
        self._wiring.changed()
        whole = self._wiring.graph(self.in_mode(self.training), whole=True)
        return kept(whole, self._wiring.segments)

    def narrow_frozen(self) -> None:
        """Hold what is not trained in the dtypes that it is computed with; for good, it is rounded."""
        masters.narrow_frozen(self._wiring, [self.in_mode(self.training)])

    def dtypes(self) -> Dtypes:
        """Count the dtypes of parameters, buffers and operations."""
        return dtypes_of(self._wiring, self.in_mode(self.training))


def _named(parameters: Any, own: Any) -> Any:
    """Return PARAMETERS with names for numbers where OWN has names: MLX takes ``0.weight`` for an item of a list."""
    if isinstance(parameters, list) and isinstance(own, dict):
        numbered = {str(i): below for i, below in enumerate(parameters)}
        parameters = {name: it for name, it in numbered.items() if not _is_empty(it)}
    if isinstance(parameters, dict) and isinstance(own, dict):
        return {name: _named(below, own.get(name)) for name, below in parameters.items()}
    if isinstance(parameters, list) and isinstance(own, list):
        return [*map(_named, parameters, own), *parameters[len(own) :]]
    return parameters


def _is_empty(below: Any) -> bool:
    return isinstance(below, dict | list) and not below
