"""A package without a record, held against what the model that it is said to hold is exported as."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...converters.captures.mlprogram.names import turned
from ...converters.models import Model, Signature
from ...converters.models.ports import paired, under_other_names, without_last
from ...converters.models.program_files import open_program, program_in, recorded
from ...errors import UnsupportedError, WeighbridgeError
from ..options import Options
from .gguf import Like, model_like

ATTENTION: Final = ("eager", "sdpa")  # are other operations; whoever exported a model chose
RECURRENT: Final = {"lstm", "gru", "rnn", "while_loop"}  # operations that are whole layers
CHOSEN: Final = "attention"  # in a record that was found here


def record_by_graph(
    source: Path, ported: Callable[[Model], Model], like: Like, options: Options
) -> dict[str, Any]:
    """Return which constant of the package or ONNX file SOURCE is which tensor of LIKE; empty where that is not clear.

    The model of LIKE is exported with drawn weights, whose record says where each went, in the ways in
    which SOURCE may have been. Where SOURCE has the same operations, the constants in the same places are
    the same tensors; else where its operations read constants of the same sizes in the same order.

    Args:
        source: the package or file.
        ported: says what a model takes where nothing else does.
        like: the model's directory.
        options: see :class:`Options`.
    """
    twins = of_package if source.suffix == ".mlpackage" else of_graph
    try:
        model = ported(filled(source, like, {}, options))
        attempts = twins(source, model)
    except WeighbridgeError:
        return {}
    ordered: dict[
        str, Any
    ] = {}  # which another attention, with the same operations, is better than
    for attention in ATTENTION:
        with suppress(WeighbridgeError), tempfile.TemporaryDirectory() as folder:
            alike, found = attempts(drawn(model, attention), Path(folder))
            if alike:
                return {**alike, CHOSEN: attention}
            ordered = ordered or ({**found, CHOSEN: attention} if found else {})
    return ordered


Found = dict[str, Any] | None
Attempt = Callable[[Any, Path], tuple[Found, Found]]  # by the same operations, and by their order


def of_package(source: Path, model: Model) -> Attempt:
    """Return what exports a module of MODEL as the package SOURCE was, and gives the record of SOURCE by that."""
    from ...converters.captures.mlprogram import load_program
    from ...converters.recovering.alike import record_from
    from ...converters.recovering.ordered import record_in_order

    other = load_program(source)

    def attempt(module: Any, folder: Path) -> tuple[Found, Found]:
        twin = exported(module, model, other, folder)
        sides = twin.manifest, twin.body, other.body
        alike = record_from(*sides)
        return alike, None if alike else record_in_order(*sides)

    return attempt


def of_graph(source: Path, model: Model) -> Attempt:
    """Return what exports a module of MODEL as an ONNX file, and gives the record of the one SOURCE by that."""
    from ...converters.checkpoints.formats.onnx_model import OnnxFile
    from ...converters.onnx_export.export import export_onnx
    from ...converters.onnx_export.placed import record_in_order

    other = open_program(program_in(source) or source)
    if not isinstance(other.tensors, OnnxFile):
        raise UnsupportedError(f"{source} is no ONNX file")
    file, signature = other.tensors, given_by(model.signature, other.signature)

    def attempt(module: Any, folder: Path) -> tuple[Found, Found]:
        path = folder / "twin.onnx"
        export_onnx(module, signature, path)
        twin = OnnxFile(path)
        return None, record_in_order(recorded(twin), twin, file)

    return attempt


def given_by(own: Signature, there: Signature) -> Signature:
    """Return OWN, of a model, without its last outputs that a file which says THERE does not give."""
    return without_last(own, under_other_names(there, turned(paired(own, there))))


def exported_again(
    source: Path, found: Model, like: Like, options: Options, attention: str
) -> list[str]:
    """Say of the model FOUND, exported as the package SOURCE was, whether the same constants come out of it.

    That proves by values alone what the places of the constants told, those that were folded included.

    Args:
        source: the package.
        found: the model with the weights found in it.
        like: the model's directory.
        options: see :class:`Options`.
        attention: of ``ATTENTION``, that which SOURCE has.
    """
    if source.suffix != ".mlpackage":
        return []
    from ...converters.captures.mlprogram import load_program
    from ...converters.recovering.alike import constants_apart
    from ...converters.runtimes.torch import fill, torch_side

    arrays = {name: found.checkpoint.read(name) for name in found.checkpoint.headers}
    try:
        model, other = filled(source, like, arrays, options), load_program(source)
        model = replace(model, declared=model.declared or found.declared)
        module = blank(model, attention)
        fill(module, model, torch_side(model))
        with tempfile.TemporaryDirectory() as folder:
            again = exported(module, model, other, Path(folder))
            apart = constants_apart(again.body, other.body)
    except WeighbridgeError:
        return []
    rest = f", {', '.join(apart)} aside" if apart else ""
    return [
        f"exported again in the same way: every constant of the file is the same, bit for bit{rest}"
    ]


def filled(source: Path, like: Like, arrays: Mapping[str, Any], options: Options) -> Model:
    """Return the model of LIKE with ARRAYS of SOURCE, and zeros for the rest."""
    from ...converters.recovering.weights import Held

    zeros = {n: np.zeros(it.shape, "f4") for n, it in like.headers.items() if n not in arrays}
    return model_like(source, like, Held(source, {**zeros, **arrays}), options)


def exported(module: Any, model: Model, program: Any, folder: Path) -> Any:
    """Return the program that MODULE of MODEL becomes, exported to FOLDER as PROGRAM was.

    Raises:
        WeighbridgeError: it cannot be exported so.
    """
    from ...converters.captures.mlprogram import load_program, read_signature
    from ...converters.captures.mlprogram.names import renamed
    from ...converters.captures.torch_to_mlx.operations.recurrent.recorded import kept_whole
    from ...converters.coreml.export import export_coreml, settings_of
    from ...converters.coreml.options import with_sizes

    own, target, there = model.signature, folder / "twin.mlpackage", read_signature(program.path)
    names = turned(paired(own, there))
    own = given_by(own, there)
    signature = with_sizes(with_names(own), sizes_of(own, renamed(program.inputs, names)))
    with kept_whole() if program.census.keys() & RECURRENT else nullcontext():
        export_coreml(module, signature, target, **settings_of(program.body))
    return load_program(target)


def drawn(model: Model, attention: str) -> Any:
    """Return the module of MODEL with this ATTENTION, its weights all different, between a half and 1.5.

    Raises:
        UnsupportedError: it has one kind of attention, and that is not the first to be tried.
    """
    import torch

    module = blank(model, attention)
    generator = torch.Generator().manual_seed(0)
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.uniform_(0.5, 1.5, generator=generator)
    return module


def blank(model: Model, attention: str) -> Any:
    """Return the module of MODEL with this ATTENTION, without its weights; see ``drawn``."""
    from ...converters.runtimes.pretrained import empty_pretrained
    from ...converters.runtimes.torch import empty_module

    known = model.factory is not None or model.family is not None
    module: Any = empty_module(model) if known else empty_pretrained(model).eval()
    choose = getattr(module, "set_attn_implementation", None)
    if choose is not None:
        with suppress(ValueError):
            choose(attention)
            return module.requires_grad_(requires_grad=False)
    if attention != ATTENTION[0]:
        raise UnsupportedError(f"{type(module).__name__} has no attention {attention}")
    return module.requires_grad_(requires_grad=False)


def sizes_of(signature: Signature, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the sizes that vary in SIGNATURE and that a package with these INPUTS fixes."""
    pairs = (
        pair
        for port in signature.inputs
        if port.name in inputs
        for pair in zip(port.shape, inputs[port.name].shape, strict=False)
    )
    return {name: size for name, size in pairs if isinstance(name, str) and isinstance(size, int)}


def with_names(signature: Signature) -> Signature:
    """Return SIGNATURE, sizes that a package gives as ranges, ``1..32``, under names."""

    def named(size: int | str) -> int | str:
        return re.sub(r"\W+", "_to_", f"size_{size}") if ".." in str(size) else size

    def of_ports(ports: Any) -> Any:
        return tuple(replace(it, shape=tuple(map(named, it.shape))) for it in ports)

    return Signature(of_ports(signature.inputs), of_ports(signature.outputs))
