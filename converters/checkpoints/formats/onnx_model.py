"""ONNX files: their initializers as tensors, and the graph without them."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import BadInputError, UnsupportedError
from ...common.dtypes import CODE, NUMPY
from ...values import Array
from ..base import Header
from .onnx_caches import kept_of
from .onnx_codes import made_weights
from .onnx_damage import outside, refuse_damaged
from .onnx_packed import PackedWeight, packed_weights
from .onnx_rounded import graphs, without_rounding
from .ranges import chunks

SUFFIX = ".onnx"
# What rounds numbers of a run; of constants alone it would be folded.
ROUNDING = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
INTEGER = re.compile(r"(u?)int(\d+)")  # a dtype, with its bits
KINDS = frozenset({"dtype", "to"})  # attributes that name the type of a node's output
GRAPH = "model.onnx"  # in a folder, whose other files hold its weights


class OnnxFile:
    """One ONNX model; data outside the file is read tensor by tensor.

    Attributes:
        proto: the model, external data not loaded; what its layers take is rounded to 8 bits nowhere in it.
        rounded: what the file itself so rounds.
        headers: the initializers whose dtype a tensor file has, and the weights that the graph makes of
            codes, or multiplies by, in place of these.
        others: those of other dtypes, such as 4-bit integers.
        kept: inputs that outputs of the call before are for, and what they are named by.

    Raises:
        BadInputError: it is no ONNX model, or one that nothing could run or read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ignored: tuple[Path, ...] = ()
        self.proto = load_proto(path)
        refuse_damaged(path, self.proto)
        self.metadata: Mapping[str, str] = {it.key: it.value for it in self.proto.metadata_props}
        self._tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        self.rounded = without_rounding(self.proto.graph, self._tensors, self.part)
        self._tensors = {tensor.name: tensor for tensor in self.proto.graph.initializer}
        codes = {name: _code(tensor) for name, tensor in self._tensors.items()}
        made = made_weights(self.proto.graph, self._tensors)
        shown = {name: it.header(self._tensors, self.part) for name, it in made.items()}
        self._made = {name: it for name, it in made.items() if shown[name]}
        inside = packed_weights(self.proto.graph, self._tensors, self.part)
        packed = {name: it.header(self._tensors) for name, it in inside.items()}
        self._packed = {name: inside[name] for name, it in packed.items() if it}
        shown |= packed
        parts = {name for made in self._made.values() for name in made.parts}
        parts |= {name for it in self._packed.values() for name in it.names}
        self.headers: Mapping[str, Header] = {
            name: Header(code, tuple(self._tensors[name].dims))
            for name, code in codes.items()
            if code and name not in parts
        } | {name: header for name, header in shown.items() if header}
        self.others = tuple(name for name, code in codes.items() if not code)
        self.kept = kept_of(self.proto.graph, self._tensors)
        self.files: tuple[Path, ...] = (path, *sorted(self._outside()))

    def read(self, name: str) -> Array:
        """Return tensor NAME as an array of its own; a weight made of codes at its value, rounded once.

        Raises:
            BadInputError: its data is missing or damaged.
        """
        header = self.headers[name]
        made = self._made.get(name) or self._packed.get(name)
        try:
            # A code that is worth nothing is 0 times its scale, -0 of a negative one: both are 0.
            array = made.values(self.part) + np.float32(0) if made else self.part(name)
            return np.array(array, NUMPY[header.dtype], order="C").reshape(header.shape)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise BadInputError(f"{self.path}: {name} cannot be made of codes ({error})") from None

    def constants(self, dtype: Any) -> dict[str, Array]:
        """Return the constants of DTYPE that are values of nodes, by the name of the node's output."""
        from onnx import numpy_helper

        found = {
            node.output[0]: numpy_helper.to_array(it.t)
            for node in self.proto.graph.node
            for it in node.attribute
            if node.op_type == "Constant" and it.HasField("t")
        }
        return {name: array for name, array in found.items() if array.dtype == dtype}

    @cached_property
    def narrow(self) -> bool:
        """Whether it computes in float16, all of it or a part."""
        from onnx import TensorProto

        half = TensorProto.FLOAT16
        given = (
            it for graph in graphs(self.proto.graph) for node in graph.node for it in node.attribute
        )
        made = (half in (it.i if it.name in KINDS else None, it.t.data_type) for it in given)
        return "F16" in {it.dtype for it in self.headers.values()} or any(made)

    def require_exact_inputs(self) -> None:
        """Refuse a graph that rounds what its layers take to codes in a way that cannot be left out.

        Raises:
            UnsupportedError: names the operations.
        """
        kinds = Counter(it.op_type for it in self.proto.graph.node if it.op_type in ROUNDING)
        if kinds:
            found = ", ".join(f"{kind}, {count} x" for kind, count in kinds.items())
            raise UnsupportedError(
                f"{self.path}: rounds what its layers take to 8 bits ({found}) in ways that cannot be left out, so"
                " what it computes besides cannot be told; take the file that it was made of, quantize it in"
                " QDQ form, or the weights alone (MatMulNBits, DequantizeLinear)"
            )

    def made(self, dtype: str) -> dict[str, frozenset[str]]:
        """Return the weights of DTYPE that the graph makes of codes, each with the values made on the way."""
        return {n: it.inside for n, it in self._made.items() if self.headers[n].dtype == dtype}

    def parts(self, name: str) -> frozenset[str]:
        """Return the initializers that the graph makes weight NAME of; none where it is one itself."""
        return self._made[name].parts if name in self._made else frozenset()

    def made_by(self, name: str) -> Sequence[Any]:
        """Return the nodes that make weight NAME of codes, in the order in which they run; none where nothing does."""
        return self._made[name].nodes if name in self._made else ()

    def packed(self, name: str) -> PackedWeight | None:
        """Return how the graph multiplies by weight NAME, where it never makes it."""
        return self._packed.get(name)

    def codes(self) -> dict[str, tuple[int, int]]:
        """Return the weights on whole codes, with the least and the largest of these."""
        made = {name: self._range(it.codes) for name, it in self._made.items() if it.codes}
        packed = {name: (0, (1 << it.bits) - 1) for name, it in self._packed.items()}
        return {name: it for name, it in (made | packed).items() if it}

    def at_code(self, name: str, code: int) -> Array:
        """Return weight NAME, of ``codes``, as float64, as it would be if each of its codes was CODE."""
        if packed := self._packed.get(name):
            held = packed.parts(self.part)
            return held._replace(codes=np.full_like(held.codes, code)).rows(slice(None))
        made = self._made[name]
        whole = np.full(self.part(made.codes).shape, code)
        return made.exact(lambda part: whole if part == made.codes else self.part(part))

    def _range(self, codes: str) -> tuple[int, int] | None:
        dtype = self.part(codes).dtype
        found = INTEGER.fullmatch(dtype.name)
        if not found:
            return None
        unsigned, bits = bool(found[1]), int(found[2])
        return (0, (1 << bits) - 1) if unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)

    def part(self, name: str) -> Array:
        """Return initializer NAME, codes of few bits one each.

        Raises:
            BadInputError: its data is missing or damaged.
        """
        from onnx import numpy_helper

        tensor = type(self._tensors[name])()
        tensor.CopyFrom(self._tensors[name])
        try:
            if place := outside(tensor, self.path):
                tensor.raw_data, tensor.data_location = place.read(), tensor.DEFAULT
            return np.asarray(numpy_helper.to_array(tensor))
        except Exception as error:  # of many kinds, some of onnx's own
            raise BadInputError(f"{self.path}: tensor {name} cannot be read ({error})") from None

    def stream(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        """Yield the bytes START to STOP of tensor NAME, at most ``CHUNK`` at a time."""
        return chunks(self.read(name), start, stop)

    def _outside(self) -> set[Path]:
        """Return the files of data beside the model."""
        places = (
            {it.key: it.value for it in tensor.external_data}.get("location")
            for tensor in self._tensors.values()
        )
        return {self.path.parent / place for place in places if place}


def load_proto(path: Path) -> Any:
    """Return the model in PATH, external data not loaded.

    Raises:
        BadInputError: it is none.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        proto = onnx.load_model(io.BytesIO(path.read_bytes()), load_external_data=False)
    except (DecodeError, OSError) as error:
        raise BadInputError(f"{path}: cannot be read as an ONNX model ({error})") from None
    if not proto.graph.node and not proto.graph.output:
        raise BadInputError(f"{path}: holds no ONNX graph")
    return proto


def _code(tensor: Any) -> str | None:
    """Return the dtype of TENSOR as a safetensors code; ``None`` where there is none."""
    from onnx import helper

    try:
        return CODE.get(np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)))
    except (KeyError, TypeError):
        return None
