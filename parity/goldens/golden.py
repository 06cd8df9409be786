"""A golden: inputs and float64 outputs of a source, with its own errors and its provenance.

Recorded where the source runs, it is checked anywhere, without the source's framework.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ...converters.checkpoints import save_tensors
from ...converters.common.system import writing
from ...converters.documents import RECORD, parse_json
from ...converters.documents.fields import read_fields
from ...converters.models import Model, Port, Signature
from ...converters.values import Array
from ...errors import BadInputError, MismatchError
from ..check.distances import Distance
from ..probes.probes import Probe, describe_probe
from ..text.side import TextSide
from ..weights.sketches.sketch import Sketch, from_record, to_record
from ..weights.weights import file_hashes, mostly
from .fields import FIELDS

SCHEMA: Final = 3
HASHED: Final = 2  # goldens of schema 1 carry no hashes
READABLE: Final = range(1, SCHEMA + 1)
TENSORS: Final = "golden.safetensors"
MANIFEST: Final = "golden.json"
UNHASHED: Final = (
    "whether the golden is as it was recorded: an older version wrote no hashes; record it again"
)
GOLDEN: Final = RECORD._replace(todo="record the golden again")
Rows = tuple[dict[str, Array], ...]  # one dictionary of arrays per probe
Errors = tuple[dict[str, Distance], ...]  # likewise


@dataclass(frozen=True)
class Golden:
    """What a source does, recorded.

    Attributes:
        spec: what the user pointed at.
        signature: of the source.
        probes: inputs.
        outputs: float64 outputs per probe, by how the weights are stored: ``stored``, as the source
            has them, or rounded through a 16-bit dtype, as a target may keep them.
        errors: the source's own errors per probe and output, by ``STORAGE/COMPUTE``.
        sketches: of every weight, by name.
        text: what the source does with text.
        sites: float64 outputs of inner modules for the first probes, by storage; empty unless the
            level is ``blame``.
        source_sites: the same sites, computed by the source in float32 from the reference's inputs.
        provenance: versions, hashes, seed, rejected probes.
        model: the source itself, while it is at hand; never saved.
        more: what finds those of ``errors`` again in several runs, where they are of one run and that
            says little; see ``several``. Never saved.
        built: the source as it ran, by dtype and storage, where it takes little memory. Never saved.
        notes: what reading it could not establish; never saved.
    """

    spec: str
    signature: Signature
    probes: tuple[Probe, ...]
    outputs: Mapping[str, Rows]
    errors: Mapping[str, Errors]
    sketches: Mapping[str, Sketch] = field(default_factory=dict)
    text: TextSide | None = None
    sites: Mapping[str, Rows] = field(default_factory=dict)
    source_sites: Mapping[str, Rows] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    model: Model | None = None
    more: Mapping[str, Callable[[], Errors]] = field(default_factory=dict)
    built: Mapping[tuple[str, str], Any] = field(default_factory=dict, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def level(self) -> str:
        """``blame`` where inner sites were recorded, else ``verdict``."""
        return "blame" if self.sites else "verdict"

    @property
    def framework(self) -> str | None:
        """Whose names and layouts the source's weights have; ``None`` where nobody recorded it."""
        recorded = self.provenance.get("framework")
        return self.model.framework if self.model else str(recorded) if recorded else None

    @property
    def storage(self) -> str:
        """The 16-bit dtype that most of the source's weights are kept in, else ``float32``."""
        return mostly(self.sketches.values())

    def in_several_runs(self, key: str) -> Golden:
        """Return this golden, its errors called KEY found in as many runs of the source as it takes."""
        more = dict(self.more)
        find = more.pop(key, None)
        return replace(self, errors={**self.errors, key: find()}, more=more) if find else self

    def save(self, folder: Path) -> None:
        """Write ``golden.safetensors`` and ``golden.json`` into FOLDER."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors, same = once(_tensors(self))
        save_tensors(folder / TENSORS, tensors)
        with writing(folder / MANIFEST):
            manifest = {**_manifest(self), "same": same}
            text = json.dumps({**manifest, "hashes": hashes(folder, manifest)}, indent=1) + "\n"
            (folder / MANIFEST).write_text(text, encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Golden:
        """Read what :meth:`save` wrote.

        Raises:
            BadInputError: FOLDER holds no golden of this schema, or a damaged one.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            manifest = read_fields(folder / MANIFEST, FIELDS, GOLDEN)
            if manifest["schema"] not in READABLE:
                raise BadInputError(
                    f"{folder}: golden of schema {manifest['schema']}, this version reads"
                    f" up to {SCHEMA}; record it again"
                )
            require_unaltered(folder, manifest)
            tensors = load_file(folder / TENSORS)
            tensors |= {name: tensors[it] for name, it in manifest.get("same", {}).items()}
            golden = _golden(manifest, tensors)
        except (OSError, AttributeError, KeyError, TypeError, ValueError, SafetensorError) as error:
            raise BadInputError(f"{folder}: not a readable golden ({error!r})") from error
        if missing := _missing(golden):
            raise MismatchError(f"{folder} is not a whole golden; record it again", missing)
        return golden if manifest["schema"] >= HASHED else replace(golden, notes=(UNHASHED,))


def hashes(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return the xxh3 of both files of the golden in FOLDER, its MANIFEST without hashes of its own."""
    import xxhash

    content = {name: value for name, value in manifest.items() if name != "hashes"}
    text = json.dumps(parse_json(json.dumps(content), folder, GOLDEN), sort_keys=True)
    own = xxhash.xxh3_128_hexdigest(text.encode())
    return {MANIFEST: f"xxh3:{own}", **file_hashes((folder / TENSORS,), folder)}


def require_unaltered(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse the golden in FOLDER if a file of it is not what was recorded.

    Raises:
        BadInputError: one is not, or a golden that had hashes has lost them.
    """
    if manifest["schema"] >= HASHED:
        recorded, found = manifest.get("hashes") or {}, hashes(folder, manifest)
        wrong = [name for name, value in found.items() if recorded.get(name) != value]
        if wrong:
            raise BadInputError(
                f"{folder}: {' and '.join(wrong)} was altered after the golden was recorded, or is"
                " damaged; record the golden again"
            )


def is_golden(path: Path) -> bool:
    """Say whether PATH is a golden's folder.

    >>> is_golden(Path("."))
    False
    """
    return not missing_in(path)


def missing_in(path: Path) -> list[str]:
    """Return which of a golden's files the folder PATH has not.

    >>> missing_in(Path("."))
    ['golden.json', 'golden.safetensors']
    """
    return [name for name in (MANIFEST, TENSORS) if not (path / name).is_file()]


def _flatten(kind: str, groups: Mapping[str, Rows], probes: Sequence[Probe]) -> dict[str, Array]:
    return {
        f"{kind}|{group}|{probe.name}|{name}": array
        for group, rows in groups.items()
        for probe, row in zip(probes, rows, strict=False)  # sites: of the first probes only
        for name, array in row.items()
    }


def _tensors(golden: Golden) -> dict[str, Array]:
    import numpy as np

    inputs = {"": tuple(probe.inputs for probe in golden.probes)}
    parts = {
        "inputs": inputs,
        "outputs": golden.outputs,
        "sites": golden.sites,
        "source_sites": golden.source_sites,
    }
    tensors: dict[str, Array] = {}
    for kind, groups in parts.items():
        tensors |= _flatten(kind, groups, golden.probes)
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def once(tensors: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, str]]:
    """Return TENSORS without those that are the bytes of an earlier one, and whose those are.

    What a module returns is what its last part returned and what the next receives.

    >>> import numpy as np
    >>> once({"a": np.ones(2), "b": np.ones(2), "c": np.ones((1, 2))})[1]
    {'b': 'a'}
    """
    import xxhash

    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for name, array in tensors.items():
        key = (array.dtype.name, array.shape, xxhash.xxh3_128_digest(array.tobytes()))
        first.setdefault(key, name)
        same[name] = first[key]
    kept = {name: array for name, array in tensors.items() if same[name] == name}
    return kept, {name: it for name, it in same.items() if it != name}


def _manifest(golden: Golden) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "spec": golden.spec,
        "level": golden.level,
        "signature": asdict(golden.signature),
        "probes": [describe_probe(probe) for probe in golden.probes],
        "errors": {key: list(rows) for key, rows in golden.errors.items()},
        "text": golden.text.to_json() if golden.text else None,
        "provenance": dict(golden.provenance),
        "sketches": {name: to_record(it) for name, it in golden.sketches.items()},
    }


def _unflatten(
    kind: str, tensors: Mapping[str, Array], names: Sequence[str]
) -> dict[str, tuple[dict[str, Array], ...]]:
    groups: dict[str, dict[str, dict[str, Array]]] = {}
    for key, array in tensors.items():
        found, group, probe, name = key.split("|", 3)
        if found == kind:
            groups.setdefault(group, {}).setdefault(probe, {})[name] = array
    return {
        group: tuple(rows[name] for name in names if name in rows) for group, rows in groups.items()
    }


def _missing(golden: Golden) -> list[str]:
    """Return which outputs and errors of a recording GOLDEN lacks: some of each for every probe."""
    wanted = [set(row) for row in golden.outputs.get("stored", ())]
    groups: dict[str, Sequence[Mapping[str, Any]]] = {
        **{f"outputs {storage}": rows for storage, rows in golden.outputs.items()},
        **{f"errors {key}": rows for key, rows in golden.errors.items()},
    }
    needed = [f"errors {storage}/float32" for storage in golden.outputs]
    absent = [name for name in ("outputs stored", *needed) if name not in groups]
    short = [
        name for name, rows in groups.items() if [set(row) for row in rows] != wanted or not wanted
    ]
    return [
        *(f"{name}: missing" for name in absent),
        *(f"{name}: not of every probe" for name in short),
    ]


def _port(content: Mapping[str, Any]) -> Port:
    lists = {"shape": tuple(content["shape"]), "upper": tuple(map(tuple, content["upper"]))}
    return Port(**{**content, **lists})


def _ports(contents: Iterable[Mapping[str, Any]]) -> tuple[Port, ...]:
    return tuple(map(_port, contents))


def _golden(manifest: Mapping[str, Any], tensors: Mapping[str, Array]) -> Golden:
    names = [probe["name"] for probe in manifest["probes"]]
    chosen = [tuple(probe.get("rows", ())) for probe in manifest["probes"]]
    inputs = _unflatten("inputs", tensors, names)[""]
    signature, text = manifest["signature"], manifest["text"]
    return Golden(
        spec=manifest["spec"],
        signature=Signature(_ports(signature["inputs"]), _ports(signature["outputs"])),
        probes=tuple(Probe(*it) for it in zip(names, inputs, chosen, strict=True)),
        outputs=_unflatten("outputs", tensors, names),
        errors={
            key: tuple({name: Distance(*pair) for name, pair in row.items()} for row in rows)
            for key, rows in manifest["errors"].items()
        },
        sketches={name: from_record(it) for name, it in manifest["sketches"].items()},
        text=TextSide.from_json(text) if text else None,
        sites=_unflatten("sites", tensors, names),
        source_sites=_unflatten("source_sites", tensors, names),
        provenance=manifest["provenance"],
    )
