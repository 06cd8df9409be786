"""Offer packages of others sources that they were not made of, and count the constants that are explained.

    python benchmarks/null_packages.py [NAME ...]

A package without a record is judged by values alone: each of its constants has to be a tensor of the source,
rows of one, or what a rule makes of several. How likely is that by chance? Every family here is converted
by plain coremltools, dense and compressed, and held against its own source, of which all constants should be
explained, and against others: other numbers of the same distribution, the same rows in another order, the
same numbers a tenth larger, twice as large, negated, and with relative noise. For compressed packages also
sources made of the package itself, with the entries of its tables (or its codes) exchanged.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from weighbridge.converters.checkpoints.derived import Overlay
from weighbridge.converters.common.arrays import to_torch
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.models import Model
from weighbridge.converters.models import open as open_model
from weighbridge.converters.models.factories import copied
from weighbridge.converters.values import Array
from weighbridge.parity.check.candidate import Candidate
from weighbridge.parity.check.check import Check
from weighbridge.parity.check.recording import record_for
from weighbridge.parity.packages.coded import coded_in
from weighbridge.parity.packages.compressed import CompressedWeights, together
from weighbridge.parity.packages.constants import VARIANCE
from weighbridge.parity.packages.source import SourceTensors
from weighbridge.parity.weights.weights import weights_of
from weighbridge.tests.support.coreml.foreign import WAYS, compressed, foreign

RESULTS: Final = Path(__file__).with_name("results") / "null_packages.json"
FAMILIES: Final = ("LSTM", "GRU", "Conv1d series", "heads of 16", "BERT")
SEED: Final = 0
OWN: Final = "its own source"
Change = Callable[[Array, np.random.Generator], Array]


def drawn(array: Array, chance: np.random.Generator) -> Array:
    """Return other numbers of the mean and spread of ARRAY, as another checkpoint has them."""
    return chance.normal(array.mean(), array.std() or 0.1, array.shape)


def mixed(array: Array, chance: np.random.Generator) -> Array:
    """Return ARRAY with its rows in another order; of one row its numbers."""
    flat = array if len(array) > 1 else array.reshape(-1)
    order = chance.permutation(len(flat))
    order = np.roll(order, 1) if (order == np.arange(len(flat))).all() else order
    return flat[order].reshape(array.shape)


def noisy(part: float) -> Change:
    """Return a change of every number by about PART of it."""
    return lambda array, chance: array * (1 + part * chance.standard_normal(array.shape))


NULLS: Final[Mapping[str, Change]] = {
    OWN: lambda array, _: array,
    "other numbers": drawn,
    "other orders of rows": mixed,
    "a tenth larger": lambda array, _: array * 1.1,
    "twice as large": lambda array, _: array * 2,
    "negated": lambda array, _: -array,
    "noise 1e-2": noisy(1e-2),
    "noise 1e-4": noisy(1e-4),
    "noise 1e-6": noisy(1e-6),
}
NOISES: Final = tuple(it for it in NULLS if it.startswith("noise"))


def changed(model: Model, change: Change) -> Model:
    """Return MODEL with all its tensors of numbers CHANGED; variances stay positive."""
    chance = np.random.default_rng(SEED)

    def other(name: str, array: Array) -> Array:
        if array.dtype.kind != "f" or not array.ndim:
            return array
        found = change(array.astype(np.float64), chance).astype(array.dtype)
        return np.where(found > 0, found, 1 - found) if name.endswith(VARIANCE) else found

    own = weights_of(model)
    return with_tensors(model, {name: other(name, own.read(name)) for name in own.headers})


def explained(reference: Model, package: Path) -> dict[str, bool]:
    """Return the constants of PACKAGE that carry tensors, and whether REFERENCE explains each."""
    judged = Candidate(open_model(str(package)), "reference", Policy())
    with judged.computing(reference):
        golden = record_for(
            reference, judged.called_as(reference), quick=True, probes=None, cache=None
        )
        check = Check(golden, judged.called_as(reference), {}, quick=True)
        check.fingerprints()
    return {it.name: it.ok for it in check.explanations if it.kind not in ("missing", "unused")}


def fitting(reference: Model, package: Path) -> dict[str, bool]:
    """Return the compressed constants of PACKAGE, and whether they are the nearest to some tensor of REFERENCE."""
    file = coded_in(open_model(str(package)))
    assert file
    fits = CompressedWeights(file, SourceTensors(reference)).fits()
    return {name: bool(it and it.ok) for name, it in fits.items()}


def exchanged(package: Path) -> Callable[[Model], Model]:
    """Return what gives a source whose numbers are those of PACKAGE, each value of a weight another of its values."""
    file = coded_in(open_model(str(package)))
    assert file

    def other(model: Model) -> Model:
        read = SourceTensors(model)
        fits = CompressedWeights(file, read).fits()
        found = [it for fit in fits.values() for it in (fit.values or () if fit else ())]
        moved = [it._replace(values=rolled(it.values)) for it in found]
        return with_tensors(model, together(moved, read))

    return other


def rolled(array: Array) -> Array:
    """Return ARRAY with each of its values put in the place of the next larger one."""
    held, places = np.unique(array, return_inverse=True)
    return np.roll(held, 1)[places].reshape(array.shape)


def with_tensors(model: Model, arrays: Mapping[str, Array]) -> Model:
    """Return MODEL with some tensors of the same shapes in place of its own."""
    if model.path is not None:
        return replace(model, tensors=Overlay(model.checkpoint, arrays))
    other = replace(model, factory=copied(model.factory))
    state = other.factory.state_dict()
    for name, array in arrays.items():
        state[name].copy_(to_torch(array))
    return other


def rows(name: str, folder: Path) -> Iterator[tuple[str, str, int, int]]:
    """Yield way, null, constants explained and all constants of the family NAME."""
    for precision in ("float32", "float16"):
        (folder / precision).mkdir()
        made = foreign(name, folder / precision, precision)
        yield from held(precision, made.source, made.package, explained)
    for way in WAYS:
        package = compressed(made.package, way, folder / f"{way}.mlpackage")
        yield from held(way, made.source, package, fitting)
        if way != "sparse":
            count = [*fitting(exchanged(package)(open_model(made.source)), package).values()]
            yield way, "codes exchanged", sum(count), len(count)


def held(
    way: str, source: str, package: Path, judge: Callable[[Model, Path], dict[str, bool]]
) -> Iterator[tuple[str, str, int, int]]:
    """Yield how many constants of PACKAGE the SOURCE and its changes explain, of those that depend on it."""
    model = open_model(source)
    found = {null: judge(changed(model, change), package) for null, change in NULLS.items()}
    # What no source moves, such as zeros that coremltools fills in, says nothing of it.
    always = {n for n in found[OWN] if found["other numbers"].get(n) and found["negated"].get(n)}
    for null, them in found.items():
        count = [ok for name, ok in them.items() if name not in always]
        yield way, null, sum(count), len(count)
        if null not in (OWN, *NOISES):
            print(
                "   ",
                null,
                [n for n, ok in them.items() if ok and n not in always],
                file=sys.stderr,
            )


def main() -> None:
    """Print the counts of the families on the command line, or of all, and keep them among those of before."""
    found = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for name in sys.argv[1:] or FAMILIES:
        found[name] = {}
        with tempfile.TemporaryDirectory() as folder:
            for way, null, count, whole in rows(name, Path(folder)):
                print(f"{name:14} {way:8} {null:22} {count:4} of {whole}", flush=True)
                found[name].setdefault(way, {})[null] = [count, whole]
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    for (way, null), (count, whole) in summed(found).items():
        print(f"all            {way:8} {null:22} {count:4} of {whole}")


def summed(
    found: Mapping[str, Mapping[str, Mapping[str, list[int]]]],
) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the counts of all families by way and null."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for way, nulls in (it for ways in found.values() for it in ways.items()):
        for null, (count, whole) in nulls.items():
            before = sums.get((way, null), (0, 0))
            sums[way, null] = before[0] + count, before[1] + whole
    return sums


if __name__ == "__main__":
    main()
