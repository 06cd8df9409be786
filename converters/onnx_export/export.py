"""Export a PyTorch module as an ONNX file, by PyTorch's own exporter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx
import torch

from ...errors import UnsupportedError, WeighbridgeError
from ..captures.constants import UNREAD, unread
from ..captures.described import recorded_of
from ..captures.interpolated.graphs import MATRICES, SMOOTH, Choice, interpolated
from ..captures.positional import bounded, bounds, in_precision, quiet, record_layers
from ..captures.program_options import OPSET, ProgramOptions
from ..captures.rewrites import (
    RARE,
    atan2,
    distances,
    ends,
    log_sigmoid,
    median,
    median_of_all,
    of_all,
    rrelu,
)
from ..captures.rewriting.scattering import scatter_reduce
from ..captures.scans import SCAN, stepped
from ..captures.spectra.graphs import as_products
from ..captures.tracing import unused_left_out
from ..common.memory import pass_on_shortage
from ..common.steps import step
from ..common.users_code import untranslated
from ..models.manifests import MANIFEST
from ..models.program_files import CODES, to_metadata
from ..models.signature import Signature
from ..quantization import Dequantized
from ..runtimes.programs.onnx_graphs import SCOPES
from ..values import Array
from .codes import Kept, keep_codes, opset_for
from .recurrent import any_length, exact_tanh, translations
from .writing import require_place, write


def mean_put(x: Any, dim: int, index: Any, source: Any, reduce: str, **own: bool) -> Any:
    """Return X with means where INDEX says: of all that ONNX's operation joins, these alone it puts."""
    return (
        scatter_reduce(x, dim, index, source, reduce, **own) if reduce == "mean" else NotImplemented
    )


WORD: Final = re.compile(r"\w+")
ATEN: Final = torch.ops.aten
SPECTRA: Final = frozenset({ATEN.stft.default, ATEN.stft.center})
REWRITES: Final[Mapping[Any, Callable[..., Any]]] = {
    **RARE,
    ATEN._cdist_forward.default: distances,
    **{it: of_all(it) for it in (ATEN.amax.default, ATEN.amin.default)},
    ATEN.aminmax.default: ends,
    ATEN.atan2.default: atan2,
    ATEN.cdist.default: distances,
    ATEN.log_sigmoid.default: log_sigmoid,
    ATEN.median.default: median_of_all,
    ATEN.median.dim: median,
    ATEN.rrelu.default: rrelu,
    ATEN.scatter_reduce.two: mean_put,
    SCAN: stepped,
}
# ONNX's without aliasing follows the sizes alone, and meets the ends where it is to.
INTERPOLATED: Final[Mapping[Any, Choice]] = dict.fromkeys(
    SMOOTH, lambda axes: any(it.aligned or it.step != it.before / it.after for it in axes)
)
TAKEN, GIVEN = (
    "weighbridge.in.",
    "weighbridge.out.",
)  # before names of ports, which no value in between has
OURS: Final = "module"  # the module, inside the one that is exported


class OnnxReport(NamedTuple):
    """What an export wrote.

    Attributes:
        path: the file.
        census: number of nodes by type.
        weights: initializer -> name of the source's tensor with the same values, perhaps transposed.
        kept: what became of the codes of a quantized source.
        nbytes: size of the file.
    """

    path: Path
    census: Mapping[str, int]
    weights: Mapping[str, str]
    kept: Kept
    nbytes: int

    def __str__(self) -> str:
        """Print the counts."""
        nodes = sum(self.census.values())
        return f"{nodes} nodes, {len(self.weights)} weights recognised, {self.nbytes:,} bytes"


def export_onnx(
    module: torch.nn.Module,
    signature: Signature,
    target: Path,
    options: ProgramOptions = ProgramOptions(),
    codes: Dequantized | None = None,
) -> OnnxReport:
    """Write MODULE as an ONNX file at TARGET.

    Integers are int64, and so are booleans; inputs and outputs in floating point are float32. The file's metadata say which initializer is which tensor.

    Args:
        module: called with keyword arguments named as the inputs; put in evaluation mode.
        signature: its inputs and outputs; named sizes vary.
        target: the file to write, ``*.onnx``, or a folder where the weights lie beside the graph.
        options: see :class:`ProgramOptions`.
        codes: quantized weights of the source, whose codes the file is to keep.

    Raises:
        BadInputError: TARGET is called otherwise, or a dimension does not exist or cannot be so large.
        UnsupportedError: PyTorch cannot record the module, or cannot write it as ONNX, or one file
            would be larger than 2 GB.
    """
    apart, narrow = options.external_data, options.precision == "float16"
    opset = opset_for(codes, options.opset, OPSET)
    require_place(target, () if codes else (module,), narrow=narrow, apart=apart)
    limits = bounds(signature, options.upper)
    proto, unneeded, parts = graph_of(module, signature, limits, options.precision, opset)
    constants = constants_of(proto.graph)
    kept = keep_codes(proto, constants, codes, products=options.products) if codes else Kept()
    about = {"signature": asdict(bounded(signature, limits)), UNREAD: unneeded}
    weights = sign(proto, (constants, kept, parts), module, about)
    file = write(proto, target, apart=apart)
    return OnnxReport(
        path=file,
        census=dict(Counter(node.op_type for node in proto.graph.node)),
        weights={name: entry["key"] for name, entry in weights.items()},
        kept=kept,
        nbytes=sum(it.stat().st_size for it in (target.iterdir() if apart else [file])),
    )


def graph_of(
    module: torch.nn.Module,
    signature: Signature,
    limits: Mapping[str, int],
    precision: str,
    opset: int,
) -> tuple[Any, list[str], list[Any]]:
    """Return MODULE in PRECISION as an ONNX model whose sizes vary up to LIMITS, with its own names.

    And the tensors of MODULE that no output depends on, and what it interpolates by.
    """
    step("recording the module")
    own, wrapper = in_precision(module, precision)
    graph = record_layers(any_length(own), own, signature, limits, torch.int64, wrapper)
    graph = as_products(interpolated(graph, INTERPOLATED, "ONNX", by_size=True))
    step("writing the ONNX graph")
    proto = translated(graph, signature, opset)
    rename(proto.graph)
    name_sizes(proto.graph, signature)
    exact_tanh(proto.graph)
    if precision == "float16":
        plain_squares(proto.graph)
    return proto, unread(graph), graph.graph_module.meta[MATRICES]


def rewritten(graph: Any) -> Any:
    """Return GRAPH, an ``ExportedProgram``, with what PyTorch's exporter does not translate computed by others."""
    equal_masks(graph)
    require_spectra_in_float32(graph)
    there = {node.target for node in graph.graph.nodes} & REWRITES.keys()
    return graph.run_decompositions({it: REWRITES[it] for it in there}) if there else graph


def require_spectra_in_float32(graph: Any) -> None:
    """Refuse GRAPH if it makes spectra of windows in float16, which PyTorch's exporter writes as no valid ONNX."""
    for node in graph.graph.nodes:
        if node.target in SPECTRA and node.args[0].meta["val"].dtype is torch.float16:
            raise UnsupportedError(
                "ONNX has no torch.stft in float16 that PyTorch can write: export it by --precision fp32, or leave"
                " it to what makes the inputs"
            )


def equal_masks(graph: Any) -> None:
    """Let masks that are added to attention's scores in GRAPH have the dtype of these, in place; torch takes others."""
    for node in graph.graph.nodes:
        if node.target is not ATEN.scaled_dot_product_attention.default:
            continue
        mask = node.args[3] if len(node.args) > 3 else node.kwargs.get("attn_mask")
        dtype = node.args[0].meta["val"].dtype
        if mask is None or mask.meta["val"].dtype in (dtype, torch.bool):
            continue
        with graph.graph.inserting_before(node):
            cast = graph.graph.call_function(ATEN.to.dtype, (mask, dtype))
        cast.meta["val"] = mask.meta["val"].to(dtype)
        node.replace_input_with(mask, cast)


def plain_squares(graph: Any) -> None:
    """Let the nodes of GRAPH that raise to the power of 2 multiply instead.

    By such a power onnxruntime knows norms that are written out, and makes them one operation: of an input
    that was just rounded to float16 one that it cannot load (1.32.0), or one with another epsilon.
    """
    numbers = {
        node.output[0]: onnx.numpy_helper.to_array(it.t)
        for node in graph.node
        for it in node.attribute
        if node.op_type == "Constant" and it.name == "value"
    }
    for node in (it for it in graph.node if it.op_type == "Pow"):
        power = numbers.get(node.input[1])
        if power is not None and power.size == 1 and power == 2:
            node.op_type, node.input[1] = "Mul", node.input[0]


def translated(graph: Any, signature: Signature, opset: int) -> Any:
    """Return GRAPH, an ``ExportedProgram``, as an ONNX model.

    Raises:
        UnsupportedError: an operation has no form in ONNX.
    """
    try:
        with quiet(), unused_left_out():
            program = torch.onnx.export(
                rewritten(graph),
                (),
                dynamo=True,
                optimize=False,  # folding changes weights beyond recognition; runtimes fold when they load
                opset_version=opset,
                input_names=[f"{TAKEN}{port.name}" for port in signature.inputs],
                output_names=[f"{GIVEN}{port.name}" for port in signature.outputs],
                verbose=False,
                custom_translation_table=translations(),
            )
            return program.model_proto  # type: ignore[union-attr]  # of dynamo
    except WeighbridgeError:
        raise
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(
            f"PyTorch cannot write the module as ONNX: {untranslated(beginning(error))}"
        ) from error


def beginning(error: BaseException) -> BaseException:
    """Return the error that ERROR goes back to; what torch's exporter says itself is advice on reporting it."""
    return beginning(error.__cause__) if error.__cause__ else error


def rename(graph: Any) -> None:
    """Name the initializers of GRAPH and the origins of its nodes as the module does; drop the rest.

    A value in between that has the name of an initializer gets another one; an initializer that has the name of
    an input or output keeps its own. What the exporter notes of a node besides holds lines and paths of source code.
    """
    ports = {
        it.name: it.name.removeprefix(TAKEN).removeprefix(GIVEN)
        for it in (*graph.input, *graph.output)
    }
    taken = {*ports.values()}
    plain = {it.name: it.name.removeprefix(f"{OURS}.") for it in graph.initializer}
    names = ports | {old: old if new in taken else new for old, new in plain.items()}
    held = {*names.values()}
    made = (it for node in graph.node for it in node.output if it not in names)
    names |= {it: f"{it}/value" for it in made if it in held}
    for value in (*graph.initializer, *graph.value_info, *graph.input, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        scopes = next((it.value for it in node.metadata_props if it.key == SCOPES), "")
        del node.metadata_props[:]
        node.doc_string = ""
        if scopes:
            value = scopes.replace(f"'{OURS}.", "'").replace(f"'{OURS}'", "''")
            node.metadata_props.append(onnx.StringStringEntryProto(key=SCOPES, value=value))


def name_sizes(graph: Any, signature: Signature) -> None:
    """Call the sizes of GRAPH that vary as SIGNATURE does; torch.export calls them s21, s22."""
    names: dict[str, str] = {}
    given = {value.name: value.type.tensor_type.shape.dim for value in graph.input}
    for port in signature.inputs:
        for size, axis in zip(port.shape, given.get(port.name, ()), strict=False):
            names |= {axis.dim_param: size} if axis.dim_param and isinstance(size, str) else {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = WORD.sub(lambda it: names.get(it[0], it[0]), axis.dim_param)


def constants_of(graph: Any) -> dict[str, Array]:
    """Return the initializers of GRAPH in floating point."""
    floats = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
    return {
        tensor.name: onnx.numpy_helper.to_array(tensor)
        for tensor in graph.initializer
        if tensor.data_type in floats
    }


def sign(
    proto: Any,
    found: tuple[Mapping[str, Array], Kept, Sequence[Any]],
    module: torch.nn.Module,
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Write into PROTO what is to be said ABOUT it and which constant FOUND is what; return the latter."""
    constants, kept, parts = found
    rows = recorded_of(constants, module, about[UNREAD], parts)
    manifest = {"version": 1, **about, **rows}
    manifest |= {CODES: kept.codes} if kept.codes else {}
    proto.metadata_props.append(
        onnx.StringStringEntryProto(key=MANIFEST, value=to_metadata(manifest))
    )
    weights: dict[str, Any] = rows["weights"]
    return weights
