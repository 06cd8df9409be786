"""Export a PyTorch module as a Core AI asset, by Apple's own converter."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInputError, UnsupportedError, WeighbridgeError
from .captures.constants import UNREAD, unread
from .captures.continuing import POSITION, one_text
from .captures.described import recorded_of
from .captures.mlprogram.texts import Text
from .captures.positional import (
    Positional,
    bounded,
    bounds,
    example,
    example_sizes,
    in_precision,
    quiet,
    record_layers,
    require_axes,
)
from .captures.program_options import ProgramOptions
from .checkpoints.formats.coreai.asset import METADATA, SUFFIX, Asset
from .common.dtypes import FLOATS
from .common.memory import pass_on_shortage
from .common.steps import step
from .common.system import require_space
from .common.users_code import untranslated
from .coreai_lowerings import LOWERINGS
from .coreai_rewrites import interpolated_by, rewritten
from .documents import RECORD, read_object
from .models.manifests import MANIFEST
from .models.program_files import to_metadata
from .models.signature import Signature
from .runtimes.torch import INPUT, recording
from .values import Array

MARGIN: Final = (
    1 << 23
)  # bytes of an asset besides weights; on a full disk its writer ends the process
NEAR: Final = 0.05  # of its size: what float16 may move the output of a submodule


class CoreaiReport(NamedTuple):
    """What an export wrote.

    Attributes:
        path: the asset.
        weights: constant -> name of the source's tensor with the same values, perhaps transposed.
        nbytes: size of its files.
    """

    path: Path
    weights: Mapping[str, str]
    nbytes: int

    def __str__(self) -> str:
        """Print the counts."""
        return f"{len(self.weights)} weights recognised, {self.nbytes:,} bytes"


def export_coreai(
    module: torch.nn.Module,
    signature: Signature,
    target: Path,
    options: ProgramOptions = ProgramOptions(),
) -> CoreaiReport:
    """Write MODULE as a Core AI asset at TARGET.

    Integers are int32, and so are booleans; inputs and outputs in floating point are float32. The asset's metadata say which constant is which tensor.

    Args:
        module: called with keyword arguments named as the inputs; put in evaluation mode.
        signature: its inputs and outputs; named sizes vary.
        target: the asset to write, ``*.aimodel``.
        options: see :class:`ProgramOptions`.

    Raises:
        BadInputError: TARGET is called otherwise, or a dimension does not exist or cannot be so large.
        UnsupportedError: PyTorch cannot record the module, or Core AI has no form for it.
    """
    if target.suffix != SUFFIX:
        raise BadInputError(f"{target}: expected a name in {SUFFIX}")
    require_axes(signature, "Core AI")
    taken = one_text(signature) if options.stateful else signature
    limits = bounds(taken, options.upper)
    step("recording the module")
    own, wrapper = in_precision(module, options.precision)
    outer = keeping(taken, limits) if options.stateful else wrapper
    graph = record_layers(False, own, taken, limits, torch.int32, outer)
    parts = interpolated_by(graph)
    asset = saved(graph, taken, target)
    about = {"signature": asdict(bounded(signature, limits)), UNREAD: unread(graph)}
    text = {"text": Text(taken.inputs[0].name, POSITION)._asdict()} if options.stateful else {}
    about |= text | {"sites": places_of(asset, wrapper(own, signature), taken, limits)}
    weights = sign(asset, module, about, parts)
    return CoreaiReport(
        path=target,
        weights={name: entry["key"] for name, entry in weights.items()},
        nbytes=sum(file.stat().st_size for file in asset.files),
    )


def keeping(signature: Signature, limits: Mapping[str, int]) -> Any:
    """Return what ``record`` is to wrap a causal language model of SIGNATURE in, LIMITS its largest sizes."""
    from .captures.keeping import Stateful

    return partial(Stateful, tokens=limits[str(signature.inputs[0].shape[1])])


def saved(graph: Any, signature: Signature, target: Path) -> Asset:
    """Write GRAPH, an ``ExportedProgram``, at TARGET.

    Raises:
        UnsupportedError: an operation has no form in Core AI.
        WeighbridgeError: the disk has no room.
    """
    step("writing the Core AI asset")
    weights = (*graph.state_dict.values(), *graph.constants.values())
    require_space(target, MARGIN + sum(it.nbytes for it in weights if isinstance(it, Tensor)))
    try:
        with quiet():
            from coreai_torch import TorchConverter, get_decomp_table

            converter = TorchConverter(mode=TorchConverter.Mode.RELEASE)  # no paths of source code
            for name, lowered in LOWERINGS.items():
                converter.register_torch_lowering(f"weighbridge::{name}.default")(lowered)
            once = computed_once(rewritten(graph, get_decomp_table))
            converter.add_exported_program(
                once,
                input_names=[port.name for port in signature.inputs],
                output_names=[port.name for port in signature.outputs],
                state_names=[*once.graph_signature.buffers_to_mutate.values()],
            )
            program = converter.to_coreai()
            written_by_us(program)
            program.save_asset(target)
    except (ModuleNotFoundError, WeighbridgeError):
        raise
    except Exception as error:
        pass_on_shortage(error)
        shutil.rmtree(target, ignore_errors=True)
        if isinstance(error.__cause__, OSError):  # of the disk
            raise error.__cause__ from None
        raise UnsupportedError(f"Core AI cannot hold the module: {untranslated(error)}") from error
    return Asset(target)


def computed_once(graph: Any) -> Any:
    """Return GRAPH without what it computes twice, unless outputs would become one, which Core AI refuses.

    Where two cumulative sums are equal, runtime 1.0.0b3 computes one and fails on the other.
    """
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    once = graph._transform_do_not_use(CSEPass())
    before, after = (len({*it.graph_signature.user_outputs}) for it in (graph, once))
    return once if before == after else graph


def written_by_us(program: Any) -> None:
    """Let what PROGRAM is saved as come by memory, where the system has files in it.

    Core AI's own writer ends the process where a disk is full or fails; of ours an ``OSError`` is heard.
    """
    if not hasattr(os, "memfd_create"):
        return
    own = program._save_bytecode

    def save(path: Path, **how: Any) -> None:
        with os.fdopen(os.memfd_create("program"), "r+b") as held:
            own(Path(f"/proc/self/fd/{held.fileno()}"), **how)
            held.seek(0)
            with path.open("wb") as file:
                shutil.copyfileobj(held, file)

    program._save_bytecode = save


def places_of(
    asset: Asset, whole: Positional, signature: Signature, limits: Mapping[str, int]
) -> dict[str, int]:
    """Return the operation of ASSET that computes what leaves each submodule inside WHOLE: by values."""
    step("finding the submodules")
    inputs = drawn(signature, limits)
    try:
        with torch.no_grad(), recording(whole.module, None) as found:
            whole(*(inputs[name] for name in whole.names))
    except Exception as error:  # PyTorch cannot run all in float16 that it can record
        pass_on_shortage(error)
        return {}
    try:
        values = asset.process.ask("computed", {name: it.numpy() for name, it in inputs.items()})
    except WeighbridgeError:  # the program runs, and cannot be looked into
        return {}
    places = {
        site: nearest(array, values)
        for site, array in found.items()
        if INPUT not in site and not np.array_equal(array, found.get(site + INPUT, ()))
    }  # a module that hands on what it receives computes nothing
    return {site: at for site, at in places.items() if at is not None}


def drawn(signature: Signature, limits: Mapping[str, int]) -> dict[str, Tensor]:
    """Return small inputs for SIGNATURE, token ids drawn, for which no two submodules give the same."""
    sizes = example_sizes(limits)
    inputs = {port.name: example(port, sizes, torch.int64) for port in signature.inputs}
    chance = torch.Generator().manual_seed(0)
    inputs |= {POSITION: torch.zeros(1, dtype=torch.int64)} if POSITION in inputs else {}
    for port in signature.inputs:
        if port.role == "token_ids":
            shape, count = inputs[port.name].shape, port.limit("vocabulary", 2)
            inputs[port.name] = torch.randint(0, count, shape, generator=chance)
    return inputs


def nearest(wanted: Array, values: Mapping[int, Array]) -> int | None:
    """Return the first of VALUES that is as near to WANTED as any; ``None`` where none is near.

    A recurrent layer's may lie with time before the batch.

    >>> one, two = np.arange(3.0), np.arange(3.0) + 1e-6
    >>> nearest(one, {4: two, 7: one, 9: one}), nearest(one, {4: two + 1})
    (7, None)
    >>> nearest(np.arange(6.0).reshape(2, 3), {5: np.arange(6.0).reshape(2, 3).T})
    5
    """
    scale = float(np.abs(wanted).max(initial=0))
    for turned in (wanted, wanted.swapaxes(0, min(1, wanted.ndim - 1))):
        off = {
            at: float(np.abs(it - turned).max(initial=0))
            for at, it in values.items()
            if it.shape == turned.shape
        }
        least = min(off.values(), default=np.inf)
        if scale > 0 and least <= NEAR * scale:
            return next(at for at, it in off.items() if it <= 2 * least)
    return None


def sign(
    asset: Asset, module: torch.nn.Module, about: Mapping[str, Any], parts: Sequence[Any]
) -> dict[str, Any]:
    """Write into ASSET what is to be said ABOUT it and which of its constants is what; return the latter.

    Of PARTS see ``recorded_of``.
    """
    constants = {name: asset.read(name) for name, it in asset.headers.items() if it.dtype in FLOATS}
    rows = recorded_of(constants, module, about[UNREAD], parts)
    names = dict(named(rows["weights"]))
    entries = {names[name]: entry for name, entry in rows["weights"].items()}
    manifest = {
        "version": 1,
        **about,
        **rows,
        "weights": entries,
        "names": {str(asset.numbers[name]): new for name, new in names.items()},
    }
    file = asset.path / METADATA
    stored = read_object(file, RECORD)
    stored.pop("creationDate", None)  # the same export is the same bytes
    stored["creatorDefinedMetadata"] = {MANIFEST: to_metadata(manifest)}
    file.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return entries


def named(weights: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield every constant of WEIGHTS with the name of the tensor that it carries, no name twice.

    >>> dict(named({"a": {"key": "w", "also": ["v"]}, "b": {"key": "w", "also": ["v"]}}))
    {'a': 'w', 'b': 'v'}
    """
    taken: set[str] = set()
    for name, entry in weights.items():
        free = (it for it in (entry["key"], *entry.get("also", ())) if it not in taken)
        chosen = next(free, name)
        taken.add(chosen)
        yield name, chosen
