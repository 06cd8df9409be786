"""Run an ONNX file in onnxruntime, with the submodules that its nodes come from as sites."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...checkpoints.formats.onnx_model import OnnxFile
from ...common.policy import Policy
from ...common.users_code import first_line
from ...values import Array
from ..base import Arrays, Trace, widened

if TYPE_CHECKING:
    from ...models import Model

SCOPES: Final = (
    "pkg.torch.onnx.name_scopes"  # of a node: the submodules around it, then its own name
)
GIVEN: Final = "/given"  # ends the name of an input that stands in for a value
LARGEST: Final = 2**31 - 1  # bytes of a model that protobuf can hold in one piece


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
        self._session = _session(str(model.path))
        self._traced: dict[frozenset[str], Any] = {}

    def run(self, inputs: Arrays) -> dict[str, Array]:
        """Return the outputs by name, floats as float32."""
        return widened(_run(self._session, inputs))

    def trace(self, inputs: Arrays, corrections: Arrays | None = None) -> Trace:
        """Run and record every submodule that the nodes name, as PyTorch's exporter writes them.

        Raises:
            UnsupportedError: the model is too large to be changed in memory.
        """
        found = _run(self._tracing(frozenset()), inputs)
        if given := self._fitting(found, corrections or {}):
            fed = {f"{name}{GIVEN}": array for name, array in given.items()}
            found = _run(self._tracing(frozenset(given)), {**inputs, **fed})
        outputs = {port.name: found[port.name] for port in self.signature.outputs}
        sites = {site: found[value] for site, value in self._sites.items()}
        return Trace(widened(outputs), widened(sites))

    def describe(self) -> dict[str, str]:
        """Return runtime, version, device and dtype, for the verdict."""
        import onnxruntime

        narrow = {header.dtype for header in self._file.headers.values()} & {"F16"}
        return {
            "runtime": self.runtime,
            "version": f"onnxruntime {onnxruntime.__version__}",
            "device": "cpu",
            "dtype": "float16" if narrow else "float32",
            "accumulate": "float32",
        }

    def _fitting(self, found: Arrays, corrections: Arrays) -> dict[str, Array]:
        """Return what replaces values FOUND: those of CORRECTIONS that have the shape of their site."""
        given = {self._sites[site]: it for site, it in corrections.items() if site in self._sites}
        return {name: it for name, it in given.items() if it.shape == found[name].shape}

    @cached_property
    def _sites(self) -> dict[str, str]:
        """Submodule -> the one value that leaves it."""
        return endings(self._file.proto.graph)

    def _tracing(self, given: frozenset[str]) -> Any:
        """Return a session that gives the values of all sites, those GIVEN replaced for what follows."""
        if given not in self._traced:
            self._traced[given] = _session(self._rewired(given))
        return self._traced[given]

    def _rewired(self, given: frozenset[str]) -> bytes:
        import onnx

        if sum(header.nbytes for header in self._file.headers.values()) > LARGEST:
            raise UnsupportedError(
                "the model is too large to look inside: more than 2 GB of weights"
            )
        proto = onnx.load(str(self._file.path))
        known = {value.name for value in proto.graph.output}
        for name in dict.fromkeys(self._sites.values()):
            if name not in known:
                proto.graph.output.append(onnx.ValueInfoProto(name=name))
        types = _types(proto, given) if given else {}
        for name in given:
            _replace(proto.graph, name, types[name])
        return bytes(proto.SerializeToString())


def endings(graph: Any) -> dict[str, str]:
    """Return the one value of every submodule that is used outside of it.

    Args:
        graph: of an ONNX model whose nodes say which submodules they come from.
    """
    inside = {name: scopes_of(node) for node in graph.node for name in node.output}
    users = [(name, scopes_of(node)) for node in graph.node for name in node.input]
    users += [(value.name, frozenset()) for value in graph.output]
    leaving: dict[str, dict[str, None]] = {}
    for name, there in users:
        for scope in inside.get(name, frozenset()) - there:
            leaving.setdefault(scope, {})[name] = None
    return {scope: next(iter(them)) for scope, them in leaving.items() if len(them) == 1}


def scopes_of(node: Any) -> frozenset[str]:
    """Return the submodules that NODE comes from."""
    text = next((it.value for it in node.metadata_props if it.key == SCOPES), "[]")
    try:
        names = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return frozenset()
    return frozenset(str(name) for name in names[:-1] if name)


def _types(proto: Any, names: frozenset[str]) -> Mapping[str, Any]:
    """Return the element types of the values NAMES, as shape inference finds them."""
    from onnx import TensorProto, shape_inference

    inferred = shape_inference.infer_shapes(proto, strict_mode=False)
    values = (*inferred.graph.value_info, *inferred.graph.output)
    known = {value.name: value.type.tensor_type.elem_type for value in values}
    return {name: known.get(name) or TensorProto.FLOAT for name in names}


def _replace(graph: Any, name: str, kind: int) -> None:
    """Let everything that reads the value NAME read an input in its place."""
    from onnx import helper

    for node in graph.node:
        for at, read in enumerate(node.input):
            if read == name:
                node.input[at] = f"{name}{GIVEN}"
    graph.input.append(helper.make_tensor_value_info(f"{name}{GIVEN}", kind, None))


def _session(model: str | bytes) -> Any:
    os.environ.setdefault(
        "ORT_DISABLE_TELEMETRY", "1"
    )  # read as it is imported; else it writes to HOME
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own kinds derive from Exception alone
        raise BadInputError(f"onnxruntime cannot load the model: {first_line(error)}") from None


def _run(session: Any, inputs: Arrays) -> dict[str, Array]:
    kinds = {it.name: it.type for it in session.get_inputs()}
    unknown = sorted(set(inputs) ^ set(kinds))
    if unknown:
        raise BadInputError(
            f"the model takes {', '.join(kinds)}; not matched: {', '.join(unknown)}"
        )
    fed = {name: np.ascontiguousarray(array) for name, array in _cast(inputs, kinds)}
    names = [it.name for it in session.get_outputs()]
    try:
        found = session.run(names, fed)
    except Exception as error:
        raise BadInputError(f"onnxruntime cannot run on this input: {first_line(error)}") from None
    return dict(zip(names, found, strict=True))


NUMPY: Final = {"tensor(float)": np.float32, "tensor(float16)": np.float16} | {
    f"tensor({name})": np.dtype(name)
    for name in ("double", "int32", "int64", "bool", "uint8", "int8")
}


def _cast(inputs: Arrays, kinds: Mapping[str, str]) -> Iterator[tuple[str, Array]]:
    for name, array in inputs.items():
        yield name, np.asarray(array, NUMPY.get(kinds[name], np.asarray(array).dtype))
