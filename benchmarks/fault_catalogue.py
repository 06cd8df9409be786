"""Inject faults into a real encoder and a small convolutional network, and see who notices.

Faults of weights and configuration are written as model directories, faults of code are made in
modules; all of them go through ``check``. Prints a table: which stage caught the fault, whether its
place was named exactly, and what was said of it. Controls are correct implementations: they must
pass, and their largest local error is the null from which ``blame.LOCAL_FLOOR`` leaves room. It is
measured with the BLAS that MLX finds: PyTorch's by default, its wheel's with ``--wheel-blas``.

    python benchmarks/fault_catalogue.py [--wheel-blas] [NAME ...]
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faults import CONTROLS, FAULTS, SCRATCH, Case

from weighbridge.converters.policy import Policy
from weighbridge.converters.runtimes import Runner, load
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.converters.runtimes.torch import TorchRunner
from weighbridge.parity import check as check_module
from weighbridge.parity.blame import LOCAL_FLOOR, forced, local_errors
from weighbridge.parity.check import check
from weighbridge.parity.floors import Floor
from weighbridge.parity.probes import make_probes
from weighbridge.parity.recorder import Recorder
from weighbridge.parity.verdict import Verdict

RESULTS = Path(__file__).with_name("results") / "fault_catalogue.json"
PROVISIONAL = Floor(k=2.0, k_token=3.0, c=0.125, null_99_9=float("nan"), cases=0)


def prefixes(places: tuple[str, ...], named: str) -> bool:
    """Return whether NAMED lies at one of PLACES."""
    return any(named == place or named.startswith(f"{place}.") for place in places)


def summarise(case: Case, verdict: Verdict) -> dict[str, Any]:
    """Return the row of a verdict."""
    stages = {stage.name: stage for stage in verdict.stages}
    prints, structure = stages["fingerprints"], stages.get("structure")
    problems = list(prints.figures.get("problems", ()))
    rows = structure.figures.get("rows", ()) if structure else ()
    named = [fault.site for fault in verdict.faults] or [
        it.split(":")[0].split(" ")[0] for it in problems
    ]
    covered = all(any(prefixes((place,), it) for it in named) for place in case.places)
    return {
        "status": verdict.status,
        "caught by": [name for name, stage in stages.items() if stage.status == "fail"],
        "ratio": max((row["ratio"] for row in rows), default=None),
        "named": sorted(set(named)),
        "exact": bool(case.places) and covered and all(prefixes(case.places, it) for it in named),
        "local ratio": min((fault.ratio for fault in verdict.faults), default=None),
        "kinds": sorted({fault.kind for fault in verdict.faults}),
        "evidence": next((f"{it.site}: {it.evidence}" for it in verdict.faults), None)
        or next(iter(problems), ""),
    }


def weigh(name: str, case: Case, cache: Path) -> dict[str, Any]:
    """Make, check and summarise a case; a candidate that does not load is caught by loading."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        try:
            candidate = case.candidate(Path(scratch) / "candidate")
            verdict = check(
                case.reference(),
                candidate,
                runtime=case.runtime,
                expected=case.expected,
                cache=cache,
            )
            row = summarise(case, verdict)
        except (ValueError, Exception) as error:
            named = [place for place in case.places if place in str(error)]
            row = {
                "status": "ERROR",
                "caught by": ["loading"],
                "exact": bool(named),
                "named": named,
            }
            row |= {"ratio": None, "kinds": [type(error).__name__], "evidence": str(error)}
    return {"name": name, **row, "seconds": round(time.perf_counter() - started, 1)}


def local_null(case: Case) -> dict[str, Any]:
    """Return the largest local errors of a correct candidate, in the source's own."""
    reference = case.reference()
    chosen = make_probes(reference.signature, tokenizer=reference.path)[-2:]
    wanted, own = Recorder(reference, chosen).sites("float32", chosen)
    with tempfile.TemporaryDirectory() as scratch:
        candidate = case.candidate(Path(scratch) / "candidate")
        runner: Runner = (
            TorchRunner(candidate, Policy(), copy.deepcopy(candidate.factory).float())
            if candidate.path is None and case.runtime == "torch"
            else load(candidate, case.runtime, Policy())
        )
        errors = [
            error
            for probe, right, mine in zip(chosen, wanted, own, strict=True)
            for error in local_errors(
                probe, right, mine, runner.trace(probe.inputs, forced(right)).sites, LOCAL_FLOOR
            )
        ]
    if not errors:
        return {"sites": 0}
    ratios = [LOCAL_FLOOR.ratio(it.error, it.own) for it in errors]
    worst = max(range(len(errors)), key=lambda i: errors[i].allowed)
    return {
        "sites": len(errors),
        "whole": max(it.whole for it in ratios),
        "token": max(it.worst for it in ratios),
        "worst site": errors[worst].site,
        "allowed": errors[worst].allowed,
    }


def provide_floors() -> bool:
    """Use provisional floors where no null study covers a runtime; say whether one was missing."""
    studied, missing = check_module.floor, []

    def floor(*key: str, **options: Any) -> Floor:
        found = studied(*key, **options)
        if found is None:
            missing.append(key)
        return found or PROVISIONAL

    check_module.floor = floor
    floor("torch", "cpu", "float32")
    return bool(missing)


def show(row: Mapping[str, Any]) -> None:
    """Print a row."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
    caught = ", ".join(row["caught by"]) or "-"
    exact = "exact" if row["exact"] else ("-" if not row["named"] else f"named {len(row['named'])}")
    print(
        f"{row['name']:40} {row['status']:12} {caught:36} {ratio:>9} {exact:8} {','.join(row['kinds'])}"
    )
    print(f"    {row.get('local ratio') or ''} {str(row['evidence'])[:180]}", flush=True)


def main(names: list[str]) -> None:
    """Run the catalogue, or the cases called NAMES."""
    if "--wheel-blas" in names:
        names.remove("--wheel-blas")
    else:
        preload_blas()
    provisional = provide_floors()
    rows: dict[str, list[dict[str, Any]]] = {"faults": [], "controls": []}
    for group, cases in (("faults", FAULTS), ("controls", CONTROLS)):
        for name, case in cases.items():
            if names and name not in names:
                continue
            row = weigh(name, case, Path(SCRATCH.name) / "cache")
            if group == "controls":
                row["local null"] = local_null(case)
            show(row)
            rows[group].append(row)
    for row in rows["controls"]:
        print(row["name"], row["local null"])
    if not names:
        score = {
            "faults": len(rows["faults"]),
            "caught": sum(row["status"] in ("DIFFERS", "ERROR") for row in rows["faults"]),
            "named exactly": sum(row["exact"] for row in rows["faults"]),
            "false alarms": sum(row["status"] == "DIFFERS" for row in rows["controls"]),
            "controls": len(rows["controls"]),
            "provisional floors": provisional,
        }
        print(score)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps({"score": score, **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
