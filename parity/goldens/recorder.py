"""Record a golden: run the source in float64, then as it runs itself."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache as remembered
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ...converters.common.steps import step
from ...converters.common.users_code import running
from ...converters.configs.to_mlx import known
from ...converters.models import PROGRAMS, Model, Signature
from ...converters.values import Array
from ...errors import BadInputError, UsersCodeError
from ..check.distances import select_tokens
from ..check.verdict import plain
from ..configuration.effects import of_unread
from ..configuration.lengths import recorded, to_cross
from ..configuration.reads import Reads, read_keys, recorded_reads
from ..configuration.settings import with_agreed_ids
from ..configuration.unlisted import unlisted_lengths
from ..probes.probes import Probe, describe_probe, make_probes, masks_of, stand_ins
from ..reference.routing import chosen_experts, has_experts, never_chosen
from ..text.side import read_text_side
from ..weights.sketches.at_hand import sketches_at_hand
from ..weights.sketches.sketch import sketches
from ..weights.weights import base_weights, has_wider, kept_weights, model_hashes, storage_dtype
from .golden import SCHEMA, Errors, Golden, Rows, is_golden
from .rounding import WIDE
from .silent import gives_nan

if TYPE_CHECKING:
    from ..reference.several import Once

RECORDING: Final = 4  # how sites and the source's errors are found; an older one is recorded again
LEVELS: Final = ("verdict", "blame")
LIBRARIES: Final = ("torch", "transformers", "numpy", "tokenizers")
PROGRAM: Final = "float16+constants"  # how a float16 ML program keeps weights and constants
BLAMED_PROBES: Final = (
    2  # probes whose sites are recorded; sites are many times larger than outputs
)
Masks = Mapping[str, Array | None]


def text_folder(model: Model) -> Path | None:
    """Return the directory in which MODEL's tokenizer would lie."""
    return model.folder if model.framework not in PROGRAMS else None


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that a recording depends on."""
    versions = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def has_nan(outputs: dict[str, Array], masks: Masks) -> bool:
    """Say whether an output is NaN where it counts."""
    return any(
        bool(np.isnan(select_tokens(np.asarray(array, np.float64), masks.get(name))).any())
        for name, array in outputs.items()
    )


@dataclass
class Recorder:
    """Runs a source and keeps what came out; each part is computed when first asked for.

    Attributes:
        model: the source.
        chosen: a user's own probes.
        reads: the keys of the configuration that the source's code reads, once it has run.
        unreached: the experts that no probe chose, in words, once it has run.
        refused: why it does not run in a dtype of 16 bits, by that.
        outlives: whether the golden outlives its source: then all of its weights are sketched, and what
            no output needs is found out.
        slopes: how far outputs move when one layer's is off; see ``sensitivity``, of integers ``decisions``.
        once: whether a large source runs but once until its errors are asked for again; see ``several``.
        more: what finds errors in several runs, by ``STORAGE/COMPUTE``.
        built: the source as it ran, by dtype and storage.
    """

    model: Model
    chosen: Sequence[Probe] | None = None
    reads: Reads = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    outlives: bool = True
    unreached: list[str] = field(default_factory=list)
    slopes: dict[str, Any] = field(default_factory=dict)
    once: bool = False
    more: dict[str, Callable[[], Errors]] = field(default_factory=dict)
    built: dict[tuple[str, str], Any] = field(default_factory=dict)

    def module(self, dtype: str, storage: str) -> Any:
        """Return the source as it runs in DTYPE, weights as a target keeps them in STORAGE.

        One whose weights stay on disk takes little memory, and is built once.
        """
        from ..reference.reference import stored_as

        found = self.built.get((dtype, storage)) or stored_as(self.model, dtype, storage)
        if self.model.path is not None:
            self.built[dtype, storage] = found
        return found

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the source."""
        return self.model.signature

    @cached_property
    def asked(self) -> list[Probe]:
        """The probes that are asked for."""
        if self.chosen is not None:
            return list(self.chosen)
        past = to_cross(self.model, self.signature, quick=False)
        reserved = stand_ins(self.model.config)
        folder = text_folder(self.model)
        return make_probes(self.signature, tokenizer=folder, past=past, reserved=reserved)

    @cached_property
    def _stored(self) -> list[dict[str, Array]]:
        with recorded_reads() as self.reads:
            return self._float64("stored", self.asked)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Indices of the probes on which the reference gives no NaN.

        Raises:
            BadInputError: it does on every one.
        """
        kept = tuple(
            index
            for index, (probe, row) in enumerate(zip(self.asked, self._stored, strict=True))
            if not has_nan(row, masks_of(self.signature, probe))
        )
        if not kept:
            raise gives_nan(self.model)
        return kept

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        """The probes that are kept."""
        return tuple(self.asked[index] for index in self.kept)

    @cached_property
    def masks(self) -> list[Masks]:
        """The attention mask of each probe, by output."""
        return [masks_of(self.signature, probe) for probe in self.probes]

    def _float64(self, storage: str, probes: Sequence[Probe]) -> list[dict[str, Array]]:
        from ..reference.float64 import constants_of
        from ..reference.reference import float64_outputs

        step("checking: float64 reference")
        module = self.module("float64", storage)
        with constants_of(storage), running(self.model.spec), chosen_experts(module) as chosen:
            found = float64_outputs(module, self.signature, probes)
        self.unreached = never_chosen(module, chosen)
        return found

    def outputs(self, storage: str) -> Rows:
        """Return float64 outputs with the weights as a target stores them."""
        if storage == "stored":
            return tuple(self._stored[index] for index in self.kept)
        return tuple(self._float64(storage, self.probes))

    def structure_errors(self, storage: str, wanted: Rows) -> Errors:
        """Return the source's own float32 errors."""
        from ..reference.decisions import decided
        from ..reference.float64 import constants_of
        from ..reference.sensitivity import outputs_and_slopes
        from ..reference.several import in_one_run

        step("checking: the source's own float32")
        module = self.module("float32", storage)
        with constants_of(storage), running(self.model.spec):
            found, slopes = outputs_and_slopes(module, self.signature, self.probes)
            about = module, self.signature, self.probes, wanted
            self.slopes = self.slopes or slopes or {"decisions": decided(*about)}
            once = in_one_run(module, self.signature, self.probes, (found, wanted))
            return self._own_errors(module, f"{storage}/float32", wanted, once)

    def precision_errors(self, dtype: str, wanted: Rows) -> Errors:
        """Return the source's own errors where it runs in DTYPE; see ``several``."""
        from ..reference.reference import module_outputs, narrow_module
        from ..reference.several import in_one_run

        step(f"checking: the source's own {dtype}")
        module = narrow_module(self.model, dtype, self.probes)
        with running(f"{self.model.spec} in {dtype}"):
            found = module_outputs(module, self.signature, self.probes, dtype)
            about, routed = (self.signature, self.probes), has_experts(module)
            once = in_one_run(module, *about, (found, wanted), routed=routed)
            return self._own_errors(module, f"stored/{dtype}", wanted, once)

    def narrow_errors(self, dtypes: Collection[str], wanted: Rows) -> Iterator[tuple[str, Errors]]:
        """Yield what ``precision_errors`` returns for each of DTYPES in which the source runs here."""
        for dtype in dtypes:
            try:
                yield f"stored/{dtype}", self.precision_errors(dtype, wanted)
            except UsersCodeError as error:  # such as an operation that PyTorch lacks in float16
                self.refused[dtype] = str(error)

    def _own_errors(self, module: Any, key: str, wanted: Rows, once: Once) -> Errors:
        """Return how far MODULE errs: in ONCE, or in several runs where these tell more and are cheap."""
        from ..reference.several import in_several_runs

        if not any(once.more):
            return once.errors
        if self.once and once.dear:
            self.more[key] = remembered(partial(self._in_several_runs, key, wanted, once))
            return once.errors
        dtype = key.rpartition("/")[2]
        return in_several_runs(module, dtype, self.signature, self.probes, wanted, once)

    def _in_several_runs(self, key: str, wanted: Rows, once: Once) -> Errors:
        from ..reference.float64 import constants_of
        from ..reference.reference import narrow_module
        from ..reference.several import in_several_runs

        storage, _, dtype = key.rpartition("/")
        step(f"checking: the source's own {dtype}, in several runs")
        wide = dtype == "float32"
        module = (
            self.module(dtype, storage) if wide else narrow_module(self.model, dtype, self.probes)
        )
        with constants_of(storage), running(self.model.spec):
            return in_several_runs(module, dtype, self.signature, self.probes, wanted, once)

    def sites(self, storage: str, probes: Sequence[Probe]) -> tuple[Rows, Rows]:
        """Return the reference's sites, and the source's float32 ones from the same inputs."""
        from ..reference.float64 import constants_of
        from ..reference.reference import float64_sites, forced_sites

        wide, narrow = self.module("float64", storage), self.module("float32", storage)
        with constants_of(storage):
            reference = float64_sites(wide, self.signature, probes)
            source = forced_sites(narrow, self.signature, probes, reference)
        return tuple(reference), tuple(source)

    def provenance(self) -> dict[str, Any]:
        """Return versions, hashes, and what was left out."""
        weights = kept_weights(self.model)
        rejected = sorted({p.name for p in self.asked} - {p.name for p in self.probes})
        return {
            "framework": self.model.framework,
            "model_type": self.model.config.get("model_type"),
            "libraries": library_versions(),
            "platform": f"{platform.system()} {platform.machine()}",
            "hashes": model_hashes(self.model),
            "storage": storage_dtype(weights),
            "wider": has_wider(weights),
            "adapter": str(self.model.adapter.path) if self.model.adapter else None,
            "rejected_probes": rejected,
            "unreached": self.unreached,
            "refused": self.refused,
            "slopes": self.slopes,
            **({"unused": self.unused()} if self.outlives else {}),
            **self.configuration(),
        }

    def configuration(self) -> dict[str, Any]:
        """Return the configuration as transformers reads it, and which keys the source's code reads."""
        if self.model.factory is not None or not self.model.config:
            return {}
        config = with_agreed_ids(self.model)
        found, about = known(config), (self.model, self.signature, self.probes)
        reads = [] if found is None else read_keys(found, self.reads)
        unlisted = [] if found is None else unlisted_lengths(*about, found, self.reads)
        return {
            "config": dict(config),
            "config_reads": reads,
            "lengths": recorded(self.model) + [list(it) for it in unlisted],
            **({"effects": plain(of_unread(*about, reads))} if self.outlives else {}),
        }

    def unused(self) -> list[str]:
        """Return the weights, by the source's own names, that no output needs."""
        from ..reference.unused import unneeded

        own = set(base_weights(self.model).headers)
        return sorted(own & unneeded(replace(self.model, adapter=None), self.probes[0]))

    def key(self, level: str, precisions: tuple[str, ...]) -> str:
        """Return a name that changes when the recording would."""
        digest = hashlib.sha256()
        facts = [SCHEMA, RECORDING, level, precisions, library_versions(), model_hashes(self.model)]
        facts += [describe_probe(probe) for probe in self.asked]
        digest.update(json.dumps(facts).encode())
        for probe in self.asked:
            for array in probe.inputs.values():
                digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:32]

    def record(
        self,
        level: str,
        precisions: tuple[str, ...],
        cache: Path | None,
        storages: tuple[str, ...] | None = None,
    ) -> Golden:
        """Return the golden, from CACHE where the same one was recorded before.

        PRECISIONS are what the source runs in; STORAGES what it is rounded to: by default the same, and what
        a merge makes of it.
        """
        storages = (*precisions, *self.merged()) if storages is None else storages
        if cache is None or self.model.path is None:
            return self._record(level, precisions, storages)
        folder = cache / self.key(level, precisions)
        if is_golden(folder):
            return replace(Golden.load(folder), model=self.model)
        golden = self._record(level, precisions, storages)
        golden.save(folder)
        return golden

    def merged(self) -> list[str]:
        """Return what a merge of the adapter makes of weights in several dtypes; nothing where they have one."""
        if self.model.adapter is None:
            return []
        weights = kept_weights(self.model)
        return [f"{storage_dtype(weights)}{WIDE}"] if has_wider(weights) else []

    def _record(self, level: str, precisions: tuple[str, ...], storages: tuple[str, ...]) -> Golden:
        programs = [PROGRAM for it in storages if it == "float16"]
        outputs = {it: self.outputs(it) for it in ("stored", *storages, *programs)}
        errors = {
            f"{storage}/float32": self.structure_errors(storage, rows)
            for storage, rows in outputs.items()
        }
        errors |= dict(self.narrow_errors(precisions, outputs["stored"]))
        blamed = self.probes[:BLAMED_PROBES] if level == "blame" else ()
        pairs = {storage: self.sites(storage, blamed) for storage in outputs if blamed}
        return Golden(
            spec=self.model.spec,
            signature=self.signature,
            probes=self.probes,
            outputs=outputs,
            errors=errors,
            sketches=(sketches if self.outlives else sketches_at_hand)(base_weights(self.model)),
            text=read_text_side(text_folder(self.model)),
            sites={storage: reference for storage, (reference, _) in pairs.items()},
            source_sites={storage: source for storage, (_, source) in pairs.items()},
            provenance=self.provenance(),
            model=self.model,
            more=self.more,
            built=self.built,
        )


def unused_of(golden: Golden) -> Collection[str]:
    """Return the weights of GOLDEN's source that no output needs; found out now if it is at hand."""
    known = golden.provenance.get("unused")
    if known is not None or golden.model is None:
        return known or ()
    return Recorder(golden.model, golden.probes).unused()


def record(
    model: Model,
    *,
    level: str = "verdict",
    probes: Sequence[Probe] | None = None,
    precisions: Collection[str] = ("float16", "bfloat16"),
    cache: Path | None = None,
) -> Golden:
    """Record MODEL, run in PyTorch.

    Args:
        model: the source.
        level: ``verdict``, or ``blame`` to record inner sites too.
        probes: inputs; by default they are made from the signature's roles.
        precisions: 16-bit dtypes in which a target may store or compute; each is recorded.
        cache: folder of recordings; one with the same weights, probes and versions is reused.

    Raises:
        BadInputError: no such level, or the source gives NaN on every probe.
        UnsupportedError: the source cannot be run in float64.
    """
    if level not in LEVELS:
        raise BadInputError(f"there is no level {level!r}; choose from {', '.join(LEVELS)}")
    return Recorder(model, probes).record(level, tuple(precisions), cache)
