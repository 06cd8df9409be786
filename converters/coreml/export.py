"""Export a PyTorch module as an ML program for Core ML, on any operating system."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from ...errors import BadInputError, TargetExistsError, UnsupportedError, WeighbridgeError
from ..captures.constants import UNREAD, unread
from ..captures.mlprogram.arithmetic import tensors_of
from ..captures.mlprogram.names import inward
from ..captures.mlprogram.package import MANIFEST, census, functions, read_package
from ..captures.mlprogram.program import load_body, load_program
from ..captures.mlprogram.toolkit import coremltools, quiet
from ..captures.mlprogram.variables import variables, weights
from ..captures.pictured import Pictured, before_model
from ..captures.positional import record, record_layers
from ..common.memory import pass_on_shortage
from ..common.steps import step
from ..common.users_code import fault_of, first_line
from ..models.signature import Signature
from ..values import Array
from .compat import bound_constants, lower
from .form import PROBABILITIES, Form, form_of, tensor_types
from .made import Origins, constants_described
from .manifest import sites
from .naming import FORGETTING, NAMING
from .options import PackageOptions
from .precision import COMPUTES, Selection, beyond_half
from .recurrent import any_length
from .vision import scores_of
from .writing import files, save, write_metadata

# Folding changes weights beyond recognition; Core ML's own compiler folds again on the device.
# A product and a sum as a batch norm of variance 1 get its epsilon: 5e-6 of the output (coremltools 9.0).
KEPT_APART: Final = ("common::fuse_conv_batchnorm", "common::fuse_elementwise_to_batchnorm")


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


def convert(graph: Any, form: Form, selection: Selection) -> Any:
    """Return coremltools' model of GRAPH."""
    described = tensor_types(form)
    pipeline = coremltools.PassPipeline.DEFAULT
    pipeline.remove_passes(set(KEPT_APART))
    pipeline.insert_pass(0, NAMING)
    if form.options.labels:
        pipeline.append_pass(FORGETTING)
    try:
        with quiet():
            return coremltools.convert(
                graph,
                **described,
                convert_to="mlprogram",
                compute_precision=precision_of(selection),
                minimum_deployment_target=getattr(coremltools.target, form.options.oldest),
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


def export_coreml(  # noqa: PLR0913  # the options of a verb, by keyword
    module: torch.nn.Module,
    signature: Signature,
    target: Path,
    *,
    compute: str = "mixed",
    upper: Mapping[str, int] | None = None,
    metadata: Mapping[str, str] | None = None,
    trial: Sequence[Mapping[str, Array]] = (),
    options: PackageOptions = PackageOptions(),
) -> ExportReport:
    """Write MODULE as an ``.mlpackage`` for macOS 14, iOS 17 and later.

    Integers are int32 and outputs float32. Of its manifest see ``constants_described`` and ``sites``.

    Args:
        module: called with keyword arguments named as the inputs; put in evaluation mode.
        signature: its inputs and outputs; named sizes become flexible, from 1 to a bound.
        target: the package to write; its name ends in ``.mlpackage``.
        compute: ``float32``, ``float16``, or ``mixed``: but for positions, masks and norms.
        trial: inputs; what they show float16 cannot hold is in float32 too where that is mixed.
        upper: bounds of named sizes; by default those of the signature, or 32.
        metadata: more entries for the user-defined metadata.
        options: see :class:`PackageOptions`.

    Raises:
        BadInputError: unknown COMPUTE, dimension or suffix.
        TargetExistsError: TARGET exists.
        UnsupportedError: operations without a translation, all listed, or what cannot be recorded.
    """
    require_package(target, compute, options)
    form = form_of(signature, upper or {}, options)
    graph = lowered(recorded(module, form))
    if compute != "float32":
        bound_constants(graph)
    first = {*before_model(graph, form.pictured)}
    selection = Selection(compute, Origins(graph, module).activations, first)
    model, selection = convert_within(graph, form, selection, (target.parent, trial))
    facts = (module, form._replace(signature=signature), graph, dict(metadata or {}), selection)
    return write_package(model, target, lambda package: describe(package, *facts))


def recorded(module: torch.nn.Module, form: Form) -> Any:
    """Return the graph of MODULE, its keys and values in buffers where FORM has states."""
    step("recording in torch.export")
    options, asked = form.options, (module, form.signature, form.limits)
    if options.images or options.labels:
        scores = scores_of(form.signature).name if options.labels else None
        pictured = partial(Pictured, pictures=options.images, scores=scores)
        return record_layers(any_length(module), *asked, torch.int32, pictured)
    if not options.stateful:
        return record_layers(any_length(module), *asked)
    from .stateful import Stateful

    length = str(form.signature.inputs[0].shape[1])
    wrapper = partial(Stateful, tokens=form.limits[length])
    return record(*asked, wrapper=wrapper)


def convert_within(
    graph: Any,
    form: Form,
    selection: Selection,
    trial: tuple[Path, Sequence[Mapping[str, Array]]],
) -> tuple[Any, Selection]:
    """Return coremltools' model, and what of it stays in float32: what overflows in a TRIAL too.

    TRIAL is a folder to write in, and inputs.
    """
    step("converting with coremltools")
    model = convert(graph, form, selection)
    if selection.compute == "mixed" and (outside := too_large(model, form, *trial)):
        outside |= {*selection.outside}
        selection = Selection(selection.compute, selection.activations, outside)
        model = convert(graph, form, selection)
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


def too_large(
    model: Any, form: Form, folder: Path, trial: Sequence[Mapping[str, Array]]
) -> set[str]:
    """Return the operations of MODEL that TRIAL shows to make or read what float16 cannot hold."""
    if not trial:
        return set()
    with tempfile.TemporaryDirectory(dir=folder, prefix=".trial-") as place:
        save(model, Path(place) / "trial.mlpackage")
        program = load_program(Path(place) / "trial.mlpackage")
        given = (inward(written_of(form), inputs) for inputs in trial)
        return {name for inputs in given for name in beyond_half(program, inputs, form.text)}


def require_package(target: Path, compute: str, options: PackageOptions) -> None:
    """Refuse a TARGET that exists or has another ending, an unknown COMPUTE, and what OPTIONS rule out."""
    if compute not in COMPUTES or target.suffix != ".mlpackage":
        wanted = " or ".join(COMPUTES)
        raise BadInputError(f"{target}: expected a name in .mlpackage and {wanted}, not {compute}")
    options.require(compute)
    if target.exists():
        raise TargetExistsError(f"{target} exists")


def written_of(form: Form) -> dict[str, Any]:
    """Return what a manifest says of the inputs and outputs of FORM besides their signature."""
    options = form.options
    about: dict[str, Any] = {
        "text": form.text._asdict() if form.text else {},
        "names": dict(options.names),
        "pictures": {name: it._asdict() for name, it in options.images.items()},
    }
    if options.labels:
        scores = scores_of(form.signature).name
        about["labels"] = {"scores": scores, "from": options.labelled}
    return {key: value for key, value in about.items() if value}


def describe(
    staged: Path,
    module: torch.nn.Module,
    form: Form,
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
    signature = form.options.sized(form.signature, form.limits)
    outputs = [form.name(port.name) for port in signature.outputs]
    outputs += [PROBABILITIES] if form.options.labels else []
    manifest = {
        "version": 2,
        "compute": selection.compute,
        "signature": asdict(signature),
        **written_of(form),
        **rows,
        UNREAD: unread(graph),
        "sites": sites(graph, variables(body), outputs),
    }
    write_metadata(package, {**metadata, MANIFEST: json.dumps(manifest)}, form.options)
    keys = {key for entry in found.values() for key in (entry["key"], *entry.get("also", ()))}
    keys |= {key for rule in made.values() for key in tensors_of(rule)}
    return ExportReport(
        path=staged,
        census=dict(census(package, function)),
        matched={name: entry["key"] for name, entry in found.items()},
        unmatched=tuple(sorted(made.keys() & weights(body).keys())),
        absent=tuple(sorted(module.state_dict().keys() - keys)),
        nbytes=sum(file.stat().st_size for file in files(staged)),
    )
