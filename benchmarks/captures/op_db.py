"""PyTorch's own table of operations, captured into MLX: every sample, forward and gradient.

    python benchmarks/captures/op_db.py [NAME ...] [--again] [--jobs N]

Every entry of ``op_db`` (PyTorch's tests) that takes float32 is recorded on all its samples as `capture` records a
module, and run in MLX on the CPU. Outputs and, with random cotangents, gradients are compared with PyTorch's at the
entry's own tolerance (what its ``toleranceOverride`` says for float32, else that of ``torch.testing``). A value may
agree with PyTorch's in float32 or in float64: where PyTorch's own float32 is off by more than the tolerance, being
right is no fault. Samples with dropout are left out and counted. Entries that nothing can be compared of are data, with one reason each: ``op_db.toml``.

An entry is ``pass`` (all samples, forward and gradient), ``forward only`` (the gradient is refused by name),
``unsupported`` (the census names what is missing, or torch.export what it cannot record; all else is right),
``float32`` (a value is beyond the tolerance, as that of PyTorch's own float32 is from its float64, and by no more than
the null study of ``parity/reference/floors.json`` finds between correct implementations; not counted as passed),
``wrong`` (a value, shape or dtype differs) or ``crash`` (anything else raised after a clean census).

Results are appended to a file as they come, and entries found there are not run again (``--again`` forgets the
entries named, or all). Of a complete run, writes ``results/op_db.json``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
import types
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import torch
from torch.export import exported_program
from torch.utils._python_dispatch import TorchDispatchMode

from weighbridge.benchmarks.captures.op_db_judging import Judge, Sample, Verdict, summary, worst

HERE: Final = Path(__file__).parent
RESULT: Final = HERE.parent / "results" / "op_db.json"
LOG: Final = Path(tempfile.gettempdir()) / "weighbridge_op_db.jsonl"
EXCLUDED: Final[dict[str, str]] = {
    entry: reason
    for reason, entries in tomllib.loads((HERE / "op_db.toml").read_text()).items()
    for entry in entries
}
CHUNK: Final = (
    24  # samples recorded together: most of a recording's time does not depend on its length
)
BATCH: Final = 12  # entries to a process


def op_db() -> dict[str, Any]:
    """Return the entries that take float32, by full name."""
    stub: Any = types.ModuleType(
        "expecttest"
    )  # which PyTorch's tests import and op_db does not use
    stub.TestCase = type("TestCase", (), {})
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal.common_methods_invocations import op_db as table

    return {_full_name(op): op for op in table if torch.float32 in op.dtypes}


def _full_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


class _Drops(TorchDispatchMode):
    """Notes whether anything is dropped in the block."""

    seen = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drops = any(name in str(func) for name in ("bernoulli", "dropout"))
        self.seen |= drops and "backward" not in str(func)  # which is told what was dropped
        return func(*args, **(kwargs or {}))


def drops(sample: Sample) -> bool:
    """Tell whether SAMPLE has dropout, given by name or in order."""
    with (
        torch.no_grad(),
        _Drops() as noted,
        suppress(RuntimeError),
    ):  # some need more than a copy has
        sample(*[x.detach().clone() for x in sample.tensors])
    return noted.seen


def judge(op: Any) -> dict[str, Any]:
    """Return status, counts and details of one entry."""
    torch.manual_seed(0)
    given = list(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd))
    samples = [each for each in (Sample(op, sample) for sample in given) if not drops(each)]
    verdicts: list[Verdict] = []
    for start in range(0, len(samples), CHUNK):
        named = {f"s{start + i}": s for i, s in enumerate(samples[start : start + CHUNK])}
        verdicts += Judge(op).verdicts(named)
    counts = Counter(v.status for v in verdicts)
    if len(samples) < len(given):
        counts["excluded: random"] = len(given) - len(samples)
    found = worst(verdicts) if verdicts else Verdict("excluded")
    return {"status": found.status, "samples": dict(counts), "detail": found.detail}


def work(names: Sequence[str], log: Path) -> None:
    """Judge entries one after another; each is announced before, so that one that kills is known."""
    mx.set_default_device(mx.cpu)
    torch.set_num_threads(1)
    # torch.export asks for all operations, twice a recording: the most of its time for small modules
    exported_program._collect_all_valid_cia_ops = cache(exported_program._collect_all_valid_cia_ops)
    table = op_db()
    for name in names:
        _append(log, {"entry": name, "status": "started"})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = judge(table[name])
        except Exception as error:
            found = {"status": "crash", "samples": {}, "detail": f"not judged: {summary(error)}"}
        _append(log, {"entry": name, **found})


def _append(log: Path, record: Mapping[str, Any]) -> None:
    with log.open("a") as file:
        file.write(json.dumps(record) + "\n")


def known(log: Path) -> dict[str, dict[str, Any]]:
    """Return the last record of every entry; one begun twice without an end has killed the process."""
    found: dict[str, dict[str, Any]] = {}
    begun: Counter[str] = Counter()
    for line in log.read_text().splitlines() if log.exists() else ():
        record = json.loads(line)
        name = record.pop("entry")
        if record["status"] == "started":
            begun[name] += 1
            if begun[name] > 1:
                detail = {"status": "crash", "samples": {}, "detail": "the process died"}
                found[name] = detail
        elif record["status"] == "forgotten":
            found.pop(name, None)
            begun[name] = 0
        else:
            found[name] = record
            begun[name] = 0
    return found


def _run(names: Sequence[str], log: Path) -> None:
    """Judge entries in another process, and again what is left when it dies."""
    while names:
        subprocess.run([sys.executable, __file__, "--worker", str(log), *names], check=False)
        done = known(log)
        names = [name for name in names if name not in done]


def report(found: Mapping[str, Mapping[str, Any]], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return all entries with their status; print the counts and what is not right."""
    entries = {
        name: {"status": "excluded", "reason": EXCLUDED[name]} if name in EXCLUDED else found[name]
        for name in sorted(table)
        if name in EXCLUDED or name in found
    }
    counts = Counter(entry["status"] for entry in entries.values())
    for name, entry in entries.items():
        if entry["status"] not in ("pass", "excluded"):
            print(f"{entry['status']:13} {name}: {entry['detail'][:160]}")
    print({"entries": len(entries), **counts}, {"torch": torch.__version__, "mlx": mx.__version__})
    versions = {"torch": torch.__version__, "mlx": mx.__version__}
    return {"versions": versions, "counts": dict(counts), "entries": entries}


def main() -> None:
    """Judge what is asked for and print what is not right."""
    parser = argparse.ArgumentParser(description="PyTorch's op_db, captured into MLX")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--log", type=Path, default=LOG)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.names, options.worker)
        return
    table = op_db()
    wanted = options.names or [name for name in table if name not in EXCLUDED]
    for name in wanted if options.again else ():
        _append(options.log, {"entry": name, "status": "forgotten"})
    done = known(options.log)
    todo = [name for name in wanted if name not in done]
    with ThreadPoolExecutor(options.jobs) as pool:
        parts = (todo[i : i + BATCH] for i in range(0, len(todo), BATCH))
        list(pool.map(lambda part: _run(part, options.log), parts))
    found = known(options.log)
    result = report({name: found[name] for name in wanted}, table)
    if not options.names:
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
