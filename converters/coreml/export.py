"""Export a PyTorch module as an ML program for Core ML, on any operating system."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from ...errors import BadInputError, TargetExistsError, UnsupportedError, WeighbridgeError
from ..captures.mlprogram.arithmetic import tensors
from ..captures.mlprogram.package import MANIFEST, Package, census, functions, read_package
from ..captures.mlprogram.program import (
    load_body,
    load_program,
    variables,
    weights,
)
from ..captures.mlprogram.toolkit import coremltools, quiet
from ..captures.positional import bounded, bounds, example, example_sizes, first_line, record
from ..common.memory import pass_on_shortage
from ..common.steps import step
from ..common.users_code import fault_of
from ..documents import read_object
from ..models.signature import Signature
from ..values import Array
from .compat import bound_constants, lower
from .made import Origins, constants_described
from .manifest import sites
from .naming import NAMING
from .precision import COMPUTES, Selection, beyond_half

# iOS 17 and macOS 14 decompose attention into matmul and softmax, whose masks are additive and
# finite; the fused operation of iOS 18 leaves open what a row without any key becomes.
TARGET: Final = "iOS17"
# Folding changes weights beyond recognition; Core ML's own compiler folds again on the device.
KEPT_APART: Final = ("common::fuse_conv_batchnorm",)


class ExportReport(NamedTuple):
    """What an export wrote.

    Attributes:
        path: the package.
        census: number of operations by type.
        matched: constant -> name of the source's tensor with the same values.
        unmatched: constants that equal no tensor of the source (made by the converter).
        absent: tensors of the source that are no constant (not used, or folded).
        nbytes: size of the package on disk.
    """

    path: Path
    census: Mapping[str, int]
    matched: Mapping[str, str]
    unmatched: tuple[str, ...]
    absent: tuple[str, ...]
    nbytes: int

    def __str__(self) -> str:
        """Print the counts."""
        return (
            f"{sum(self.census.values())} operations, {len(self.matched)} weights recognised,"
            f" {len(self.unmatched)} made by the converter, {len(self.absent)} of the source absent"
        )


def lowered(graph: Any) -> Any:
    """Return GRAPH with what coremltools does not translate rewritten."""
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            return lower(graph)
    except WeighbridgeError:
        raise
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(
            f"torch.export cannot record the module: {fault_of(error) or first_line(error)}"
        ) from error


def tensor_types(signature: Signature, limits: Mapping[str, int]) -> dict[str, list[Any]]:
    """Return coremltools' descriptions of inputs and outputs."""
    sizes = example_sizes(limits)
    ranges: dict[int | str, Any] = {
        name: coremltools.RangeDim(1, limit, default=sizes[name]) if limit > 1 else 1
        for name, limit in limits.items()
    }
    inputs = [
        coremltools.TensorType(
            port.name,
            [ranges.get(size, size) for size in port.shape],
            dtype=example(port, sizes).numpy().dtype,
        )
        for port in signature.inputs
    ]
    outputs = [coremltools.TensorType(port.name, dtype=np.float32) for port in signature.outputs]
    return {"inputs": inputs, "outputs": outputs}


def convert(
    graph: Any, signature: Signature, limits: Mapping[str, int], selection: Selection
) -> Any:
    """Return coremltools' model of GRAPH."""
    described = tensor_types(signature, limits)
    pipeline = coremltools.PassPipeline.DEFAULT
    pipeline.remove_passes(set(KEPT_APART))
    pipeline.insert_pass(0, NAMING)
    try:
        with quiet():
            return coremltools.convert(
                graph,
                **described,
                convert_to="mlprogram",
                compute_precision=precision_of(selection),
                minimum_deployment_target=getattr(coremltools.target, TARGET),
                pass_pipeline=pipeline,
                skip_model_load=True,
            )
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(
            f"coremltools cannot convert the module: {first_line(error)}"
        ) from error


def precision_of(selection: Selection) -> Any:
    """Return coremltools' description of what SELECTION chooses."""
    if selection.compute == "float32":
        return coremltools.precision.FLOAT32
    return coremltools.transform.FP16ComputePrecision(op_selector=selection)


def write_metadata(package: Package, metadata: Mapping[str, str]) -> None:
    """Add METADATA to the package's specification, in place."""
    file = package.weights.parent / "model.mlmodel"
    package.spec.description.metadata.userDefined.update(metadata)
    file.write_bytes(package.spec.SerializeToString(deterministic=True))


def files(folder: Path) -> Iterator[Path]:
    """Yield the files below FOLDER."""
    return (path for path in folder.rglob("*") if path.is_file())


def export_coreml(  # noqa: PLR0913  # the options of a verb, by keyword
    module: torch.nn.Module,
    signature: Signature,
    target: Path,
    *,
    compute: str = "mixed",
    upper: Mapping[str, int] | None = None,
    metadata: Mapping[str, str] | None = None,
    trial: Sequence[Mapping[str, Array]] = (),
) -> ExportReport:
    """Write MODULE as an ``.mlpackage`` for macOS 14, iOS 17 and later.

    Inputs and outputs are named as in SIGNATURE; integers are int32 and outputs float32. The package
    carries a manifest, see ``constants_described`` and ``manifest.sites``.

    Args:
        module: called with keyword arguments named as the inputs; put in evaluation mode.
        signature: its inputs and outputs; named sizes become flexible, from 1 to a bound.
        target: the package to write; its name ends in ``.mlpackage``.
        compute: ``float32``, ``float16``, or ``mixed``: but for positions, masks and norms.
        trial: inputs; what they show float16 cannot hold is in float32 too where that is mixed.
        upper: bounds of named sizes; by default those of the signature, or 32.
        metadata: more entries for the user-defined metadata.

    Raises:
        BadInputError: unknown COMPUTE, dimension or suffix.
        TargetExistsError: TARGET exists.
        UnsupportedError: operations without a translation, all listed, or what cannot be recorded.
    """
    require_package(target, compute)
    limits = bounds(signature, upper or {})
    step("recording in torch.export")
    graph = lowered(record(module, signature, limits))
    if compute != "float32":
        bound_constants(graph)
    selection = Selection(compute, Origins(graph, module).activations)
    step("converting with coremltools")
    model, selection = convert_within(graph, signature, limits, selection, (target.parent, trial))
    facts = (module, bounded(signature, limits), graph, dict(metadata or {}), selection)
    return write_package(model, target, lambda package: describe(package, *facts))


def convert_within(
    graph: Any,
    signature: Signature,
    limits: Mapping[str, int],
    selection: Selection,
    trial: tuple[Path, Sequence[Mapping[str, Array]]],
) -> tuple[Any, Selection]:
    """Return coremltools' model, and what of it stays in float32: what overflows in a TRIAL too.

    TRIAL is a folder to write in, and inputs.
    """
    model = convert(graph, signature, limits, selection)
    if selection.compute == "mixed" and (outside := too_large(model, *trial)):
        selection = Selection(selection.compute, selection.activations, outside)
        model = convert(graph, signature, limits, selection)
    return model, selection


def write_package(
    model: Any, target: Path, described: Callable[[Path], ExportReport]
) -> ExportReport:
    """Write MODEL at TARGET, whole or not at all; return what DESCRIBED says of it and adds to it."""
    step("writing the package")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}-") as staging:
        staged = Path(staging) / target.name
        save(model, staged)
        report = described(staged)
        shutil.move(staged, target)
    return report._replace(path=target)


def too_large(model: Any, folder: Path, trial: Sequence[Mapping[str, Array]]) -> set[str]:
    """Return the operations of MODEL that TRIAL shows to make or read what float16 cannot hold."""
    if not trial:
        return set()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".trial-") as place:
        model.save(str(Path(place) / "trial.mlpackage"))
        program = load_program(Path(place) / "trial.mlpackage")
        return {name for inputs in trial for name in beyond_half(program, inputs)}


def require_package(target: Path, compute: str) -> None:
    """Refuse a TARGET that exists or has another ending, and an unknown COMPUTE."""
    if compute not in COMPUTES or target.suffix != ".mlpackage":
        wanted = " or ".join(COMPUTES)
        raise BadInputError(f"{target}: expected a name in .mlpackage and {wanted}, not {compute}")
    if target.exists():
        raise TargetExistsError(f"{target} exists")


def save(model: Any, package: Path) -> None:
    """Write coremltools' MODEL as PACKAGE, alike in every run."""
    model.save(str(package))
    for stray in set(package.iterdir()) - {package / "Data", package / "Manifest.json"}:
        stray.unlink()  # debug handles of another runtime
    name_items(package)


def name_items(package: Path) -> None:
    """Give the items of PACKAGE identifiers that follow from their paths; coremltools draws lots."""
    place = package / "Manifest.json"
    facts = read_object(place)
    items = facts["itemInfoEntries"]
    names = {
        drawn: str(uuid.uuid5(uuid.NAMESPACE_URL, item["path"])) for drawn, item in items.items()
    }
    entries = sorted((names[drawn], item) for drawn, item in items.items())
    root = names[facts["rootModelIdentifier"]]
    facts |= {"itemInfoEntries": dict(entries), "rootModelIdentifier": root}
    place.write_text(json.dumps(facts, indent=4) + "\n", encoding="utf-8")


def describe(
    staged: Path,
    module: torch.nn.Module,
    signature: Signature,
    graph: Any,
    metadata: dict[str, str],
    selection: Selection,
) -> ExportReport:
    """Write the manifest into the package and report on it."""
    package = read_package(staged)
    (function,) = functions(package)
    body = load_body(package, function)
    rows = constants_described(body, module, Origins(graph, module), selection.exact)
    found, made = rows["weights"], rows["made"]
    manifest = {
        "version": 2,
        "compute": selection.compute,
        "signature": asdict(signature),
        **rows,
        "sites": sites(graph, variables(body), [port.name for port in signature.outputs]),
    }
    write_metadata(package, {**metadata, MANIFEST: json.dumps(manifest)})
    keys = {key for entry in found.values() for key in (entry["key"], *entry.get("also", ()))}
    keys |= {key for rule in made.values() for key in tensors(rule.get("value"))}
    return ExportReport(
        path=staged,
        census=dict(census(package, function)),
        matched={name: entry["key"] for name, entry in found.items()},
        unmatched=tuple(sorted(made.keys() & weights(body).keys())),
        absent=tuple(sorted(module.state_dict().keys() - keys)),
        nbytes=sum(file.stat().st_size for file in files(staged)),
    )
