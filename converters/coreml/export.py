"""Export a PyTorch module as an ML program for Core ML, on any operating system."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from ...errors import BadInputError, TargetExistsError, UnsupportedError, WeighbridgeError
from ..captures.mlprogram.evaluator import dtype_name
from ..captures.mlprogram.names import inward
from ..captures.mlprogram.program import load_program
from ..captures.mlprogram.toolkit import coremltools, quiet, types
from ..captures.mlprogram.variables import every_operation, variables
from ..captures.pictured import Pictured, before_model
from ..captures.positional import record, record_layers, require_axes
from ..captures.tracing import unused_left_out
from ..common.memory import pass_on_shortage
from ..common.steps import step
from ..common.users_code import fault_of, first_line
from ..models.signature import Signature
from ..values import Array
from .compat import bound_constants, lower
from .form import Form, form_of, tensor_types
from .made import Origins
from .naming import (
    FORGETTING,
    NAMING,
    is_sum,
    little_garbage_left,
    programs_checked_once,
    rounded_kept,
    sums_kept,
)
from .options import TARGETS, PackageOptions
from .precision import COMPUTES, Selection, beyond_half
from .translations import any_length
from .vision import scores_of
from .writing import ExportReport, Made, describe, save, save_functions, written_of

# Folding changes weights beyond recognition; Core ML's own compiler folds again on the device.
# A product and a sum as a batch norm of variance 1 get its epsilon: 5e-6 of the output (coremltools 9.0).
# A PReLU whose slopes are one number becomes a leaky ReLU, in which no constant carries them.
KEPT_APART: Final = (
    "common::fuse_conv_batchnorm",
    "common::fuse_elementwise_to_batchnorm",
    "common::prelu_to_lrelu",
)
WRITER: Final = "[MIL FileWriter]"  # begins what coremltools says of a disk that refuses


def lowered(graph: Any) -> Any:
    """Return GRAPH with what coremltools does not translate rewritten."""
    try:
        with warnings.catch_warnings(), torch.no_grad(), unused_left_out():
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
    described = tensor_types(form, graph)
    pipeline = coremltools.PassPipeline.DEFAULT
    pipeline.remove_passes(set(KEPT_APART))
    pipeline.insert_pass(0, NAMING)
    if form.options.labels:
        pipeline.append_pass(FORGETTING)
    # In float16 a sum of what was rounded already would err more than one that is rounded once.
    folded = form.options.folded or selection.compute == "float16"
    try:
        sums = nullcontext() if folded else sums_kept()
        once, few = programs_checked_once(), little_garbage_left(graph)
        with quiet(), once, few, sums, rounded_kept(selection.exact):
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
        pass_on_full_disk(error)
        raise UnsupportedError(
            f"coremltools cannot convert the module: {first_line(error)}"
        ) from error


def pass_on_full_disk(error: Exception) -> None:
    """Say of ERROR, if that is what it is, that coremltools has no room for the weights, which it writes first.

    Raises:
        WeighbridgeError: it is.
    """
    if WRITER in str(error) or isinstance(error, OSError):
        raise WeighbridgeError(
            f"coremltools cannot write its weights to {tempfile.gettempdir()}: free some space there, or name"
            " another folder in TMPDIR"
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

    Integers are int32, and so are booleans; outputs in floating point are float32. Of its manifest see ``constants_described`` and ``sites``.

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
    require_axes(signature, "Core ML")
    form = form_of(signature, upper or {}, options)
    within = (target.parent, trial)
    made = {name: converted(module, it, compute, within) for name, it in form.functions.items()}
    facts = (module, form._replace(signature=signature), made, dict(metadata or {}))
    return write_package(made, target, lambda package: describe(package, *facts))


def settings_of(body: Any) -> dict[str, Any]:
    """Return the arguments of ``export_coreml`` with which a program with BODY was made, as far as it shows."""
    kept = [it for it in body.inputs.values() if types.is_state(it.sym_type)]
    half = any(dtype_name(it) == "fp16" for it in variables(body).values())
    system = body.opset_version.name
    options = PackageOptions(
        stateful=bool(kept),
        system=system if system in TARGETS else None,
        folded=not any(map(is_sum, every_operation(body))),
    )
    return {"compute": "mixed" if half else "float32", "options": options}


def converted(
    module: torch.nn.Module,
    form: Form,
    compute: str,
    within: tuple[Path, Sequence[Mapping[str, Array]]],
) -> Made:
    """Return the function of FORM that computes what MODULE does; see ``convert_within``."""
    graph = lowered(recorded(module, form))
    if compute != "float32":
        bound_constants(graph)
    first = {*before_model(graph, form.pictured)}
    selection = Selection(compute, Origins(graph, module).activations, first)
    model, selection = convert_within(graph, form, selection, within)
    return Made(model, graph, selection)


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
    from ..captures.keeping import Stateful

    return record(*asked, wrapper=partial(Stateful, tokens=form.tokens))


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
    made: Mapping[str, Made], target: Path, described: Callable[[Path], ExportReport]
) -> ExportReport:
    """Write functions MADE at TARGET, whole or not at all; return what DESCRIBED says of it and adds to it."""
    step("writing the package")
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.stem}-") as staging:
        staged = Path(staging) / target.name
        save_functions({name: it.model for name, it in made.items()}, staged)
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
        given = [inward(written_of(form), inputs) for inputs in trial]
        text, length = form.text, form.signature.inputs[0].shape[-1]
        calls = [[1] * it[text.ids].shape[1] if text and length == 1 else [] for it in given]
        ran = (beyond_half(program, *it, text) for it in zip(given, calls, strict=True))
        return set().union(*ran)


def require_package(target: Path, compute: str, options: PackageOptions) -> None:
    """Refuse a TARGET that exists or has another ending, an unknown COMPUTE, and what OPTIONS rule out."""
    if compute not in COMPUTES or target.suffix != ".mlpackage":
        wanted = " or ".join(COMPUTES)
        raise BadInputError(f"{target}: expected a name in .mlpackage and {wanted}, not {compute}")
    options.require(compute)
    if target.exists():
        raise TargetExistsError(f"{target} exists")
