"""Run an ONNX file in onnxruntime, with the submodules that its nodes come from as sites."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints.formats.onnx_model import OnnxFile
from ...common.policy import Policy
from ...models import Model
from ...values import Array
from ..base import Arrays, Trace, widened
from ..pieces import joined, pieces, stepped
from .onnx_graphs import GIVEN, endings, watch, widen
from .onnx_range import Limited, limit, narrow_values, seen
from .onnx_words import reason

if TYPE_CHECKING:
    from ...captures.mlprogram.watching import Grids

FOLDER: Final = "session.model_external_initializers_file_folder_path"
# By default onnxruntime rounds what is multiplied by DequantizeLinear of 4 bits to 8 bits; a file says nothing of that.
EXACTLY: Final = ("session.qdq_matmulnbits_accuracy_level", "1")


class OnnxRunner:
    """An ONNX file in onnxruntime on the CPU; see ``converters.runtimes.base.Runner``."""

    runtime = "onnxruntime"
    kind = "graph"  # it may lack modules that return several values

    def __init__(self, model: Model, policy: Policy) -> None:
        if model.path is None or not isinstance(model.tensors, OnnxFile):
            raise BadInputError(f"{model.spec} is no ONNX file; export it first")
        if policy.device not in ("cpu",):
            raise UnsupportedError(f"onnxruntime runs on the cpu here, not on {policy.device}")
        self.signature = model.signature
        self._file = model.tensors
        self._kept = self._file.kept
        self._session = _session(model.path)
        self._traced: dict[frozenset[str], Any] = {}
        self._wide = False
        self._exact: Arrays = {}

    def shadow(self, exact: Arrays | None = None) -> OnnxRunner:
        """Return the same program with all of it computed in float32, which shows its structure.

        EXACT are constants, by name, that stand in for the file's own, as they were before rounding.
        """
        other = copy(self)
        other._exact = exact or {}
        other._wide, other._traced = True, {}
        other.__dict__.pop("_types", None)
        other._session = other._changed(frozenset(), ())
        return other

    def unrounded(self) -> OnnxRunner:
        """Return the same program, in which what layers take is not rounded to 8 bits."""
        other = copy(self)
        other._session = self._plain if self._file.rounded else self._session
        return other

    def watch_grids(self, inputs: Arrays, grids: Grids) -> dict[str, Array]:
        """Return the outputs without rounding to codes, and show GRIDS what would be rounded."""
        from torch import from_numpy

        from ...captures.mlprogram.watching import Grid

        found = {**inputs, **self._run(self._seen, inputs)}
        for it in self._file.rounded:
            array = np.asarray(found[it.value], np.float32)
            step = (
                it.step or float(np.abs(array).max(initial=0)) or 1.0
            )  # a run's own reaches as far as it needs
            grid = grids.found.setdefault(it.value, Grid(it.below or 1, it.above or 1))
            grid.see(from_numpy(array / step))
        return widened({port.name: found[port.name] for port in self.signature.outputs})

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by name, floats as float32."""
        return widened(self._ran(self._session, inputs))

    @property
    def cache(self) -> str:
        """Where a text is kept between calls; empty where nothing is."""
        taken = [it.taken for it in self._kept.own]
        return f"{taken[0]} to {taken[-1]}" if taken else ""

    def run_in_pieces(self, inputs: Arrays, sizes: Sequence[int]) -> dict[str, Array]:
        """Return the outputs of each token, read so many at a time as SIZES says, kept in its own caches."""
        return widened(self._ran(self._session, inputs, sizes))

    def kept_in_pieces(self, inputs: Arrays, sizes: Sequence[int]) -> dict[str, list[Array]]:
        """Return what each call gives of each cache, the tokens along the second axis; up to a call that fails."""
        kept: dict[str, list[Array]] = {it.given: [] for it in self._kept.own}
        with suppress(BadInputError):
            for call in self._calls(self._session, inputs, sizes):
                for it in self._kept.own:
                    kept[it.given].append(np.moveaxis(call[it.given], it.axis, 1))
        return kept

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every submodule that the nodes name, as PyTorch's exporter writes them."""
        if self._one_by_one:  # a run in many calls, which has no sites of its own
            return Trace(self.run(inputs))
        found = self._run(self._tracing(frozenset()), inputs)
        if given := self._fitting(found, corrections or {}):
            fed = {f"{name}{GIVEN}": array for name, array in given.items()}
            found = self._run(self._tracing(frozenset(given)), {**inputs, **fed})
        outputs = {port.name: found[port.name] for port in self.signature.outputs}
        sites = {site: found[value] for site, value in self._sites.items()}
        return Trace(widened(outputs), widened(sites))

    def limited(self, inputs: Arrays) -> Limited | None:
        """Run in float32 with the range of float16 wherever the file has that; ``None`` where it has it nowhere."""
        session = self._limited
        return seen(self._ran(session, inputs), self._narrow) if session else None

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device and dtype, for the verdict."""
        import onnxruntime

        how = f", {'='.join(EXACTLY)}" if any(map(self._file.parts, self._file.headers)) else ""
        return {
            "runtime": self.runtime,
            "version": f"onnxruntime {onnxruntime.__version__}{how}",
            "device": "cpu",
            "dtype": "float16" if self._file.narrow and not self._wide else "float32",
            "accumulate": "float32",
        }

    @cached_property
    def _one_by_one(self) -> bool:
        """Whether a call takes one token and no more, as that of a file for the decoding step alone."""
        port, inputs = stepped(self.signature), self._session.get_inputs()
        shapes = {it.name: it.shape for it in inputs}
        return bool(self._kept.own and port and shapes[port.name][1] == 1)

    def _ran(self, session: Any, inputs: Arrays, sizes: Sequence[int] = ()) -> dict[str, Array]:
        """Return what SESSION makes of a whole text, read so many tokens at a time as SIZES says."""
        if not sizes and not self._one_by_one:
            return self._run(session, inputs)
        calls = list(self._calls(session, inputs, sizes))
        peaks = {
            name: np.max([it[name] for it in calls]) for name, it in calls[0].items() if not it.ndim
        }
        return {**peaks, **joined(self.signature, calls)}

    def _calls(
        self, session: Any, inputs: Arrays, sizes: Sequence[int]
    ) -> Iterator[dict[str, Array]]:
        """Yield what each call of SESSION gives, with the caches that the call before gave."""
        kept: dict[str, Array] = {}
        port = stepped(self.signature)
        total = np.shape(inputs[port.name])[1] if port else 0
        for piece in pieces(self.signature, inputs, [1] * total if self._one_by_one else sizes):
            found = self._run(session, {**piece, **kept})
            kept |= self._kept.after(found, begun=not kept)
            yield found

    def _run(self, session: Any, inputs: Arrays) -> dict[str, Array]:
        """Return what SESSION makes of INPUTS; a text begins where they hold none of its caches."""
        if self._kept.own:
            rows = next((len(it) for it in inputs.values() if np.ndim(it)), 1)
            inputs = {**self._kept.first(rows), **inputs}
            port = stepped(self.signature)
            tokens = np.shape(inputs[port.name])[1] if port and port.name in inputs else 0
            inputs |= self._kept.counted(inputs, tokens)
        return _run(session, inputs)

    def _fitting(self, found: Arrays, corrections: Arrays) -> dict[str, Array]:
        """Return what replaces values FOUND: those of CORRECTIONS that have the shape of their site."""
        given = {self._sites[site]: it for site, it in corrections.items() if site in self._sites}
        return {name: it for name, it in given.items() if it.shape == found[name].shape}

    @cached_property
    def _sites(self) -> dict[str, str]:
        """Submodule -> the one value that leaves it."""
        return endings(self._file.proto.graph)

    @cached_property
    def _plain(self) -> Any:
        """A session that rounds nothing of what layers take to 8 bits."""
        return self._changed(frozenset(), ())

    @cached_property
    def _seen(self) -> Any:
        """The same, which gives what would be rounded as well."""
        given = {it.name for it in self._file.proto.graph.input}
        return self._changed(
            frozenset(), [it.value for it in self._file.rounded if it.value not in given]
        )

    @cached_property
    def _narrow(self) -> dict[str, str]:
        """Value in float16 -> where it is."""
        made = {it for values in self._file.made("F16").values() for it in values}
        return narrow_values(self._file.proto, made, self._types)

    @cached_property
    def _types(self) -> dict[str, int]:
        """Type of every value that the graph's nodes give, as onnxruntime knows it of its own operations too."""
        from onnx import helper

        proto = self._copy()
        if self._wide:
            widen(proto, self._file.made("F16"), self._exact)
        watch(proto, [name for node in proto.graph.node for name in node.output if name], {})
        session = _session(self._file.path, proto.SerializeToString())
        known = {it.name: NUMPY.get(it.type) for it in session.get_outputs()}
        return {n: helper.np_dtype_to_tensor_dtype(np.dtype(it)) for n, it in known.items() if it}

    @cached_property
    def _limited(self) -> Any:
        """A session whose values in float16 have that range; ``None`` where there are none."""
        if not self._narrow:
            return None
        proto = self._copy()
        widen(proto, self._file.made("F16"))
        limit(proto.graph, self._narrow)
        return _session(self._file.path, proto.SerializeToString())

    def _copy(self) -> Any:
        proto = type(self._file.proto)()
        proto.CopyFrom(self._file.proto)
        return proto

    def _tracing(self, given: frozenset[str]) -> Any:
        """Return a session that gives the values of all sites, those GIVEN replaced for what follows."""
        if given not in self._traced:
            self._traced[given] = self._changed(given, self._sites.values())
        return self._traced[given]

    def _changed(self, given: frozenset[str], sites: Collection[str]) -> Any:
        """Return a session that gives the values SITES as well and takes those GIVEN."""
        proto = self._copy()
        if self._wide:
            widen(proto, self._file.made("F16"), self._exact)
        watch(proto, sites, {name: self._types[name] for name in given})
        return _session(self._file.path, proto.SerializeToString())


def _session(path: Path, changed: bytes | None = None) -> Any:
    """Return a session of the model in PATH, or of what it would hold CHANGED, weights outside beside it."""
    os.environ.setdefault(
        "ORT_DISABLE_TELEMETRY", "1"
    )  # read as it is imported; else it writes to HOME
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(*EXACTLY)
    if changed is not None:
        options.add_session_config_entry(FOLDER, str(path.parent))
    model = str(path) if changed is None else changed
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds derive from Exception alone
        raise BadInputError(f"{path}: onnxruntime cannot load it: {reason(error)}") from None


def _run(session: Any, inputs: Arrays) -> dict[str, Array]:
    """Return what SESSION makes of INPUTS."""
    kinds = {it.name: it.type for it in session.get_inputs()}
    unknown = sorted(set(inputs) ^ set(kinds))
    if unknown:
        raise BadInputError(
            f"the model takes {', '.join(kinds)}; not matched: {', '.join(unknown)}"
        )
    fed = {name: np.asarray(array, order="C") for name, array in _cast(inputs, kinds)}
    names = [it.name for it in session.get_outputs()]
    try:
        found = session.run(names, fed)
    except Exception as error:
        raise BadInputError(f"onnxruntime cannot run on this input: {reason(error)}") from None
    return dict(zip(names, found, strict=True))


NUMPY: Final = {"tensor(float)": np.float32, "tensor(float16)": np.float16} | {
    f"tensor({name})": np.dtype(name)
    for name in ("double", "int32", "int64", "bool", "uint8", "int8")
}


def _cast(inputs: Arrays, kinds: Mapping[str, str]) -> Iterator[tuple[str, Array]]:
    for name, array in inputs.items():
        yield name, np.asarray(array, NUMPY.get(kinds[name], np.asarray(array).dtype))
