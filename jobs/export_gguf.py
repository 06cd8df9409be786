"""Export to GGUF: a checkpoint's tensors in the place of those of its base's file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .. import __version__
from ..converters.checkpoints import Checkpoint, require_space
from ..converters.common.arguments import typed
from ..converters.common.hints import command, unused
from ..converters.common.repositories import recorded
from ..converters.maps.binding.quantized import quantized_plan
from ..converters.maps.execution.view import Mapped
from ..converters.models import Model
from ..converters.planning.conversion import conversion_of
from ..converters.planning.job import plan_job
from ..converters.planning.memory import require_memory
from ..converters.planning.transcoding import Parts, is_quantized, quantized_view, section_of
from ..converters.quantization import Dequantized
from ..converters.quantization.recipe import KEY
from ..converters.runtimes.pretrained import torch_config
from ..converters.runtimes.programs.llama import LLAMA_CPP
from ..errors import BadInputError, MismatchError, UnsupportedError
from .converting import require_apart
from .importing.compared_gguf import compare_gguf
from .options import Options
from .pipeline import Checked, Facts, Outcome, Written, publish

if TYPE_CHECKING:
    from ..converters.gguf import GgufFile, Plan, Readback

UNREAD: Final = "the file was not read back: UNVERIFIED"
UNRUN: Final = "llama.cpp itself did not run it"


@typed
def export_gguf(
    source: str,
    target: Path,
    *,
    like: Path,
    base: str | None = None,
    kind: str | None = None,
    options: Options = Options(),
) -> Outcome:
    """Export SOURCE to a GGUF file at TARGET, which ends in ``.gguf``.

    Metadata, tokenizer, names and types are those of LIKE. What llama.cpp's converter did to the
    tensors is found out by value: by BASE where given, else by SOURCE itself, which is close to it.
    A quantized SOURCE keeps its codes and scales.

    Args:
        source: a directory as transformers saves it, or a quantized one.
        target: its file.
        like: the base's file.
        base: the checkpoint that LIKE was made from.
        kind: of all matrices, see ``plan_export``; without, as in LIKE or what keeps every value.
        options: unless ``check`` is ``none`` the file is read again, and run where ``llama_cpp`` is.

    Raises:
        WeighbridgeError: files or types do not fit, or values prove no rule; all that is wrong is listed.
    """
    if target.suffix != ".gguf":
        raise BadInputError(f"{target}: a GGUF file is named *.gguf")
    place = options.begin(target, "gguf", source, like, base)
    model = exported(source, options)
    proof = saved_by_transformers(options.open(base)) if base else None
    require_memory("export to GGUF", model)
    tensors = tensors_of(model, file := opened(like, model), options.original)
    plan = planned(tensors, file, proof, kind, model.spec, options)
    if options.dry_run:
        return place.planned(plan.lines())
    require_other(model, like, target)
    put = partial(written, plan, model, tensors, target, options)
    check = options.checks and LLAMA_CPP.installed and partial(ran, model, options)
    return publish(place, "", put, check or None)


def opened(like: Path, model: Model) -> GgufFile:
    """Open the file LIKE, by whose metadata the same is computed as by the configuration of MODEL."""
    from ..converters.gguf import GgufFile
    from ..converters.gguf.metadata.settings import require_same

    file = GgufFile(like)
    require_same(file, torch_config(model), model.path or Path(model.spec))
    return file


def planned(
    tensors: Checkpoint,
    like: GgufFile,
    base: Checkpoint | None,
    kind: str | None,
    where: str,
    options: Options,
) -> Plan:
    """Decide what becomes of the TENSORS of WHERE in a file like LIKE."""
    from ..converters.gguf import plan_export

    lossy = options.allow_lossy
    return plan_export(tensors, like, where=where, base=base, kind=kind, lossy=lossy)


def written(
    plan: Plan, model: Model, tensors: Checkpoint, target: Path, options: Options, path: Path
) -> Written:
    """Write the file of PLAN at PATH, to be published as TARGET, and read it again."""
    from ..converters.gguf import write
    from ..converters.gguf.metadata.settings import unwindowed

    total = sum(made.stored.nbytes for made in plan.made.values())
    require_space(path, total)
    write(path, plan, tensors, options.report("writing the tensors", total))
    seen = checked(path, plan, tensors) if options.checks else None
    window = unwindowed(plan.like, torch_config(model))
    lines = (*plan.lines(), *([window] if window else []), *(seen.lines() if seen else (UNREAD,)))
    return Written(facts_of(model, plan, seen, target, lines), lines)


def ran(model: Model, options: Options, path: Path, facts: Facts) -> Checked:
    """Run the file at PATH in llama.cpp, and hold it against MODEL, which it was made from."""
    verdict = compare_gguf(model, path, quick=options.quick, inputs=options.inputs)
    return Checked(verdict, {"notes": [it for it in facts["notes"] if it != UNRUN]})


def tensors_of(model: Model, like: GgufFile, original: str | None) -> Checkpoint:
    """Return the tensors of MODEL by transformers' names; codes stay behind quantized ones.

    Many classes of MLX have these names, and then LIKE tells.

    Raises:
        WeighbridgeError: it has no such names, or its codes cannot be brought there.
    """
    if model.adapter or not is_quantized(model):
        return saved_by_transformers(model)
    from ..converters.gguf import has_names_of

    same = not model.map_text and has_names_of(model.checkpoint, like)
    return model.checkpoint if same else codes_by_torch(model, original)


def codes_by_torch(model: Model, original: str | None = None) -> Dequantized:
    """Return the tensors of a quantized MODEL, seen dense, by PyTorch's names, codes behind them.

    Args:
        model: of either framework.
        original: as for a conversion to PyTorch; nothing is taken from there without.

    Raises:
        MismatchError: a weight has another layout in PyTorch, to which its codes cannot be brought.
    """
    tensors = model.tensors
    assert isinstance(tensors, Dequantized)  # noqa: S101  (`is_quantized` was asked)
    if model.framework == "torch":
        return tensors
    job = plan_job(conversion_of(model, "torch", original or "none"))
    stored = Parts(job.checkpoint, tensors)
    moved = quantized_plan(job.plan, stored.headers, tensors.schemes)
    return Dequantized(Mapped(moved.plan, stored), {KEY: section_of(moved.schemes)})


def exported(source: str, options: Options) -> Model:
    """Open SOURCE; one without transformers' names is refused before other files are read.

    Raises:
        UnsupportedError: it has not these names, and no codes lead there, or an adapter is live on it.
    """
    model = quantized_view(options.open(source))
    if model.adapter or not is_quantized(model):
        saved_by_transformers(model)
    return model


def saved_by_transformers(model: Model) -> Checkpoint:
    """Return the tensors of MODEL, which have transformers' names.

    Raises:
        UnsupportedError: they have not, or an adapter is live on them; says what to do first.
    """
    if model.adapter:
        base = str(model.path)
        raise UnsupportedError(
            f"{model.spec}: merge the adapter first:"
            f" {command('merge', base, str(model.adapter.path), unused(base, '-merged'))}"
        )
    if model.framework == "mlx":
        raise UnsupportedError(
            f"{model.spec} has the names of MLX; export what this makes of it:"
            f" {command('convert', 'mlx-to-torch', model.spec, unused(model.spec, '-torch'))}"
        )
    if model.framework != "torch":
        raise UnsupportedError(f"{model.spec} is no checkpoint of transformers")
    return model.checkpoint


def require_other(model: Model, like: Path, target: Path) -> None:
    """Refuse a TARGET that is MODEL, or the file LIKE itself: both are read until the end."""
    require_apart(model, target)
    if target.exists() and target.resolve() == like.resolve():
        raise BadInputError(f"{target} is the file to be like; choose another target")


def checked(path: Path, plan: Plan, checkpoint: Checkpoint) -> Readback:
    """Read the file at PATH again and compare it with PLAN.

    Raises:
        MismatchError: the disk has not kept it, or it was written wrongly.
    """
    from ..converters.gguf import read_back

    seen = read_back(path, plan, checkpoint)
    if seen.problems:
        raise MismatchError("the file read back is not what was to be written", seen.problems)
    return seen


def facts_of(
    model: Model, plan: Plan, seen: Readback | None, target: Path, lines: tuple[str, ...]
) -> dict[str, Any]:
    """Return what there is to know of the file."""
    return {
        "weighbridge": __version__,
        "framework": "gguf",
        "source": {**recorded(model.spec), "framework": model.framework},
        "like": plan.like.path.name,
        "rules": {name: made.rule.name for name, made in plan.made.items() if made.rule},
        "types": {name: made.stored.type for name, made in plan.made.items()},
        "proof": {
            "reference": plan.reference,
            "equal": plan.proof.exact,
            "within rounding": plan.proof.rounded,
            "near": plan.proof.near,
        },
        "read_back": seen and {"exact": seen.exact, "rounded": seen.rounded, "worst": seen.worst},
        "metadata_changed": plan.changed_fields,
        "notes": [*lines, UNRUN],
        "next": command("-m", target, "-p", "Hello", program="llama-cli"),
    }
