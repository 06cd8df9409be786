"""A package written to disk, alike in every run, and what it says of itself."""

from __future__ import annotations

import json
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from ..captures.constants import UNREAD, unread
from ..captures.described import UNIFORM, uniform
from ..captures.mlprogram.arithmetic import tensors_of
from ..captures.mlprogram.names import ABOUT, UNITS_KEY
from ..captures.mlprogram.package import MANIFEST, Package, census, functions, read_package
from ..captures.mlprogram.program import load_bodies
from ..captures.mlprogram.toolkit import coremltools, quiet
from ..captures.mlprogram.variables import beside, scalars, variables, weights
from ..common.hints import counted
from ..documents import read_object
from ..values import Array
from .form import MAIN, PROBABILITIES, Form
from .made import Origins, constants_described
from .manifest import sites
from .naming import programs_checked_once, sums_kept
from .options import UNITS, PackageOptions
from .precision import Selection
from .vision import scores_of


def write_metadata(
    package: Package, metadata: Mapping[str, str], options: PackageOptions = PackageOptions()
) -> None:
    """Add METADATA, and what OPTIONS say of the package, to its specification, in place."""
    file = package.weights.parent / "model.mlmodel"
    described = package.spec.description.metadata
    described.userDefined.update(metadata)
    if options.units:
        described.userDefined[UNITS_KEY] = UNITS[options.units]
    for name, text in options.about.items():
        setattr(described, ABOUT[name], text)
    file.write_bytes(package.spec.SerializeToString(deterministic=True))


def files(folder: Path) -> Iterator[Path]:
    """Yield the files below FOLDER."""
    return (path for path in folder.rglob("*") if path.is_file())


def save(model: Any, package: Path) -> None:
    """Write coremltools' MODEL as PACKAGE, alike in every run."""
    # Without its program no debug handles of another runtime are written, which loops have none of.
    with patch.object(model, "_mil_program", None):
        model.save(str(package))
    name_items(package)


def replace_package(package: Path, other: Path) -> None:
    """Put the package OTHER in the place of PACKAGE."""
    shutil.rmtree(package)
    shutil.move(other, package)


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
            f"{counted(sum(self.census.values()), 'operation')}, {counted(len(self.matched), 'weight')} recognised,"
            f" {len(self.unmatched)} made by the converter, {len(self.absent)} of the source absent"
        )


class Made(NamedTuple):
    """A function of a package.

    Attributes:
        model: coremltools' model of it alone.
        graph: of the module, as it was recorded.
        selection: what computes in float16.
    """

    model: Any
    graph: Any
    selection: Selection


def save_functions(models: Mapping[str, Any], package: Path) -> None:
    """Write coremltools' MODELS, functions by name, as PACKAGE; what several have in common lies there once."""
    if len(models) == 1:
        save(next(iter(models.values())), package)
        return
    within = tempfile.TemporaryDirectory(dir=package.parent, prefix=".functions-")
    with within as place, quiet(), programs_checked_once(), sums_kept():
        whole = coremltools.utils.MultiFunctionDescriptor()
        for name, model in models.items():
            part = Path(place) / f"{name}.mlpackage"
            save(model, part)
            whole.add_function(str(part), MAIN, name)
        whole.default_function_name = next(iter(models))
        coremltools.utils.save_multifunction(whole, str(package))
    name_items(package)


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
    made: Mapping[str, Made],
    metadata: dict[str, str],
) -> ExportReport:
    """Write the manifest into the package and report on it."""
    package = read_package(staged)
    function, *_ = functions(package)
    graph, selection = made[function].graph, made[function].selection
    bodies = load_bodies(package)
    body = bodies[function]
    rows = rows_of(bodies, module, made)
    found, rules = rows["weights"], rows["made"]
    signature = form.options.sized(form.signature, form.limits)
    outputs = [form.name(port.name) for port in signature.outputs]
    outputs += [PROBABILITIES] if form.options.labels else []
    keys = {key for entry in found.values() for key in (entry["key"], *entry.get("also", ()))}
    keys |= {key for rule in rules.values() for key in tensors_of(rule)}
    state, unneeded = module.state_dict(), unread(graph)
    manifest = {
        "version": 2,
        "compute": selection.compute,
        "signature": asdict(signature),
        **written_of(form),
        **rows,
        UNREAD: unneeded,
        UNIFORM: uniform(state, found, (*keys, *unneeded)),
        "sites": sites(graph, variables(body), outputs),
    }
    write_metadata(package, {**metadata, MANIFEST: json.dumps(manifest)}, form.options)
    return ExportReport(
        path=staged,
        census=dict(census(package, function)),
        matched={name: entry["key"] for name, entry in found.items()},
        unmatched=tuple(sorted(rules.keys() & weights(body).keys())),
        absent=tuple(sorted(state.keys() - keys)),
        nbytes=sum(file.stat().st_size for file in files(staged)),
    )


def rows_of(
    bodies: Mapping[str, Any], module: torch.nn.Module, made: Mapping[str, Made]
) -> dict[str, Any]:
    """Return what a manifest says of the constants in BODIES, of the second function only of its own ones."""
    rows: dict[str, Any] = {}
    own: dict[str, Array] = {}
    for function, part in made.items():
        body, origins = bodies[function], Origins(part.graph, module)
        found = constants_described(body, module, origins, part.selection.exact)
        theirs = {**weights(body), **scalars(body)}
        if rows:
            alone = beside(own, theirs, function)
            for kind in ("weights", "made", "exact"):
                named = {f"{function}.{name}": it for name, it in found[kind].items()}
                rows[kind] |= {name: it for name, it in named.items() if name in alone}
            rows["origins"] |= found["origins"]
        else:
            rows, own = found, theirs
    return rows
