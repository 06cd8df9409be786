"""What a map alone cannot bring back: kept in a sidecar, or taken from the original checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

from ...errors import BadInputError, MismatchError, WeighbridgeError
from ..checkpoints import Checkpoint, Header, Writer, open_checkpoint
from ..checkpoints.derived import Source
from ..checkpoints.formats.safetensors import SafetensorsFile
from ..common.arrays import same_bits
from ..common.repositories import local
from ..maps import Plan, Step, WeightMap, apply
from ..maps.notation.rules import POLICIES
from ..maps.programs.computed import Computed
from ..maps.programs.preimages import source_header
from ..maps.sources.choose import map_from, origin_of
from ..models import Model
from ..sidefiles import SIDECAR
from ..values import Dense
from .dense import DENSE, Unpacked, can_be_dense, is_dense
from .fitting import require_made, require_read
from .manifest import manifest_of, recorded_headers

SMALL: Final = 1 << 20  # bytes of a tensor that a sidecar keeps unasked


class Restored(NamedTuple):
    """What is taken as it was before the way to MLX, by its name in PyTorch.

    Attributes:
        taken: where each tensor comes from.
        trained: tensors that are kept but no longer what the weights come from: training wins.
        left_out: tensors that only the original has, and that the user goes without.
        dropped: tensors that MLX's class leaves out.
        aliases: second names of a tensor, and the name of that tensor.
        notes: what a person should know of it.
        unpacked: the weights that were packed blocks in the origin, if those do not lead to all of them
            any more; then nothing else is reported, and the model can only go back dense.
    """

    taken: Mapping[str, Source]
    trained: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    aliases: Mapping[str, str] = {}
    notes: tuple[str, ...] = ()
    unpacked: Unpacked | None = None


def sidecar_tensors(plan: Plan, sidecar: str) -> list[str]:
    """Return the source tensors that the way back could use, and that a SIDECAR so named keeps.

    A rule whose way back is not exact keeps all its tensors or none: with ``small`` only if each of
    them has at most 1 MiB, with ``all`` always. The same holds for everything that is dropped, and
    for everything that the model makes itself (masks, rotary tables).
    """
    if sidecar == "none":
        return []
    groups: dict[int, list[str]] = {}
    for step in plan.steps:
        if not step.exact:
            groups.setdefault(id(step.rule), []).extend(step.source_names)
    dropped = [[item.name for item in plan.dropped if item.policy == policy] for policy in POLICIES]
    return [
        name
        for names in (*groups.values(), *dropped)
        if sidecar == "all" or all(plan.headers[name].nbytes <= SMALL for name in names)
        for name in names
    ]


def fingerprints(plan: Plan, source: Checkpoint) -> dict[str, str]:
    """Return the xxh3 of what PLAN drops of SOURCE, so that nothing else is taken for it later."""
    names = [item.name for item in plan.dropped if item.policy in POLICIES]
    return {name: fingerprint(source, name) for name in names}


def fingerprint(source: Checkpoint, name: str) -> str:
    """Return the xxh3 of tensor NAME of SOURCE."""
    digest = xxhash.xxh3_64()
    for piece in source.stream(name):
        digest.update(piece)
    return f"xxh3:{digest.hexdigest()}"


def write_sidecar(names: Iterable[str], source: Checkpoint, folder: Path) -> None:
    """Write the tensors NAMES of SOURCE into the sidecar of FOLDER, if there are any."""
    layout = {name: source.headers[name] for name in dict.fromkeys(names)}
    if not layout:
        return
    writer = Writer(folder, layout, max_shard_size=1 << 62, stem=SIDECAR)
    for name in layout:
        if name not in writer.finished:
            writer.write(name, source.stream(name))
    writer.close()
    # Loaders of MLX take every *.safetensors of a directory for weights, so it gets another name.
    (folder / f"{SIDECAR}.safetensors").rename(folder / SIDECAR)


def open_original(spec: str) -> Checkpoint:
    """Open the original checkpoint: a path, or the name of a repository on the hub.

    Raises:
        BadInputError: there is neither.
    """
    try:
        return open_checkpoint(Path(local(spec)))
    except BadInputError as error:
        raise BadInputError(f"--original {error}") from None


def source_headers(model: Model, original: str | None) -> Mapping[str, Header] | None:
    """Return the headers of the checkpoint that MODEL, in MLX's layout, was made from.

    A directory of another tool says nothing of it; then they are those of the ORIGINAL, or what
    transformers would write for its configuration.
    """
    recorded = recorded_headers(model)
    if recorded or model.family is None or model.family.map:
        return recorded
    if original and original != "none":
        return open_original(original).headers
    return origin_of(model)


def map_for(model: Model, usual: WeightMap, there: Mapping[str, Header]) -> WeightMap:
    """Return the map from THERE to MODEL: the USUAL one, or where that does not fit, a learned one.

    A directory of another tool says nothing of the layout that it was made from: its usual map is
    that of a dense checkpoint, and the original may be packed.
    """
    if model.map_text or recorded_headers(model) or is_dense(there):
        return usual
    try:
        return map_from(model, there)
    except WeighbridgeError:
        return usual  # what differs is reported where it is bound


def keepers(model: Model, original: str | None) -> list[Checkpoint]:
    """Return the checkpoints that may hold what MODEL lacks, the nearest first."""
    own = model.folder / SIDECAR if model.folder else None
    found: list[Checkpoint] = [SafetensorsFile(own)] if own and own.is_file() else []
    return [*found, *([open_original(original)] if original and original != "none" else [])]


def restore(
    model: Model, forward: WeightMap, there: Mapping[str, Header], original: str | None
) -> Restored:
    """Find what of the checkpoint THERE, before the way to MLX, its MLX weights do not tell.

    A tensor whose value was changed on the way is taken as it was only where it still leads to the
    weights that MODEL has now; otherwise the weights were trained since, and they win.

    Args:
        model: in MLX's layout.
        forward: the map from THERE to MODEL.
        there: headers of the checkpoint that MODEL comes from, or should come from.
        original: its directory or hub name; ``none`` to do without what only it has.

    Raises:
        MismatchError: something is nowhere, or MODEL is not what it was made; all of it is listed.
    """
    read, origin = require_read(model), origin_problem(model, original)
    try:
        plan = forward.bind(there, config=model.config, sizes=model.sizes)
    except MismatchError as error:
        raise MismatchError(f"{model.spec} does not fit {origin}", error.problems) from error
    if not read:
        require_made(model, plan.layout, origin)
    search = Search(model, plan, keepers(model, original))
    search.hashes = manifest_of(model).get("dropped_hashes") or {}
    search.dropped(required=original != "none")
    search.changed()
    if search.changed_blocks and can_be_dense(model, there):
        return Restored({}, (), unpacked=search.unpacked())
    if search.missing:
        raise MismatchError(
            f"{model.spec} cannot go back to PyTorch alone; give the checkpoint it comes from:"
            " --original DIR (or --original none to leave these out)",
            sorted(search.missing),
        )
    aliases = {item.name: item.of for item in plan.ties}
    notes = (*lost_notes(model, search.sources), *search.notes())
    return search.restored(aliases, notes)


def lost_notes(model: Model, sources: Iterable[Checkpoint]) -> Iterator[str]:
    """Yield what to report of tensors that were kept for MODEL and are nowhere now."""
    held = {name for source in sources for name in source.headers}
    lost = [name for name in manifest_of(model).get("sidecar") or () if name not in held]
    if lost:
        yield (
            f"{len(lost)} tensors were kept in {SIDECAR} and are not there any more, {lost[0]} among"
            " them; what cannot be told without them is rounded (--original has them)"
        )


def origin_problem(model: Model, original: str | None) -> str:
    """Say in words what tells which checkpoint MODEL, in MLX's layout, was made from."""
    if recorded_headers(model) is not None:
        return "what weighbridge.json says it was made from"
    return f"--original {original}" if original else "what transformers writes for its config.json"


class Search:
    """Looks for what PLAN, the way to MLX, dropped or changed, in the checkpoints SOURCES."""

    def __init__(self, model: Model, plan: Plan, sources: list[Checkpoint]) -> None:
        self.weights, self.plan, self.sources = model.checkpoint, plan, sources
        self.updated = frozenset(model.adapter.updates if model.adapter else ())
        self.taken: dict[str, Source] = {}
        self.trained: list[str] = []
        self.missing: list[str] = []
        self.left_out: list[str] = []
        self.changed_blocks: list[str] = []
        self.lost = False
        self.hashes: Mapping[str, str] = {}
        self.unknown: list[str] = []

    def restored(self, aliases: Mapping[str, str], notes: tuple[str, ...]) -> Restored:
        """Return what was found, with second names of tensors and NOTES of it."""
        dropped = tuple(item.name for item in self.plan.dropped)
        trained, left_out = tuple(self.trained), tuple(self.left_out)
        return Restored(self.taken, trained, left_out, dropped, aliases, notes)

    def locate(self, name: str) -> Source | None:
        """Return which source has tensor NAME, in the shape it had, and not packed unless it was."""
        wanted = self.plan.headers[name]
        for source in self.sources:
            found = source.headers.get(name)
            packed = found and (found.dtype in DENSE) != (wanted.dtype in DENSE)
            if found and found.shape == wanted.shape and not packed:
                return source, name
        return None

    def dropped(self, *, required: bool) -> None:
        """Take what has no counterpart in MLX; note it as missing if it is REQUIRED.

        What the model makes itself, such as masks, is never missed.
        """
        for name, policy, _ in self.plan.dropped:
            found = self.locate(name) if policy in POLICIES else None
            if found and self.is_right(name, found):
                self.taken[name] = found
            elif found and policy == "original" and required:
                where = found[0].path.name
                self.missing.append(f"{name} of {where} is not what the model was made from")
            elif policy != "original":
                continue
            elif required:
                self.missing.append(f"{name} {self.plan.headers[name]} is in the original alone")
            else:
                self.left_out.append(name)

    def is_right(self, name: str, found: Source) -> bool:
        """Say whether tensor NAME as FOUND is the one that was dropped, where that was recorded."""
        if name not in self.hashes:
            self.unknown.append(name)
            return True
        return fingerprint(*found) == self.hashes[name]

    def notes(self) -> Iterator[str]:
        """Yield what to report of what was taken."""
        if self.unknown:
            yield (
                f"{len(self.unknown)} tensors that MLX's class drops are taken as they are in the"
                " original; nothing recorded says that they belong to this model"
            )

    def changed(self) -> None:
        """Take what was changed in value, where it still leads to the weights."""
        for step in self.plan.steps:
            if step.exact:
                continue
            located = {name: self.locate(name) for name in step.source_names}
            found = {name: source for name, source in located.items() if source}
            if len(found) == len(located) and self.leads_to(step, found):
                self.taken |= found
            elif isinstance(step.rule, Computed) and not self.can_be_undone(step):
                makes = ", ".join(step.target_names)
                self.changed_blocks += step.target_names
                self.lost |= len(found) < len(located)
                self.missing += [f"{name} does not follow from {makes}" for name in located]
            else:
                self.trained += found

    def can_be_undone(self, step: Step) -> bool:
        """Say whether STEP, which computes, has a way back that leads to tensors of the same shape."""
        if not isinstance(step.rule, Computed) or not step.rule.undoable:
            return False
        [source], [target] = step.source_names, step.target_names
        back = source_header(step.rule.program, self.plan.layout[target])
        return back is not None and back.shape == self.plan.headers[source].shape

    def unpacked(self) -> Unpacked:
        """Return what to report of weights that a program made, if not all can be undone."""
        computed = (step for step in self.plan.steps if isinstance(step.rule, Computed))
        names = tuple(name for step in computed for name in step.target_names)
        dropped = tuple(item.name for item in self.plan.dropped if item.policy == "original")
        return Unpacked(names, len(self.changed_blocks), self.lost, dropped)

    def leads_to(self, step: Step, found: Mapping[str, Source]) -> bool:
        """Say whether STEP makes the very bytes of the weights out of the tensors FOUND."""
        if self.updated.intersection(step.target_names) or any(
            source.headers[name] != self.plan.headers[name] for source, name in found.values()
        ):
            return False
        alone = replace(self.plan, steps=(step,), dropped=())
        made = apply(
            alone, {key: Dense(source.read(name)) for key, (source, name) in found.items()}
        )
        return all(
            isinstance(value, Dense) and same_bits(value.array, self.weights.read(name))
            for name, value in made.items()
        )
