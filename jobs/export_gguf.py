"""Export to GGUF: a checkpoint's tensors in the place of those of its base's file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..converters.checkpoints import Checkpoint, require_space
from ..converters.common.hints import command, unused
from ..converters.common.repositories import recorded
from ..converters.models import Model
from ..converters.planning.memory import require_memory
from ..errors import BadInputError, MismatchError, UnsupportedError
from .converting import require_apart
from .options import PublishOptions
from .pipeline import Outcome, Written, publish

if TYPE_CHECKING:
    from ..converters.gguf import Plan, Readback


def export_gguf(
    source: str,
    target: Path,
    *,
    like: Path,
    base: str | None = None,
    kind: str | None = None,
    options: PublishOptions = PublishOptions(),
) -> Outcome:
    """Export SOURCE to a GGUF file at TARGET for llama.cpp.

    Metadata, tokenizer, names and types are those of LIKE. What llama.cpp's converter did to the
    tensors is found out by value: by BASE where given, else by SOURCE itself, which is close to it.
    The file is read again and compared, every field and every number, before it is published.

    Args:
        source: a directory as transformers saves it, such as ``weighbridge merge`` writes.
        target: must end in ``.gguf``.
        like: the GGUF file of the base model.
        base: the checkpoint that LIKE was made from.
        kind: ``F32``, ``F16``, ``BF16`` or ``Q8_0`` for all matrices; as in LIKE without.
        options: see :class:`PublishOptions`.

    Raises:
        BadInputError: a file or directory is not what it has to be.
        UnsupportedError: LIKE holds types or an architecture that is not written.
        MismatchError: the tensors do not fit, or the values prove no rule; all are listed.
    """
    if target.suffix != ".gguf":
        raise BadInputError(f"{target}: a GGUF file is named *.gguf")
    place = options.begin(target, "gguf", source, like, base)
    model = options.open(source)
    proof = saved_by_transformers(options.open(base)) if base else None
    require_memory("export to GGUF", model)
    plan = planned(model, like, proof, kind)
    if options.dry_run:
        return Outcome(None, plan.lines())
    require_other(model, like, target)
    return publish(place, "", partial(written, plan, model, target, options))


def planned(model: Model, like: Path, base: Checkpoint | None, kind: str | None) -> Plan:
    """Decide what becomes of MODEL's tensors in a file like LIKE."""
    from ..converters.gguf import GgufFile, plan_export

    checkpoint = saved_by_transformers(model)
    return plan_export(checkpoint, GgufFile(like), where=model.spec, base=base, kind=kind)


def written(plan: Plan, model: Model, target: Path, options: PublishOptions, path: Path) -> Written:
    """Write the file of PLAN at PATH, to be published as TARGET, and read it again."""
    from ..converters.gguf import write

    total = sum(made.stored.nbytes for made in plan.made.values())
    require_space(path, total)
    write(path, plan, model.checkpoint, options.report("writing the tensors", total))
    seen = checked(path, plan, model.checkpoint)
    return Written(facts_of(model, plan, seen, target), (*plan.lines(), str(seen)))


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


def facts_of(model: Model, plan: Plan, seen: Readback, target: Path) -> dict[str, Any]:
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
        "read_back": {"exact": seen.exact, "rounded": seen.rounded, "worst": seen.worst},
        "metadata_changed": plan.changed_fields,
        "notes": [*plan.lines(), str(seen), "llama.cpp itself did not run it"],
        "next": command("-m", target, "-p", "Hello", program="llama-cli"),
    }
