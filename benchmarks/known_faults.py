"""Inject faults into a real encoder and a small convolutional network, and see who notices.

Faults of weights and configuration are written as model directories, faults of code are made in
modules; all of them go through ``check``. Prints which stage caught the fault and whether blame or
the fingerprints named its place exactly. Controls are correct implementations and must pass; their
largest local errors are the null for ``blame.LOCAL_FLOOR``, with PyTorch's BLAS and the wheel's.

The faults are those that the hypotheses were written for, and the floor was set after both the null
and the faults had been seen: this is a regression test, not an estimate for unseen faults.

    python benchmarks/known_faults.py [NAME ...]
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faults import CONTROLS, FAULTS, SCRATCH, Case

from weighbridge.converters.common.policy import Policy
from weighbridge.converters.runtimes import Runner, load
from weighbridge.converters.runtimes.blas import preload_blas
from weighbridge.converters.runtimes.torch import TorchRunner
from weighbridge.parity.blame.blame import LOCAL_FLOOR, forced, local_errors
from weighbridge.parity.check.check import check
from weighbridge.parity.check.verdict import Verdict
from weighbridge.parity.goldens.recorder import Recorder
from weighbridge.parity.probes.probes import make_probes

RESULTS = Path(__file__).with_name("results") / "known_faults.json"


def lies_at(places: tuple[str, ...], named: str) -> bool:
    """Return whether NAMED lies at one of PLACES."""
    return any(named == place or named.startswith(f"{place}.") for place in places)


def is_exact(places: tuple[str, ...], named: list[str]) -> bool:
    """Return whether NAMED are all of PLACES and nothing else."""
    return all(any(lies_at((place,), it) for it in named) for place in places) and all(
        lies_at(places, it) for it in named
    )


def summarise(case: Case, verdict: Verdict) -> dict[str, Any]:
    """Return the row of a verdict; blame and fingerprints are scored apart."""
    stages = {stage.name: stage for stage in verdict.stages}
    prints, structure = stages["fingerprints"], stages.get("structure")
    problems = list(prints.figures.get("problems", ()))
    rows = structure.figures.get("rows", ()) if structure else ()
    named = {
        "blame": sorted({fault.site for fault in verdict.faults}),
        "fingerprints": sorted({it.split(":")[0].split(" ")[0] for it in problems}),
    }
    return {
        "status": verdict.status,
        "caught by": [name for name, stage in stages.items() if stage.status == "fail"],
        "ratio": max((row["ratio"] for row in rows), default=None),
        "named": {who: names[:8] for who, names in named.items()},
        "exact by": [w for w, names in named.items() if names and is_exact(case.places, names)],
        "local ratio": min((fault.ratio for fault in verdict.faults), default=None),
        "kinds": sorted({fault.kind for fault in verdict.faults}),
        "evidence": next((f"{it.site}: {it.evidence}" for it in verdict.faults), None)
        or next(iter(problems), ""),
    }


NOTHING = {"ratio": None, "named": {}, "exact by": [], "local ratio": None, "kinds": []}


def weigh(name: str, case: Case, cache: Path) -> dict[str, Any]:
    """Make, check and summarise a case.

    An exception is never a catch. Where a loader is expected to refuse, the row says so; anything
    else is an error of this script or of the product.
    """
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
        except Exception as error:
            refused = case.refused and isinstance(error, ValueError)
            row = {"status": "REFUSED" if refused else "ERROR", "caught by": [], **NOTHING}
            row["evidence"] = f"{type(error).__name__}: {error}"
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


def show(row: Mapping[str, Any]) -> None:
    """Print a row."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g}"
    caught, exact = (", ".join(row[key]) or "-" for key in ("caught by", "exact by"))
    kinds = ",".join(row["kinds"])
    print(f"{row['name']:40} {row['status']:9} {caught:24} {ratio:>9} {exact:20} {kinds}")
    print(f"    {str(row['evidence'])[:160]}", flush=True)


def wheel_null() -> dict[str, Any]:
    """Measure the null of MLX with its wheel's BLAS, which takes a process of its own."""
    command = [sys.executable, __file__, "--wheel-null"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    null: dict[str, Any] = json.loads(output.splitlines()[-1])
    return null


def score(rows: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Count; what a loader refused is neither caught nor missed by ``check``."""
    checked = [row for row in rows["faults"] if row["status"] != "REFUSED"]
    return {
        "faults checked": len(checked),
        "caught by check": sum(row["status"] == "DIFFERS" for row in checked),
        "refused by a loader before check": len(rows["faults"]) - len(checked),
        "errors": sum(row["status"] == "ERROR" for group in rows.values() for row in group),
        "named exactly by blame": sum("blame" in row["exact by"] for row in checked),
        "named exactly by fingerprints": sum("fingerprints" in row["exact by"] for row in checked),
        "named exactly by either": sum(bool(row["exact by"]) for row in checked),
        "controls": len(rows["controls"]),
        "controls passed": sum(row["status"] == "PASS" for row in rows["controls"]),
        "held out": False,
    }


def main(names: list[str]) -> None:
    """Run the catalogue, or the cases called NAMES."""
    if names == ["--wheel-null"]:
        print(json.dumps(local_null(CONTROLS["MLX capture"])))
        return
    preload_blas()
    rows: dict[str, list[dict[str, Any]]] = {"faults": [], "controls": []}
    for group, cases in (("faults", FAULTS), ("controls", CONTROLS)):
        for name, case in cases.items():
            if names and name not in names:
                continue
            row = weigh(name, case, Path(SCRATCH.name) / "cache")
            show(row)
            rows[group].append(row)
    if names:
        return
    nulls = {name: local_null(case) for name, case in CONTROLS.items()}
    nulls["MLX capture, wheel BLAS"] = wheel_null()
    result = {"score": score(rows), "local null": nulls, **rows}
    print(json.dumps({"score": result["score"], "local null": nulls}, indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
