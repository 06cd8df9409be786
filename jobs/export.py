"""Export: a torch computation to the format of a device, staged and checked."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import __version__
from ..converters.captures.program_options import ProgramOptions
from ..converters.common.arguments import typed
from ..converters.common.hints import command, unused
from ..converters.common.repositories import recorded
from ..converters.coreml.compression import Compression
from ..converters.coreml.options import SEVERAL, TARGETS, PackageOptions
from ..converters.coreml.vision import Vision
from ..converters.models import Model, Signature
from ..converters.models.pictures import Picture
from ..converters.planning.memory import require_memory
from ..converters.planning.transcoding import quantized_view
from ..converters.quantization import Dequantized
from ..converters.results.records import KINDS
from ..converters.runtimes.mlx_in_torch import computed_by_mlx, in_torch, traced_from_mlx
from ..errors import BadInputError, UnsupportedError
from .converting import compared, require_apart
from .options import WriteOptions
from .pipeline import Checked, Facts, Outcome, Written, publish
from .provenance.base import Provenance, with_provenance
from .provenance.placement import base_and_adapter, live_on


def merged_in_memory(model: Model) -> Any:
    """Return MODEL as a torch module whose adapter is merged, for an exporter."""
    require_memory("export", model)
    from ..converters.adapters import merge as merge_update
    from ..converters.checkpoints.arrays import FileArrays
    from ..converters.checkpoints.derived import Overlay
    from ..converters.runtimes.fitting import load_weights
    from ..converters.runtimes.torch import build_module, torch_side

    module = build_module(replace(model, adapter=None))
    if model.adapter:
        arrays, updates, *_ = torch_side(model)
        merged = {name: merge_update(arrays[name], update)[0] for name, update in updates.items()}
        own = FileArrays(Overlay(arrays.checkpoint, merged))
        load_weights(module, own, where=model.spec)
    return module


@typed
def export_coreml(  # noqa: PLR0913  # the options of a verb, by keyword
    source: str,
    target: Path,
    *,
    compute: str = "mixed",
    upper: Mapping[str, int] | None = None,
    compression: Compression = Compression(),
    package: PackageOptions = PackageOptions(),
    vision: Vision = Vision(),
    options: WriteOptions = WriteOptions(),
) -> Outcome:
    """Export SOURCE to a Core ML package at TARGET.

    Args:
        source: any model with a torch computation; a live adapter is merged in memory.
        target: must end in ``.mlpackage``.
        compute: ``mixed``, ``float16`` or ``float32``; see ``converters.coreml.export``.
        upper: largest size of each named dimension.
        compression: how its weights are compressed; what that costs is in the facts of the outcome.
        package: see :class:`PackageOptions`.
        vision: pictures and labels, see :class:`Vision`.
        options: see :class:`WriteOptions`.
    """
    require_possible(package, compute, compression)

    def write(model: Model, path: Path) -> Written:
        from ..converters.coreml.export import export_coreml as write_package

        require_for_codes(package, codes_of(model))
        chosen = vision.for_model(package, model, compressed=bool(compression))
        sized = chosen.sized(model.signature, upper or {})
        trial = trial_of(model, sized, chosen.images) if compute == "mixed" or compression else []
        given = calibration_of(compression, model, sized, chosen.images)
        ways: dict[str, Any] = {"compute": compute, "upper": upper, "trial": trial}
        made = write_package(merged_in_memory(model), model.signature, path, options=chosen, **ways)
        costs = compressed(path, compression, model, (given, trial))
        return Written(facts_of(model, "mlprogram", str(made)) | costs)

    how = f"{compute}, {compression}" if compression else compute
    return _export(source, target, Form("package", ".mlpackage", how), write, options)


def calibration_of(
    compression: Compression, model: Model, signature: Signature, pictures: Mapping[str, Picture]
) -> list[Mapping[str, Any]]:
    """Return the inputs on which COMPRESSION measures activations: a user's, or those of a check; see ``trial_of``."""
    from ..converters.models.pictures import require_pictures
    from ..parity.check.recording import REACH
    from ..parity.probes.given import probes_from_file

    if not compression.activations:
        return []
    if compression.calibrate:
        probes = probes_from_file(compression.calibrate, model.signature)
        for probe in probes:
            require_pictures(pictures, probe.inputs)
        return [it.inputs for it in probes]
    asked = (model, signature, pictures)
    return [*trial_of(*asked, reach=REACH), *trial_of(*asked, quick=False)]


def require_possible(package: PackageOptions, compute: str, compression: Compression) -> None:
    """Refuse what of a PACKAGE does not go together, or with COMPUTE or COMPRESSION.

    Raises:
        BadInputError: it cannot be.
        UnsupportedError: coremltools cannot make it.
    """
    package.require(compute)
    compression.require()
    if compression.activations and compute == "float32":
        raise BadInputError(
            "coremltools writes scales of activations in float16: --activations goes with mixed or float16"
        )
    require_uncompressed(package, str(compression))
    if compression:
        require_system(package, compression.oldest, str(compression))


def require_system(package: PackageOptions, oldest: str, words: str) -> None:
    """Refuse a PACKAGE for a system before OLDEST, which what WORDS name needs.

    Raises:
        BadInputError: it is for an older one.
    """
    if TARGETS.index(package.system or oldest) < TARGETS.index(oldest):
        raise BadInputError(
            f"{words}: runs on {oldest} and later, not on {package.system}; leave --target out, or name {oldest}"
        )


def require_for_codes(package: PackageOptions, tensors: Dequantized | None) -> None:
    """Refuse a PACKAGE that cannot keep the codes of TENSORS, a quantized source's, if it is one.

    Raises:
        WeighbridgeError: it is one of two functions, or for a system that reads none.
    """
    if tensors is None:
        return
    codes = "the codes of a quantized source (convert --dequantize makes a dense one)"
    require_uncompressed(package, codes)
    require_system(package, SEVERAL, codes)


def require_uncompressed(package: PackageOptions, words: str) -> None:
    """Refuse a PACKAGE of two functions whose weights are compressed as WORDS say, empty for none.

    Raises:
        UnsupportedError: they are: coremltools compresses no such package.
    """
    if package.multifunction and words:
        raise UnsupportedError(
            f"coremltools compresses no package of two functions: leave out --multifunction, or {words}"
        )


def compressed(
    package: Path,
    compression: Compression,
    model: Model,
    given: tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]],
) -> dict[str, Any]:
    """Compress PACKAGE in place, as asked, or with the codes of MODEL where its weights are quantized.

    Args:
        package: to compress.
        compression: what is asked for.
        model: the source.
        given: inputs to calibrate on, and those of a trial.

    Returns:
        What that saves, and what it costs on the trial.
    """
    trial = given[1]
    codes = codes_of(model)
    if not compression and codes is None:
        return {}
    from ..converters.coreml.codes import keep_codes
    from ..converters.coreml.compress import compress_package, costs, left

    with tempfile.TemporaryDirectory(dir=package.parent, prefix=f".{package.stem}-") as place:
        before = Path(shutil.copytree(package, Path(place) / "before.mlpackage"))
        if compression:
            compress_package(package, compression, *given)
        kept = None if codes is None or compression.weights else keep_codes(package, codes)
        changed = compression or (kept and kept.codes)
        found = costs(before, package, trial) if changed else {}
        if compression.weights and "compressed" in found:
            found["compressed"]["dense"] = left(before, package)
        return found | ({"codes": kept._asdict()} if kept else {})


def codes_of(model: Model) -> Dequantized | None:
    """Return the quantized weights of MODEL, seen dense; ``None`` where it has none."""
    tensors = model.tensors
    return tensors if isinstance(tensors, Dequantized) and tensors.schemes else None


def export_program(
    kind: str,
    source: str,
    target: Path,
    *,
    ways: ProgramOptions = ProgramOptions(),
    options: WriteOptions = WriteOptions(),
) -> Outcome:
    """Export SOURCE to a program of KIND at TARGET.

    Args:
        kind: ``onnx`` for an ONNX file, ``coreai`` for a Core AI asset.
        source: any model with a torch computation; a live adapter is merged in memory.
        target: must end in ``.onnx`` or ``.aimodel``; a folder where ONNX's weights are to lie apart.
        ways: see :class:`ProgramOptions`.
        options: see :class:`WriteOptions`.
    """

    def write(model: Model, path: Path) -> Written:
        codes = codes_of(model) if kind == "onnx" else None
        if ways.quant_format and not codes:
            raise BadInputError(
                f"--quant-format {ways.quant_format}: {source} is not quantized; quantize it first:"
                f" {command('quantize', source, unused(source, '-4bit'), '--bits', '4')}"
            )
        own = {"codes": codes} if codes else {}
        exported = writer(kind)(merged_in_memory(model), model.signature, path, ways, **own)
        kept = {"codes": exported.kept.facts()} if codes else {}
        return Written(facts_of(model, kind, str(exported)) | kept)

    form = Form("asset", ".aimodel", ways.precision)
    if kind == "onnx":
        form = Form("graph", "") if ways.external_data else Form("onnx", ".onnx")
        form = form._replace(how=str(ways))
    return _export(source, target, form, write, options)


def writer(kind: str) -> Any:
    """Return the function that writes a module as a program of KIND."""
    if kind == "onnx":
        from ..converters.onnx_export.export import export_onnx as write_file

        return write_file
    from ..converters.coreai_export import export_coreai as write_asset

    return write_asset


export_onnx, export_coreai = partial(export_program, "onnx"), partial(export_program, "coreai")


class Form(NamedTuple):
    """What an export writes: a key of ``results.records.KINDS``, the ending of its name, how it is written."""

    kind: str
    suffix: str
    how: str = ""


def _export(
    source: str,
    target: Path,
    form: Form,
    write: Callable[[Model, Path], Written],
    options: WriteOptions,
) -> Outcome:
    """Let WRITE make a FORM of SOURCE at TARGET, compare both, and publish it."""
    if form.suffix and target.suffix != form.suffix:
        raise BadInputError(f"{target}: {KINDS[form.kind]} is named *{form.suffix}")
    if not form.suffix and target.suffix == ".onnx":
        raise BadInputError(f"{target}: weights beside the graph make a folder; leave .onnx out")
    place = options.begin(target, form.kind, source)
    model, provenance = opened(source, options)
    if options.dry_run:
        ports = [f"{port.name} {port.dtype}{list(port.shape)}" for port in model.signature.inputs]
        return place.planned((f"{source} -> {target} ({form.how})", *ports))
    require_apart(model, target)
    if computed_by_mlx(model):
        model = in_torch(model, trial_of(model, model.signature))
    check = partial(judged, model, provenance, target, options)
    return publish(place, "", partial(write, model), check if options.checks else None)


def trial_of(
    model: Model,
    signature: Signature,
    pictures: Mapping[str, Picture] = MappingProxyType({}),
    *,
    quick: bool = True,
    reach: int = 0,
) -> list[Mapping[str, Any]]:
    """Return inputs of SIGNATURE on which MODEL shows what float16 cannot hold; none where none can be made.

    Inputs that are PICTURES are the numbers of some.
    """
    from ..converters.models.pictures import of_pictures
    from ..parity.goldens.recorder import text_folder
    from ..parity.probes.probes import make_probes, stand_ins

    try:
        reserved = stand_ins(model.config)
        folder = text_folder(model)
        probes = make_probes(
            signature, tokenizer=folder, quick=quick, reach=reach, reserved=reserved
        )
    except UnsupportedError:
        return []
    return [of_pictures(pictures, probe.inputs) for probe in probes]


def judged(
    model: Model,
    provenance: Provenance | None,
    target: Path,
    options: WriteOptions,
    place: Path,
    _: Facts,
) -> Checked:
    """Compare what lies at PLACE, to be published as TARGET, with MODEL."""
    verdict = compared(model, place, target, options)
    return Checked(with_provenance(verdict, provenance) if provenance else verdict)


def facts_of(model: Model, framework: str, exported: str) -> dict[str, Any]:
    """Return what the record beside the file says of MODEL, EXPORTED for FRAMEWORK as said."""
    own = "mlx" if traced_from_mlx(model.factory) else model.framework
    return {
        "weighbridge": __version__,
        "framework": framework,
        "export": exported,
        "source": {**recorded(model.spec), "framework": own},
    }


def opened(source: str, options: WriteOptions) -> tuple[Model, Provenance | None]:
    """Open SOURCE, its adapter live on it; return what it is to the adapter's base, if there is one.

    Quantized weights are seen dense.

    Raises:
        BadInputError: it is a program: a Core ML package, an ONNX file or a Core AI asset.
        MismatchError: the adapter is in the model already, or was trained on another base.
    """
    base, adapter = base_and_adapter(source)
    model = quantized_view(options.open(base))
    model.require_source()
    return live_on(model, adapter) if adapter else (model, None)
