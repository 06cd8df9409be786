"""Files that are whole computations, as models: what they take and give, ONNX files and Core AI assets."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from ...errors import BadInputError
from ..checkpoints.formats.coreai.asset import SUFFIX as ASSET
from ..checkpoints.formats.coreai.asset import Asset
from ..checkpoints.formats.onnx_caches import size_of
from ..checkpoints.formats.onnx_model import GRAPH, OnnxFile
from ..checkpoints.formats.onnx_model import SUFFIX as ONNX
from ..documents import parse_object
from .config_fields import FILE as CONFIG
from .manifests import MANIFEST
from .model import Model
from .ports import BESIDE_TOKENS, role_of, signature_from_manifest
from .signature import Dimension, Port, Signature

CODES: Final = "quantized"  # in a record: constant -> how it is made of codes
ProgramFile = OnnxFile | Asset
SUFFIXES: Final = (ONNX, ASSET)


def program_in(path: Path) -> Path | None:
    """Return the program that PATH is, or that the folder PATH holds and no model beside it; else ``None``."""
    if path.suffix in SUFFIXES:
        return path
    inside = path / GRAPH
    return inside if inside.is_file() and not (path / CONFIG).exists() else None


def open_program(path: Path) -> Model:
    """Return the model in the file or folder PATH, whose name ends in one of ``SUFFIXES``.

    Raises:
        BadInputError: it is none, or its record of inputs and outputs is damaged.
    """
    if path.suffix == ASSET:
        asset = Asset(path)
        return Model(str(path), "coreai", path, {}, declared=ports_of(asset), tensors=asset)
    file = OnnxFile(path)
    return Model(str(path), "onnx", path, {}, declared=signature_of(file), tensors=file)


def recorded(file: ProgramFile) -> dict[str, Any]:
    """Return what an export of ours wrote into FILE; empty for a file of somebody else's.

    So is a graph that another program made of one of ours: it keeps the record, and most of what that names is gone.
    """
    text = file.metadata.get(MANIFEST)
    found = parse_object(str(text), f"{file.path}: {MANIFEST}") if text else {}
    named = found.get("weights")
    if not isinstance(file, OnnxFile) or not isinstance(named, dict):
        return found
    return {} if 2 * len(named.keys() - file.headers.keys()) > len(named) else found


def to_metadata(manifest: dict[str, Any]) -> str:
    """Return MANIFEST as ``recorded`` reads it."""
    return json.dumps(manifest, sort_keys=True)


def ports_of(asset: Asset) -> Signature:
    """Return the inputs and outputs of ASSET: what its record says, or Core AI."""
    if stored := recorded(asset).get("signature"):
        return signature_from_manifest(stored, asset.path)
    sides = ([_port(*it) for it in side] for side in asset.process.ask("ports"))
    return Signature(*map(tuple, sides))


def _port(name: str, dtype: str, shape: tuple[int, ...]) -> Port:
    sizes = tuple(size if size >= 0 else f"axis_{axis}" for axis, size in enumerate(shape))
    return Port(name, dtype, sizes, role_of(name))


def signature_of(file: OnnxFile) -> Signature:
    """Return the inputs and outputs of FILE: what its record says, or its graph."""
    if stored := recorded(file).get("signature"):
        return signature_from_manifest(stored, file.path)
    graph, kept = file.proto.graph, file.kept
    hidden = {*file.headers, *file.others, *kept.taken}
    inputs = [port_of(it, file.path) for it in graph.input if it.name not in hidden]
    outputs = [port_of(it, file.path) for it in graph.output if it.name not in kept.given]
    ports = Signature(tuple(inputs), tuple(outputs))
    return of_whole_texts(ports) if kept.own else ports


def of_whole_texts(ports: Signature) -> Signature:
    """Return PORTS of a graph with caches as they are when it reads a text in one call or several.

    A mask is then as long as the ids, and ids of one token a call are as long as the text is.

    >>> ids = Port("input_ids", "int64", ("b", 1), "token_ids")
    >>> mask = Port("attention_mask", "int64", ("b", "past + 1"), "attention_mask")
    >>> of_whole_texts(Signature((ids, mask), ())).inputs[1].shape
    ('b', 'sequence')
    """
    ids = next((it for it in reversed(ports.inputs) if it.role == "token_ids"), None)
    if ids is None or len(ids.shape) < 2:  # rows, tokens
        return ports
    tokens = ids.shape[1] if isinstance(ids.shape[1], str) else "sequence"
    beside = {it.name for it in ports.inputs if it.role in BESIDE_TOKENS}

    def whole(port: Port) -> Port:
        alike = port.name in beside or port.shape[:2] == ids.shape[:2]
        return replace(port, shape=(ids.shape[0], tokens, *port.shape[2:])) if alike else port

    return Signature(tuple(map(whole, ports.inputs)), tuple(map(whole, ports.outputs)))


def port_of(value: Any, path: Path) -> Port:
    """Return the port that VALUE of a graph's inputs or outputs is.

    Raises:
        BadInputError: it is no tensor.
    """
    from onnx import helper

    if not value.type.HasField("tensor_type"):
        raise BadInputError(f"{path}: {value.name} is no tensor, and nothing else can be fed")
    kind = value.type.tensor_type
    shape = tuple(_size(axis, number) for number, axis in enumerate(kind.shape.dim))
    try:
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
    except KeyError:
        raise BadInputError(f"{path}: {value.name} has no dtype that ONNX knows") from None
    return Port(value.name, dtype, shape, role_of(value.name))


def _size(axis: Any, number: int) -> Dimension:
    """Return the size of an AXIS, a name where it varies."""
    fixed = size_of(axis)
    return (str(axis.dim_param) or f"axis_{number}") if fixed is None else fixed
