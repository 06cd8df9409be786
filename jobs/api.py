"""The verbs as functions: what ``import weighbridge`` offers, each with keywords of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any, Final

from ..converters.captures.program_options import ProgramOptions
from ..converters.common.arguments import require_one_of, typed
from ..converters.common.policy import Policy
from ..converters.planning.opening import open as open_model
from ..converters.planning.transcoding import quantized_view
from ..errors import BadInputError
from ..parity.check.verdict import Verdict
from .adapters import AdapterRequest
from .adapters import convert_adapter as carry_adapter
from .converting import convert as convert_model
from .export import export_coreai, export_coreml, export_onnx
from .export_gguf import export_gguf
from .inspecting import inspect_spec
from .merging.merge import merge as merge_adapter
from .options import Options
from .parity import check as check_model
from .parity import record as record_golden
from .pipeline import Outcome
from .quantizing.request import request_of

Location = str | Path
OF_PACKAGES: Final = frozenset({"compute", "upper", "package"})
OF_PROGRAMS: Final = frozenset(field.name for field in fields(ProgramOptions))
PROGRAMS: Final[Mapping[str, Callable[..., Outcome]]] = {
    ".onnx": export_onnx,
    ".aimodel": export_coreai,
}


@typed
def convert(
    source: Location, target: Location, to: str, *, adapter: Location | None = None, **options: Any
) -> Outcome:
    """Convert a model to the names and layouts of another framework: ``weighbridge convert``.

    Every tensor is paired and every shape checked before a byte is written; the result is compared
    with SOURCE and published whole, or not at all.

    Args:
        source: a model: directory, ``DIRECTORY+ADAPTER``, name on the hub.
        target: directory to write.
        to: ``mlx`` or ``torch``; for the directory of an adapter see :func:`convert_adapter`.
        adapter: directory of a LoRA adapter to merge on the way.
        **options: fields of :class:`Options`, such as ``check="none"`` or ``force=True``.

    Returns:
        ``.status`` is the verdict, ``.target`` the directory: ``TARGET.rejected`` where it DIFFERS.

    Raises:
        BadInputError: SOURCE is no model, or in the framework TO already.
        MismatchError: the tensors do not fit the map, or the adapter the model; all are listed.
        TargetExistsError: TARGET is there.
        UnsupportedError: an architecture or a form that is refused by name.

    Example::

        done = weighbridge.convert("bert", "bert-mlx", to="mlx")
        assert done.status == "PASS"
        weighbridge.convert("bert-mlx", "bert-again", to="torch")
    """
    merged = Path(adapter) if adapter else None
    chosen = Options.of(options)
    return convert_model(str(source), Path(target), to, adapter=merged, options=chosen)


@typed
def convert_adapter(
    source: Location,
    target: Location,
    to: str,
    *,
    base: str,
    trained_on: str | None = None,
    destination: str | None = None,
    **options: Any,
) -> Outcome:
    """Convert an adapter to another dialect: ``weighbridge convert mlx-to-peft``, ``peft-to-mlx``.

    Args:
        source: directory of the adapter.
        target: directory to write.
        to: ``mlx`` or ``peft``.
        base: the model that the converted adapter is for, in either framework.
        trained_on: the quantized sibling of BASE that it was trained on.
        destination: the program whose limits it has to keep.
        **options: fields of :class:`Options`.

    Raises:
        MismatchError: the adapter is partial, or made for another model.
        UnsupportedError: a form that the other dialect has not.

    Example::

        done = weighbridge.convert_adapter("adapter", "adapter-mlx", to="mlx", base="bert")
        assert done.status == "PASS"
    """
    require_one_of(to, ("mlx", "peft"), "to")
    request = AdapterRequest(to, base, trained_on, destination)
    return carry_adapter(Path(source), Path(target), request, options=Options.of(options))


@typed
def merge(
    base: Location,
    adapter: Location,
    target: Location,
    *,
    promote: bool = False,
    trained_on: str | None = None,
    **options: Any,
) -> Outcome:
    """Merge ADAPTER into BASE, in BASE's framework: ``weighbridge merge``.

    How much of each update survives the rounding is measured; a merge that would lose one is refused.

    Args:
        base: a model in any framework, quantized by MLX or not.
        adapter: directory of an adapter in mlx-lm's or PEFT's dialect.
        target: directory to write.
        promote: keep layers of a quantized BASE at more bits where the update would be lost.
        trained_on: the quantized sibling of BASE that the adapter was trained on.
        **options: fields of :class:`Options`; ``original`` is the model that a quantized
            BASE was made from.

    Returns:
        What was done; ``.facts["merged"]`` has gain and cosine of every update.

    Raises:
        MismatchError: the adapter is partial, for another model, merged already, or would be rounded
            away.
        BadInputError: an option that this BASE has no use for.
        TargetExistsError: TARGET is there.

    Example::

        done = weighbridge.merge("bert", "adapter", "tuned")
        assert done.status == "PASS"
    """
    chosen: dict[str, Any] = {"promote": promote, "trained_on": trained_on}
    places = str(base), Path(adapter), Path(target)
    return merge_adapter(*places, **chosen, options=Options.of(options))


@typed
def quantize(source: Any, target: Location | None = None, **options: Any) -> Any:
    """Quantize a model as MLX does: ``weighbridge quantize``; or a live module, in its place.

    Args:
        source: a model in MLX's layout or in PyTorch's; or an ``mlx.nn.Module``.
        target: directory to write; none for a module.
        **options: ``bits`` (2, 3, 4, 5, 6, 8), ``group_size`` (32, 64, 128) and ``mode`` (``affine``,
            ``mxfp4``, ``mxfp8``, ``nvfp4``); ``rules``, a list of ``PATTERN=VALUE``; ``method``
            (``search``, or ``mlx`` for the bits of ``mx.quantize``); ``dtype`` of the scales; for
            directories ``calibrate`` and ``measure``, a ``Path`` to a text, and ``bits_per_weight``;
            fields of :class:`Options`.

    Returns:
        What was done; ``.facts["quantized"]`` has sizes and errors. The module itself, if that was given.

    Raises:
        BadInputError: rules that contradict each other, or are about nothing.
        UnsupportedError: SOURCE is quantized already, nothing in it can be, or there is no such scheme.
        TargetExistsError: TARGET is there.

    Example::

        done = weighbridge.quantize("bert", "bert-4bit", bits=4, check="none")
        assert done.facts["quantized"]["bytes"]["after"] < done.facts["quantized"]["bytes"]["before"]
    """
    from .quantizing.module import quantize_module
    from .quantizing.quantize import quantize as quantize_model

    named = signature(request_of).parameters.keys() & options.keys()
    request = request_of(**{name: options.pop(name) for name in named})
    if target is not None:
        return quantize_model(str(source), Path(target), request, options=Options.of(options))
    if isinstance(source, str | Path):
        raise BadInputError(f"name the directory to write: quantize({str(source)!r}, TARGET)")
    return quantize_module(source, request)


@typed
def check(
    reference: Location,
    candidate: Location,
    *,
    quick: bool = False,
    runtime: str | None = None,
    compute: str = "float32",
    inputs: Location | None = None,
    **options: Any,
) -> Verdict:
    """Compare CANDIDATE with REFERENCE, stage by stage: ``weighbridge parity check``.

    Args:
        reference: a model, or a golden (which needs neither the source nor its framework).
        candidate: a directory, ``DIRECTORY+ADAPTER``, a ``.mlpackage``, ``MODULE:FUNCTION``.
        quick: one small probe beside the text side and the weights.
        runtime: where CANDIDATE runs: ``torch``, ``mlx``, ``coreml`` or ``reference``.
        compute: precision of CANDIDATE's run: ``float32``, ``float16`` or ``bfloat16``.
        inputs: an ``.npz`` of inputs in place of our probes: one array per input of the signature.
        **options: ``map``, ``trust_code``, ``candidate_code`` of :class:`Options`.

    Returns:
        The verdict: ``.status``, ``.passed``, ``.stages`` with a detail each, ``.faults``.

    Raises:
        BadInputError: one of the two is not what it should be.
        UntrustedError: a model asks to run code that no option names.

    Example::

        verdict = weighbridge.check("bert-golden", "bert")
        assert verdict.passed, verdict.stages
    """
    chosen = Options(
        check="quick" if quick else "full", inputs=Path(inputs) if inputs else None, **options
    )
    require_one_of(compute, ("float32", "float16", "bfloat16"), "compute")
    how = Policy(compute=compute)
    return check_model(str(reference), str(candidate), runtime=runtime, policy=how, options=chosen)


@typed
def record(
    model: Location,
    target: Location,
    *,
    level: str = "verdict",
    inputs: Location | None = None,
    **options: Any,
) -> Outcome:
    """Record a golden of MODEL: inputs, float64 outputs, its own errors: ``parity record``.

    Args:
        model: what :func:`open` takes, run in PyTorch.
        target: directory to write.
        level: ``verdict``, or ``blame`` to record inner sites too.
        inputs: an ``.npz`` of inputs in place of our probes.
        **options: ``force``, ``map``, ``trust_code`` of :class:`Options`.

    Raises:
        BadInputError: MODEL gives NaN on every probe, or there is no such level.
        UnsupportedError: MODEL cannot be run in float64.

    Example::

        weighbridge.record("bert", "golden")
        assert weighbridge.check("golden", "bert").passed
    """
    chosen = Options(inputs=Path(inputs) if inputs else None, **options)
    return record_golden(str(model), Path(target), level=level, options=chosen)


@typed
def export(
    source: Location, target: Location, *, like: Location | None = None, **options: Any
) -> Outcome:
    """Export to ``TARGET.mlpackage`` (Core ML), ``.onnx``, ``.aimodel`` (Core AI) or ``.gguf``: ``weighbridge export``.

    Args:
        source: a model; its live adapter is merged in memory.
        target: its suffix says the format.
        like: the GGUF file of the base: metadata, tokenizer, names and types come from it.
        **options: of a program ``upper`` (largest size of each flexible dimension); of a package ``compute``
            (``mixed``, ``float16``, ``float32``); of an ONNX file or an asset the other fields of
            :class:`ProgramOptions`, such as ``precision``; of a GGUF file ``base``, the checkpoint that LIKE was made from,
            and ``kind`` (``F32``, ``F16``, ``BF16``, ``Q8_0``); fields of :class:`Options`.

    Raises:
        BadInputError: another suffix, or a GGUF file without LIKE.
        UnsupportedError: an operation, type or architecture that is refused by name.

    Example::

        done = weighbridge.export("bert", "Bert.mlpackage", upper={"sequence": 24})
        assert done.status.startswith("PASS")  # PASS-REFERENCE where there is no Core ML
    """
    target = Path(target)
    if target.suffix == ".mlpackage":
        own = {name: options.pop(name) for name in OF_PACKAGES & options.keys()}
        return export_coreml(str(source), target, **own, options=Options.of(options))
    suffix = ".onnx" if options.get("external_data") else target.suffix
    if job := PROGRAMS.get(suffix):
        ways = {name: options.pop(name) for name in OF_PROGRAMS & options.keys()}
        return job(str(source), target, ways=ProgramOptions(**ways), options=Options.of(options))
    if like is None:
        raise BadInputError(
            f"{target}: name it *.mlpackage, *.onnx or *.aimodel, or *.gguf with like=BASE.gguf"
        )
    named = {name: options.pop(name, None) for name in ("base", "kind")}
    chosen = Options.of(options)
    return export_gguf(str(source), target, like=Path(like), **named, options=chosen)


def capture(
    module: Any, *, inputs: Any = None, to: str = "mlx", dynamic: Any = None, **options: Any
) -> Any:
    """Record a MODULE of PyTorch or MLX once and return its computation in the other, differentiable.

    Args:
        module: a ``torch.nn.Module``, in the mode in which the capture begins; an ``mlx.nn.Module``; or
            a model's directory, whose torch class is captured, quantized weights as the codes that they
            are.
        inputs: arguments of ``forward`` or ``__call__``, by name or in order: tensors and arrays of any
            of the frameworks, constants, and for PyTorch's modules dictionaries, lists and tuples of
            these. Of a directory they are those of the model's signature, and sizes vary as it says.
        to: ``mlx``, or ``torch`` for an ``mlx.nn.Module``.
        dynamic: input (``states.0`` of a list) -> axis -> name of its dimension, for sizes that may
            vary; all others are fixed to those of the example. Equal names are equal sizes.
        options: ``modes``, ``compute``, ``passes`` (see ``capture_torch``); ``dtype`` of a directory.

    Returns:
        An ``mlx.nn.Module`` with the module's own parameter names and layouts;
        ``.torch_state_dict()`` is what ``module.load_state_dict`` takes. Or a ``torch.nn.Module`` with
        MLX's names and layouts; ``.mlx_weights()`` is what ``module.load_weights`` takes.

    Raises:
        BadInputError: a module without inputs, or a directory with some.
        UnsupportedError: it cannot be recorded, or operations that the other has none for: all listed.

    Example::

        model = weighbridge.capture(torch.nn.Linear(3, 2), inputs={"input": numpy.ones((1, 3), "f4")})
        assert set(model.torch_state_dict()) == {"weight", "bias"}
        again = weighbridge.capture(mlx.nn.Linear(3, 2), inputs=[mx.ones((1, 3))], to="torch")
        assert set(again.state_dict()) == {"weight", "bias"}
    """
    if isinstance(module, str | Path):
        return _captured_directory(module, inputs or dynamic, **options)
    from ..converters.captures import capture as capture_module

    if inputs is None:
        raise BadInputError("a module is captured with example `inputs`: its arguments")
    return capture_module(module, to=to, inputs=inputs, dynamic=dynamic, **options)


def _captured_directory(source: Location, given: Any, dtype: str = "float32") -> Any:
    from ..converters.runtimes.captured import captured_quantized

    if given:
        raise BadInputError(f"{source}: inputs and their sizes are those of the model's signature")
    return captured_quantized(quantized_view(open_model(str(source))), dtype)


@typed
def inspect(
    path: Location,
    *,
    map: str | None = None,  # noqa: A002
    trust_code: str | None = None,
) -> dict[str, Any]:
    """Say what PATH is: kind, tensors, signature, and the commands that can follow.

    Reads headers only and imports no framework.

    Args:
        path: a model, an adapter or a golden.
        map: name or path of a ``.wmap``.
        trust_code: ``module:function`` that builds the architecture.

    Raises:
        BadInputError: PATH is none of these, or damaged.

    Example::

        facts = weighbridge.inspect("bert")
        assert facts["is"] == "a PyTorch model"
    """
    return inspect_spec(str(path), trust_code=trust_code, map_name=map)
