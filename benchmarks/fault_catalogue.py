"""Plant faults in tiny models of every kind, in every framework, and count what a check makes of them.

    python benchmarks/fault_catalogue.py [MODEL ...] [--rows FILE] [--seeds 3] [--first 0]

Faults of weights and settings are planted in a checkpoint that is then copied or converted; faults of
computation in classes of mlx-lm, and in torch modules that run in torch or captured in MLX. Each seed
has weights of its own; dtypes take turns, so that every fault meets all of them in three seeds, and the
frameworks take turns with faults of weights. A quick check is asked, and where it misses, the full one. What is counted: faults that were caught,
crashes, and whether the place and the kind were named, by the fingerprints, the configuration or blame.

Rows are appended to FILE as they come, and those that it has already are not measured again; the figures of
all of them lie beside it. Rows of seeds that nobody looked at before (``--first``) are held out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: threads would wait for one another

from safetensors.torch import load_file, save_file

from weighbridge.converters.common.arrays import to_torch
from weighbridge.converters.models import Model
from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.converters.runtimes.torch import build_module, call
from weighbridge.errors import UnsupportedError, WeighbridgeError
from weighbridge.jobs import Options, convert
from weighbridge.jobs.checking import compare
from weighbridge.parity.check.check import check
from weighbridge.parity.check.verdict import Verdict
from weighbridge.parity.goldens.golden import Golden
from weighbridge.parity.goldens.recorder import record
from weighbridge.tests.support.planted import classes, modules, weights
from weighbridge.tests.support.planted.sources import FAMILIES, source

RESULTS: Final = Path(__file__).with_name("results") / "fault_catalogue.json"
DTYPES: Final = ("float32", "bfloat16", "float16")
TARGETS: Final = ("torch", "mlx")
CONTROL: Final = "no fault"


@dataclass(frozen=True)
class Planted:
    """A fault that was planted.

    Attributes:
        group: ``weights``, ``settings``, ``class``, ``module`` or ``control``.
        name: what was done.
        sites: patterns of the sites at fault; each must be named, and nothing else.
        kind: pattern of what names the kind.
        own: the same sites by the names of the candidate, where these are others.
    """

    group: str
    name: str
    sites: tuple[str, ...] = ()
    kind: str = "^$"
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ground:
    """A model into which faults are planted, in a folder of its own."""

    model: str
    dtype: str
    seed: int
    folder: Path

    @cached_property
    def source(self) -> Path:
        """Return the directory of the model as it should be."""
        return source(self.model, self.folder / "source", seed=self.seed, dtype=self.dtype)

    @cached_property
    def golden(self) -> Golden:
        """Return what it does."""
        precisions = () if self.dtype == "float32" else (self.dtype,)
        return record(open_model(self.source), precisions=precisions)

    def candidate(self, to: str, checkpoint: Path | None = None) -> Path:
        """Return a copy of CHECKPOINT, or of the source, in the framework TO."""
        place = Path(tempfile.mkdtemp(dir=self.folder)) / "candidate"
        if to == "torch":
            return Path(shutil.copytree(checkpoint or self.source, place))
        convert(str(checkpoint or self.source), place, to, options=Options(check="none"))
        return place

    def altered(self, fault: weights.Fault) -> tuple[Path, tuple[str, ...]] | None:
        """Return the checkpoint with FAULT in it and the weights that changed."""
        before = load_file(self.source / "model.safetensors")
        tensors = dict(before)
        if not fault.plant(tensors):
            return None
        changed = sorted(it for it, tensor in tensors.items() if not tensor.equal(before[it]))
        place = Path(tempfile.mkdtemp(dir=self.folder)) / "altered"
        shutil.copytree(self.source, place)
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        return place, tuple(changed)


Case = tuple[Planted, "Verdict | Exception"]


def judged(ground: Ground, candidate: Path) -> Verdict | Exception:
    """Return what a check says: a quick one, and where that finds nothing, a full one."""
    try:
        verdict = compare(ground.golden, open_model(candidate), quick=True)
        if verdict.status != "DIFFERS":
            verdict = compare(ground.golden, open_model(candidate))
    except Exception as error:
        return error
    return verdict


def site_of(weight: str, to: str) -> str:
    """Return the pattern of the module that holds WEIGHT, or of the weight; mlx-lm stacks experts."""
    holder = re.escape(weight.rpartition(".")[0] or weight)
    stacked = r"(experts\.\d+|switch_mlp|block_sparse_moe\.switch_mlp)"
    return re.sub(r"experts\\\.\d+", lambda _: stacked, holder) if to == "mlx" else holder


def of_weights(ground: Ground, to: str, skip: set[str]) -> Iterator[Case]:
    """Yield faults of weights, and no fault."""
    right = ground.candidate(to)
    if CONTROL not in skip:
        yield Planted("control", CONTROL), judged(ground, right)
    for number, (name, fault) in enumerate(weights.FAULTS.items()):
        turn = TARGETS[(number + ground.seed) % len(TARGETS)] == to
        made = ground.altered(fault) if turn and name not in skip else None
        if made:
            sites = tuple(dict.fromkeys(site_of(it, to) for it in made[1]))
            about = Planted("weights", name, sites, fault.kind)
            try:
                candidate = ground.candidate(to, made[0])
            except Exception as error:
                yield about, error
                continue
            yield replace(about, own=changed_in(candidate, right)), judged(ground, candidate)


def changed_in(candidate: Path, right: Path) -> tuple[str, ...]:
    """Return patterns of what holds the weights of CANDIDATE that are others than in RIGHT, by its own names."""
    found, wanted = (load_file(it / "model.safetensors") for it in (candidate, right))
    names = [it for it, array in found.items() if it in wanted and not array.equal(wanted[it])]
    return tuple(dict.fromkeys(re.escape(it.rpartition(".")[0] or it) for it in names))


def of_settings(ground: Ground, to: str, skip: set[str]) -> Iterator[Case]:
    """Yield faults of the candidate's configuration."""
    for name, change in weights.SETTINGS.items():
        if name in skip or (to == "mlx" and "activation" in name):
            continue
        candidate = ground.candidate(to)
        config = json.loads((candidate / "config.json").read_text())
        key = change(config)
        if key and (to == "torch" or is_read(key, candidate)):
            (candidate / "config.json").write_text(json.dumps(config))
            yield Planted("settings", name, (key,), key), judged(ground, candidate)


def is_read(key: str, candidate: Path) -> bool:
    """Say whether the class that runs CANDIDATE in MLX knows the setting KEY; a capture knows all."""
    library = open_model(candidate).library
    native = library is not None and library.library == "mlx-lm"
    return not native or key in classes.text_of(classes.module_of(candidate))


def of_classes(ground: Ground, to: str, skip: set[str]) -> Iterator[Case]:
    """Yield faults of the class of mlx-lm that runs the candidate."""
    candidate = ground.candidate(to)
    library = open_model(candidate).library
    if to != "mlx" or library is None or library.library != "mlx-lm":
        return
    for name, fault in classes.FAULTS.items():
        if name in skip:
            continue
        with classes.planted(fault, candidate) as calls:
            found = judged(ground, candidate)
        if calls:
            yield Planted("class", name, (fault.site,), fault.kind), found


def of_modules(ground: Ground, to: str, skip: set[str]) -> Iterator[Case]:
    """Yield faults of torch modules; to MLX they are captured."""
    model = open_model(ground.source)
    inputs = {name: to_torch(it) for name, it in ground.golden.probes[0].inputs.items()}
    names = tuple(port.name for port in model.signature.outputs)
    for name, fault in modules.FAULTS.items():
        if name in skip:
            continue
        changed = build_module(model).float()
        path = fault.plant(changed)
        if path and modules.reached(changed, path, lambda it: call(it, inputs, names)):
            found = _live(model, changed, to)
            if not isinstance(
                found, UnsupportedError
            ):  # cannot be captured, with a fault or without
                yield Planted("module", name, (re.escape(path),), fault.kind), found


def _live(model: Model, changed: Any, to: str) -> Verdict | Exception:
    sides = [
        Model(name, "torch", None, {}, factory=module, declared=model.signature)
        for name, module in (("source", build_module(model).float()), ("changed", changed))
    ]
    try:
        return check(*sides, runtime=to, quick=True)
    except Exception as error:
        return error


GROUPS: Final = (of_weights, of_settings, of_classes, of_modules)


def named_by(verdict: Verdict) -> dict[str, dict[str, str]]:
    """Return which places are named, by whom, and what is said of each."""
    prints, settings = verdict.stage("fingerprints"), verdict.stage("configuration")
    problems = list(prints.figures.get("problems", ())) if prints else []
    failed = settings is not None and settings.status == "fail"
    blamed: dict[str, str] = {it.site: f"{it.kind}: {it.evidence}" for it in verdict.faults}
    return {
        "fingerprints": {it.split(":")[0].split(" ")[0]: it for it in problems},
        "configuration": {"configuration": settings.detail} if settings and failed else {},
        "blame": blamed,
    }


def right_place(planted: Planted, names: Iterable[str]) -> bool:
    """Say whether NAMES are all the places of PLANTED and nothing else."""
    found = list(names)
    return any(is_all(found, sites) for sites in (planted.sites, planted.own) if sites)


def is_all(found: list[str], sites: tuple[str, ...]) -> bool:
    """Say whether FOUND are places inside SITES, some in each."""
    inside = [rf"{it}(@\d+)?(\.[A-Za-z_]+)?$" for it in sites]
    each = all(any(re.search(it, name) for name in found) for it in inside)
    return bool(found) and each and all(any(re.search(it, name) for it in inside) for name in found)


def scored(planted: Planted, verdict: Verdict) -> dict[str, Any]:
    """Return who names the place of PLANTED exactly, who its kind, and what was named."""
    named = named_by(verdict)
    if planted.group == "settings":
        told = named["configuration"].get("configuration", "")
        right = bool(re.search(planted.kind, told))
        return {"site": right, "kind": right, "named": told[:160] or list(named["blame"])[:3]}
    exact = [who for who, names in named.items() if right_place(planted, names)]
    # Blame gives its word for the kind; the fingerprints describe what they see.
    words = [text for who in exact for text in named[who].values()]
    kind = any(re.search(planted.kind, text) for text in words)
    lines = [f"{name}: {text}"[:160] for names in named.values() for name, text in names.items()]
    return {"site": bool(exact), "kind": kind, "named": lines[:3]}


def row(planted: Planted, found: Verdict | Exception) -> dict[str, Any]:
    """Return the row of a fault."""
    about: dict[str, Any] = {"group": planted.group, "fault": planted.name}
    if isinstance(found, WeighbridgeError):
        return {**about, "status": "refused", "named": [str(found)[:200]]}
    if isinstance(found, Exception):
        return {**about, "status": "crash", "named": [f"{type(found).__name__}: {found}"[:200]]}
    failed = [stage.name for stage in found.stages if stage.status == "fail"]
    about |= {"status": found.status, "by": failed}
    if found.status == "DIFFERS":
        return about | {"level": found.provenance["level"]} | scored(planted, found)
    open_ones = [it for it in found.stages if it.status != "pass" and it.name != "text"]
    floors = [it for it in found.stages if it.name in ("structure", "precision", "fingerprints")]
    return about | {"floor": [f"{it.name}: {it.detail[:200]}" for it in [*floors, *open_ones]]}


def measured(ground: Ground, done: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of GROUND that are not DONE."""
    for to in TARGETS:
        for group in GROUPS:
            about = {"model": ground.model, "to": to, "dtype": ground.dtype, "seed": ground.seed}
            if group is of_modules and ground.dtype != "float32":
                continue
            skip = {it.rpartition("|")[2] for it in done if it.startswith(key(about))}
            start = time.process_time()
            for planted, found in group(ground, to, skip):
                seconds, start = time.process_time() - start, time.process_time()
                yield {**about, **row(planted, found), "seconds": round(seconds, 2)}


def key(found: dict[str, Any]) -> str:
    """Return what tells one row from the others."""
    about = "|".join(str(found[it]) for it in ("model", "to", "dtype", "seed"))
    return f"{about}|{found.get('fault', '')}"


def rows_in(file: Path) -> list[dict[str, Any]]:
    """Return the rows in FILE, the last of those measured twice."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return list({key(it): it for it in map(json.loads, lines)}.values())


def share(rows: list[dict[str, Any]], part: str) -> str:
    """Return of how many ROWS the PART is exact."""
    return f"{sum(bool(it.get(part)) for it in rows)} of {len(rows)}"


def interval(rows: list[dict[str, Any]], part: str) -> str:
    """Return between which shares the PART is exact, as if ROWS were drawn: Wilson's 95 % interval.

    >>> interval([{"site": True}] * 95 + [{}] * 5, "site")
    '88.8 to 97.8 %'
    """
    count, z = max(len(rows), 1), 1.96
    found = sum(bool(it.get(part)) for it in rows) / count
    middle = (found + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(found * (1 - found) / count + (z / count / 2) ** 2)
    return f"{100 * (middle - half):.1f} to {100 * (middle + half):.1f} %"


def score(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of ROWS."""
    faults = [it for it in rows if it["group"] != "control"]
    controls = [it for it in rows if it["group"] == "control"]
    caught = [it for it in faults if it["status"] in ("DIFFERS", "refused")]
    seen = [it for it in faults if it["status"] == "DIFFERS"]
    native = [it for it in seen if it["group"] == "class"]
    return {
        "faults": len(faults),
        "distinct faults of a model": len({(it["model"], it["to"], it["fault"]) for it in faults}),
        "caught": len(caught),
        "of these refused by name": len(caught) - len(seen),
        "of these by the full check only": sum(it["level"] == "full" for it in seen),
        "crashed": sum(it["status"] == "crash" for it in rows),
        "missed": len(faults) - len(caught) - sum(it["status"] == "crash" for it in faults),
        "place exact": share(seen, "site"),
        "kind exact": share(seen, "kind"),
        "place exact, 95 % interval": interval(seen, "site"),
        "kind exact, 95 % interval": interval(seen, "kind"),
        "place exact, classes of mlx-lm": share(native, "site"),
        "kind exact, classes of mlx-lm": share(native, "kind"),
        "controls": dict(Counter(it["status"] for it in controls)),
    }


def by_part(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the faults of each model, framework, dtype and group."""
    found: dict[str, Any] = {}
    for part in ("model", "to", "dtype", "group"):
        for value in dict.fromkeys(it[part] for it in rows):
            mine = [it for it in rows if it[part] == value and it["group"] != "control"]
            differ = [it for it in mine if it["status"] in ("DIFFERS", "refused")]
            found[value] = {
                "caught": f"{len(differ)} of {len(mine)}",
                "place": share(differ, "site"),
                "kind": share(differ, "kind"),
            }
    return found


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is kept: figures, every fault that was missed or crashed, controls that differ."""
    right = ("DIFFERS", "refused")
    wrong = [it for it in rows if it["group"] != "control" and it["status"] not in right]
    differ = [it for it in rows if it["group"] == "control" and it["status"] == "DIFFERS"]
    unnamed = Counter(
        f"{it['group']}: {it['fault']}"
        for it in rows
        if it["status"] == "DIFFERS" and not it.get("kind")
    )
    return {
        "score": score(rows),
        "parts": by_part(rows),
        "missed or crashed": wrong,
        "controls that differ": differ,
        "place or kind not exact": dict(unnamed.most_common()),
    }


def main() -> None:
    """Measure what FILE lacks, print each row, keep the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument("--rows", type=Path, default=RESULTS.with_suffix(".jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    preload_blas()
    models = options.models or [it for group in FAMILIES.values() for it in group]
    done = {key(it) for it in rows_in(options.rows)}
    for seed in range(options.first, options.first + options.seeds):
        for number, model in enumerate(models):
            dtype = DTYPES[(seed + number) % len(DTYPES)]
            measure(options.rows, (model, dtype, seed), done)
    figures = summary(rows_in(options.rows))
    print(json.dumps({it: figures[it] for it in ("score", "place or kind not exact")}, indent=1))
    if not options.models:
        result = options.rows.with_suffix(".json")
        result.write_text(json.dumps(figures, indent=1) + "\n")


def measure(rows: Path, about: tuple[str, str, int], done: set[str]) -> None:
    """Append the rows of one model to ROWS."""
    with tempfile.TemporaryDirectory() as folder:
        for found in measured(Ground(*about, Path(folder)), done):
            with rows.open("a") as file:
                file.write(json.dumps(found) + "\n")
            marks = "".join("+" if found.get(it) else "-" for it in ("site", "kind"))
            print(f"{key(found):64} {found['status']:10} {marks} {found['seconds']}", flush=True)


if __name__ == "__main__":
    main()
