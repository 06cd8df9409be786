"""PyTorch's own table of operations, captured into MLX: every sample, forward and gradient.

    python benchmarks/captures/op_db.py [NAME ...] [--again] [--jobs N]

Every entry of ``op_db`` (PyTorch's tests) that takes float32 is recorded on all its samples as `capture` records a
module, and run in MLX on the CPU. Outputs and, with random cotangents, gradients are compared with PyTorch's at the
entry's own tolerance (what its ``toleranceOverride`` says for float32, else that of ``torch.testing``). A value may
agree with PyTorch's in float32 or in float64: where PyTorch's own float32 is off by more than the tolerance, being
right is no fault. Samples with dropout are left out and counted. Entries that nothing can be compared of are data, with one reason each: ``op_db.toml``.

An entry is ``pass`` (all samples, forward and gradient), ``forward only`` (the gradient is refused by name),
``unsupported`` (the census names what is missing, or torch.export what it cannot record; all else is right),
``wrong`` (a value, shape or dtype differs) or ``crash`` (anything else raised after a clean census).

Results are appended to a file as they come, and entries found there are not run again (``--again`` forgets the
entries named, or all). Of a complete run, writes ``results/op_db.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import types
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import mlx.core as mx
import torch
from torch.export import exported_program
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.capturing import census_torch
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import WeighbridgeError

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
WORST: Final = (
    "crash",
    "wrong",
    "unsupported",
    "forward only",
    "pass",
)  # an entry is as its worst sample
OTHER_DEVICES: Final = re.compile("cuda|mps|fuser|inductor", re.IGNORECASE)
FLOAT32: Final = (1.3e-6, 1e-5)  # rtol and atol of torch.testing


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


def tolerance(op: Any) -> tuple[float, float]:
    """Return the largest rtol and atol that OP itself states for float32 in tests on the CPU."""
    found = [FLOAT32]
    for info in op.decorators:
        test = str(getattr(info, "test_name", ""))
        if getattr(info, "device_type", None) in (None, "cpu") and not OTHER_DEVICES.search(test):
            stated = (getattr(d, "d", {}) for d in getattr(info, "decorators", [info]))
            found += [_limits(d[torch.float32]) for d in stated if torch.float32 in d]
    return max(r for r, _ in found), max(a for _, a in found)


def _limits(stated: Any) -> tuple[float, float]:
    """Return rtol and atol of a ``tol``, or of the absolute precision that stands in its place."""
    return (FLOAT32[0], stated) if isinstance(stated, float) else (stated.rtol, stated.atol)


class Sample(torch.nn.Module):
    """One sample as a module of its tensors; what is not a tensor is part of it."""

    def __init__(self, op: Any, sample: Any) -> None:
        super().__init__()
        self.op, self.process = op, sample.output_process_fn_grad
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors of the sample, in the order in which ``forward`` takes them."""
        return [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the outputs of the entry, made unique where the entry says how (signs of vectors)."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(x, torch.Tensor) else x for x in self.leaves]
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        outputs = pytree.tree_leaves(self.process(self.op(first, *args, **kwargs)))
        return tuple(x for x in outputs if isinstance(x, torch.Tensor))


class Samples(torch.nn.Module):
    """Samples beside each other, so that they are recorded at once."""

    def __init__(self, samples: Mapping[str, Sample]) -> None:
        super().__init__()
        self.samples = torch.nn.ModuleDict(samples)

    def forward(self, **tensors: torch.Tensor) -> dict[str, tuple[torch.Tensor, ...]]:
        """Return the outputs of every sample."""
        return {
            name: sample(*(tensors[key] for key in keys(name, sample)))
            for name, sample in self.samples.items()
        }


Chunk = Mapping[str, Sample]


def keys(name: str, sample: Any) -> list[str]:
    """Return the names of a sample's inputs."""
    return [f"{name}_{i}" for i in range(len(sample.tensors))]


class Expected(NamedTuple):
    """What PyTorch computes of one sample: outputs, cotangents drawn, gradients by input."""

    outputs: Sequence[torch.Tensor]
    cotangents: Mapping[int, torch.Tensor]
    gradients: Mapping[str, torch.Tensor]


def expected(name: str, sample: Sample, dtype: torch.dtype, cotangents: Any = None) -> Expected:
    """Run SAMPLE and its gradient in PyTorch with what is float32 as DTYPE."""
    like = {torch.float32: dtype, torch.complex64: _complex(dtype)}
    inputs = {
        key: x.detach().clone().to(like.get(x.dtype, x.dtype)).requires_grad_(x.requires_grad)
        for key, x in zip(keys(name, sample), sample.tensors, strict=True)
    }
    outputs = sample(*[x.clone() if x.requires_grad else x for x in inputs.values()])
    differentiable = {i: x for i, x in enumerate(outputs) if x.requires_grad}
    leaves = {key: x for key, x in inputs.items() if x.requires_grad}
    if not differentiable or not leaves:
        return Expected([x.detach() for x in outputs], {}, {})
    if cotangents is None:
        cotangents = {i: torch.randn_like(x) for i, x in differentiable.items()}
    weights = [cotangents[i].to(x.dtype) for i, x in differentiable.items()]
    found = torch.autograd.grad(
        list(differentiable.values()), list(leaves.values()), weights, allow_unused=True
    )
    gradients = {key: x for key, x in zip(leaves, found, strict=True) if x is not None}
    return Expected([x.detach() for x in outputs], cotangents, gradients)


def _complex(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype == torch.float64 else torch.complex64


def difference(
    found: mx.array, truths: Sequence[torch.Tensor | None], limits: tuple[float, float]
) -> str | None:
    """Return how FOUND differs from all of TRUTHS; the first says shape and dtype."""
    ours, first = to_torch(found), truths[0]
    assert first is not None
    if ours.shape != first.shape or ours.dtype != first.dtype:
        return f"{tuple(ours.shape)} {ours.dtype}, not {tuple(first.shape)} {first.dtype}"
    rtol, atol = limits
    for truth in truths:
        if truth is None:
            continue
        try:
            torch.testing.assert_close(
                ours, truth.to(first.dtype), rtol=rtol, atol=atol, equal_nan=True
            )
        except AssertionError as error:
            said = " ".join(str(error).split())
        else:
            return None
    return said


class Verdict(NamedTuple):
    """The status of one sample, and what was wrong."""

    status: str
    detail: str = ""


def _summary(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {' '.join(lines)}"[:400]


def _loss(outputs: Sequence[mx.array], cotangents: Mapping[int, torch.Tensor]) -> mx.array:
    total = mx.array(0.0)
    for i, weight in cotangents.items():
        product = (
            outputs[i] * mx.conj(to_mlx(weight))
            if weight.is_complex()
            else outputs[i] * to_mlx(weight)
        )
        total = total + mx.sum(mx.real(product) if weight.is_complex() else product)
    return total


class Judge:
    """Judges the samples of one entry."""

    def __init__(self, op: Any) -> None:
        self.op, self.limits = op, tolerance(op)

    def verdicts(self, chunk: Chunk) -> Iterator[Verdict]:
        """Yield a verdict for each sample of CHUNK: together where nothing fails, else in parts."""
        captured = None
        inputs = {key: to_mlx(x) for key, x in _inputs(chunk).items()}
        try:
            captured = capture(Samples(chunk), inputs=_inputs(chunk))
            outputs = captured(**inputs)
            mx.eval(outputs)
        except Exception as error:
            refused = captured is None and isinstance(error, WeighbridgeError)
            yield from self._apart(chunk, error, refused)
            return
        truths = {name: self._truths(name, sample) for name, sample in chunk.items()}
        wrong = {name: self._wrong_outputs(outputs[name], truths[name]) for name in chunk}
        yield from (Verdict("wrong", reason) for reason in wrong.values() if reason)
        right = {name: sample for name, sample in chunk.items() if not wrong[name]}
        yield from self._gradients(captured, inputs, right, truths)

    def _apart(self, chunk: Chunk, error: Exception, refused: bool) -> Iterator[Verdict]:
        """Judge the samples that the census names, then the rest; or halves where it names none."""
        if len(chunk) == 1:
            yield Verdict("unsupported" if refused else "crash", _summary(error))
            return
        missing = self._missing(chunk) if refused else {}
        if missing:
            yield from (Verdict("unsupported", reason) for reason in missing.values())
            rest = {name: sample for name, sample in chunk.items() if name not in missing}
            if rest:
                yield from self.verdicts(rest)
            return
        names = list(chunk)
        for part in (names[: len(names) // 2], names[len(names) // 2 :]):
            yield from self.verdicts({name: chunk[name] for name in part})

    @staticmethod
    def _missing(chunk: Chunk) -> dict[str, str]:
        """Return sample -> what the census says of it; nothing where torch.export itself fails."""
        try:
            census = census_torch(Samples(chunk), inputs=_inputs(chunk))
        except WeighbridgeError:
            return {}
        return {
            path.split(".")[1]: reason
            for reason, paths in census.unsupported.items()
            for path in paths
        }

    def _gradients(
        self, captured: Any, inputs: Mapping[str, mx.array], chunk: Chunk, truths: Any
    ) -> Iterator[Verdict]:
        chosen = {key: inputs[key] for name in chunk for key in truths[name][0].gradients}

        def loss(leaves: Mapping[str, mx.array]) -> mx.array:
            outputs = captured(**{**inputs, **leaves})
            return sum((_loss(outputs[n], truths[n][0].cotangents) for n in chunk), mx.array(0.0))

        try:
            gradients = mx.grad(loss)(chosen) if chosen else {}
            mx.eval(gradients)
        except Exception as error:
            refused = isinstance(error, WeighbridgeError)
            if len(chunk) > 1:
                for name, sample in chunk.items():
                    yield from self._gradients(captured, inputs, {name: sample}, truths)
            else:
                yield Verdict(
                    "forward only" if refused else "crash", f"gradient: {_summary(error)}"
                )
            return
        for name in chunk:
            reason = self._wrong_gradients(gradients, truths[name])
            yield Verdict("wrong", f"gradient: {reason}") if reason else Verdict("pass")

    def _truths(self, name: str, sample: Sample) -> tuple[Expected, Expected | None]:
        single = expected(name, sample, torch.float32)
        try:
            return single, expected(name, sample, torch.float64, single.cotangents)
        except Exception:
            return single, None

    def _wrong_outputs(
        self, found: Sequence[mx.array], truths: tuple[Expected, Expected | None]
    ) -> str | None:
        single, double = truths
        others = double.outputs if double else [None] * len(single.outputs)
        pairs = zip(found, single.outputs, others, strict=True)
        return next(filter(None, (difference(f, t, self.limits) for f, *t in pairs)), None)

    def _wrong_gradients(
        self, found: Mapping[str, mx.array], truths: tuple[Expected, Expected | None]
    ) -> str | None:
        single, double = truths
        others = double.gradients if double else {}
        reasons = (
            difference(found[key], (truth, others.get(key)), self.limits)
            for key, truth in single.gradients.items()
        )
        return next(filter(None, reasons), None)


def _inputs(chunk: Chunk) -> dict[str, torch.Tensor]:
    return {
        key: x.detach()
        for name, sample in chunk.items()
        for key, x in zip(keys(name, sample), sample.tensors, strict=True)
    }


class _Drops(TorchDispatchMode):
    """Notes whether anything is dropped in the block."""

    seen = False

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen |= any(name in str(func) for name in ("bernoulli", "dropout"))
        return func(*args, **(kwargs or {}))


def drops(sample: Sample) -> bool:
    """Tell whether SAMPLE has dropout, given by name or in order."""
    with torch.no_grad(), _Drops() as noted:
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
    status = next((s for s in WORST if counts[s]), "pass") if verdicts else "excluded"
    detail = next((v.detail for v in verdicts if v.status == status), "")
    return {"status": status, "samples": dict(counts), "detail": detail}


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
            found = {"status": "crash", "samples": {}, "detail": f"not judged: {_summary(error)}"}
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
