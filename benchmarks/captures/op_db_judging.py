"""Samples of PyTorch's table of operations, run in PyTorch and in MLX, and what is right of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import mlx.core as mx
import torch
from torch.utils import _pytree as pytree

from weighbridge.benchmarks.captures.zoo import study
from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.capturing import census_torch
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import WeighbridgeError
from weighbridge.parity.check.distances import distance

OTHER_DEVICES: Final = re.compile("cuda|mps|fuser|inductor", re.IGNORECASE)
WORST: Final = ("crash", "wrong", "unsupported", "forward only", "float32", "pass")
FLOAT32: Final = (1.3e-6, 1e-5)  # rtol and atol of torch.testing


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


class Verdict(NamedTuple):
    """The status of one sample, and what was wrong."""

    status: str
    detail: str = ""

    def of(self, what: str) -> Verdict:
        """Return this verdict with WHAT it is of."""
        return self._replace(detail=f"{what}: {self.detail}") if self.detail else self


PASS: Final = Verdict("pass")
Limits = tuple[float, float]


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of VERDICTS, the first where several are."""
    return min(verdicts, key=lambda verdict: WORST.index(verdict.status), default=PASS)


def difference(
    found: mx.array, single: torch.Tensor, double: torch.Tensor | None, limits: Limits
) -> Verdict:
    """Judge FOUND by what PyTorch computes in float32, SINGLE, and in float64, DOUBLE."""
    ours = to_torch(found)
    if ours.shape != single.shape or ours.dtype != single.dtype:
        said = f"{tuple(ours.shape)} {ours.dtype}, not {tuple(single.shape)} {single.dtype}"
        return Verdict("wrong", said)
    said = _beyond(ours, single, limits)
    if said is None or double is None:
        return Verdict("wrong", said) if said else PASS
    said = _beyond(ours, double, limits)
    if said is None:
        return PASS
    rounding = _beyond(single, double, limits) and _share(ours, single, double) <= 1
    return Verdict("float32" if rounding else "wrong", said)


def _beyond(found: torch.Tensor, truth: torch.Tensor, limits: Limits) -> str | None:
    rtol, atol = limits
    truth = truth.to(found.dtype)
    try:
        torch.testing.assert_close(found, truth, rtol=rtol, atol=atol, equal_nan=True)
    except AssertionError as error:
        return " ".join(str(error).split())
    return None


def _share(ours: torch.Tensor, single: torch.Tensor, double: torch.Tensor) -> float:
    """Return which share of the error that the null study allows is used."""
    if not ours.is_floating_point() or not double.isfinite().all():
        return float("inf")
    errors = (distance(x.numpy(), double.numpy()) for x in (ours, single))
    return study().allowed(*errors)


def summary(error: BaseException) -> str:
    """Return the kind of ERROR and what it says, in one line."""
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
        noted = {name: self._outputs(outputs[name], truths[name]) for name in chunk}
        yield from (verdict for verdict in noted.values() if verdict.status == "wrong")
        right = {name: sample for name, sample in chunk.items() if noted[name].status != "wrong"}
        for name, verdict in self._gradients(captured, inputs, right, truths):
            yield worst([verdict.of("gradient"), noted[name]])

    def _apart(self, chunk: Chunk, error: Exception, refused: bool) -> Iterator[Verdict]:
        """Judge the samples that the census names, then the rest; or halves where it names none."""
        if len(chunk) == 1:
            yield Verdict("unsupported" if refused else "crash", summary(error))
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
    ) -> Iterator[tuple[str, Verdict]]:
        chosen = {key: inputs[key] for name in chunk for key in truths[name][0].gradients}

        def loss(leaves: Mapping[str, mx.array]) -> mx.array:
            outputs = captured(**{**inputs, **leaves})
            return sum((_loss(outputs[n], truths[n][0].cotangents) for n in chunk), mx.array(0.0))

        try:
            gradients = mx.grad(loss)(chosen) if chosen else {}
            mx.eval(gradients)
        except Exception as error:
            refused = isinstance(error, WeighbridgeError)
            for name, sample in chunk.items():
                if len(chunk) > 1:
                    yield from self._gradients(captured, inputs, {name: sample}, truths)
                else:
                    yield name, Verdict("forward only" if refused else "crash", summary(error))
            return
        for name in chunk:
            yield name, self._gradient(gradients, truths[name])

    def _truths(self, name: str, sample: Sample) -> tuple[Expected, Expected | None]:
        single = expected(name, sample, torch.float32)
        try:
            return single, expected(name, sample, torch.float64, single.cotangents)
        except Exception:
            return single, None

    def _outputs(
        self, found: Sequence[mx.array], truths: tuple[Expected, Expected | None]
    ) -> Verdict:
        single, double = truths
        others = double.outputs if double else [None] * len(single.outputs)
        pairs = zip(found, single.outputs, others, strict=True)
        return worst(difference(*each, self.limits) for each in pairs)

    def _gradient(
        self, found: Mapping[str, mx.array], truths: tuple[Expected, Expected | None]
    ) -> Verdict:
        single, double = truths
        others = double.gradients if double else {}
        return worst(
            difference(found[key], truth, others.get(key), self.limits)
            for key, truth in single.gradients.items()
        )


def _inputs(chunk: Chunk) -> dict[str, torch.Tensor]:
    return {
        key: x.detach()
        for name, sample in chunk.items()
        for key, x in zip(keys(name, sample), sample.tensors, strict=True)
    }
