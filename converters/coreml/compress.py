"""Compress the weights of an exported package by coremltools, and measure what that costs."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...errors import UnsupportedError, WeighbridgeError
from ..captures.mlprogram.contents import constants
from ..captures.mlprogram.evaluator import constant_value
from ..captures.mlprogram.names import inward
from ..captures.mlprogram.package import functions, read_package
from ..captures.mlprogram.program import COMPRESSED, Program, load_program
from ..captures.mlprogram.texts import run_program, text_of
from ..captures.mlprogram.toolkit import coremltools, quiet
from ..common.arrays import unmasked
from ..common.memory import pass_on_shortage
from ..common.steps import step
from ..common.users_code import first_line
from ..values import Array
from .activations import Inputs, with_codes
from .compression import LEAST, Compression
from .naming import programs_checked_once, scales_kept, sums_kept
from .writing import files, replace_package, save

# iOS 18 is the first that has blocks, 4-bit codes, tables of 8 entries, and one form inside another.
VERSION: Final = 9
OPSET: Final = "CoreML8"


def compress_package(
    package: Path, wanted: Compression, calibrate: Inputs = (), trial: Inputs = ()
) -> None:
    """Compress the weights of PACKAGE in place, as WANTED; for CALIBRATE and TRIAL see ``activations``.

    Raises:
        UnsupportedError: coremltools cannot, or no weight is large enough or divides into blocks.
    """
    step("compressing the weights" if wanted.weights else "rounding activations")
    if wanted.newest:
        raise_target(package)
    with tempfile.TemporaryDirectory(dir=package.parent, prefix=f".{package.stem}-") as place:
        made = Path(place) / package.name
        save(_compressed(package, wanted, (calibrate, trial)), made)
        program = load_program(made)
        if wanted.activations and not program.rounds_activations:
            raise UnsupportedError("no operation has activations that coremltools rounds")
        if wanted.weights and not program.compressed():
            raise UnsupportedError(
                f"no weight has {LEAST:,} numbers and fits {wanted}; export without compression"
            )
        replace_package(package, made)


def _compressed(package: Path, wanted: Compression, given: tuple[Inputs, Inputs]) -> Any:
    try:
        with quiet(), programs_checked_once(), sums_kept(), scales_kept():
            import coremltools.optimize.coreml as compression

            model = coremltools.models.MLModel(str(package), skip_model_load=True)
            if wanted.activations:
                model = with_codes(model, compression, load_program(package), *given)
            for run in wanted.passes(compression):
                model = run(model)
            return model
    except WeighbridgeError:
        raise
    except Exception as error:
        pass_on_shortage(error)
        raise UnsupportedError(
            f"coremltools cannot compress the weights ({wanted}): {first_line(error)}"
        ) from error


def raise_target(package: Path) -> None:
    """Let PACKAGE be one for iOS 18, in place; the operations of an older one mean the same there."""
    read = read_package(package)
    spec = read.spec
    if spec.specificationVersion >= VERSION:
        return
    spec.specificationVersion = VERSION
    for function in spec.mlProgram.functions.values():
        block = function.block_specializations[function.opset]
        function.block_specializations[OPSET].CopyFrom(block)
        del function.block_specializations[function.opset]
        function.opset = OPSET
    file = read.weights.parent / "model.mlmodel"
    file.write_bytes(spec.SerializeToString(deterministic=True))


def costs(
    before: Path, after: Path, trial: Sequence[Mapping[str, Array]]
) -> dict[str, dict[str, Any]]:
    """Return what compressing BEFORE to AFTER saves and costs.

    Returns:
        ``compressed``: ``bytes`` before and after, ``weights``, each with its ``scheme`` and ``error`` (a part
        of its size), ``error``, their mean and the largest; ``outputs``: how far each output of TRIAL moved
        at most, as a part of its size, both packages run by the evaluator.
    """
    old, new = load_program(before), load_program(after)
    weights = dict(_weights(old, new, after))
    errors = {name: float(it["error"]) for name, it in weights.items()}
    sizes = [sum(it.stat().st_size for it in files(path)) for path in (before, after)]
    found: dict[str, dict[str, Any]] = {"outputs": moved(old, new, trial)}
    if errors:
        worst = max(errors, key=lambda it: errors[it])
        error = {"of": "all numbers", "mean": float(np.mean([*errors.values()]))}
        found["compressed"] = {
            "bytes": dict(zip(("before", "after"), sizes, strict=True)),
            "error": error | {"worst": worst, "largest": errors[worst]},
            "weights": weights,
        }
    return found


def _weights(old: Program, new: Program, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    package, plain = read_package(path), old.constants()
    ways = {it.name: it.how for name in functions(package) for it in constants(package, name)}
    for name, variable in new.compressed().items():
        own = COMPRESSED.sub("", name)
        if own in plain:
            now = np.asarray(constant_value(variable))
            yield own, {"scheme": ways.get(name, ""), "error": distance(now, plain[own])}


def left(before: Path, after: Path) -> list[str]:
    """Return the matrices of BEFORE that are large enough to be compressed and are dense in AFTER."""
    old, new = load_program(before), load_program(after)
    done = {COMPRESSED.sub("", name) for name in new.compressed()}
    return [
        name
        for name, it in old.constants().items()
        if it.dtype.kind == "f" and it.ndim > 1 and it.size >= LEAST and name not in done
    ]


def moved(old: Program, new: Program, trial: Sequence[Mapping[str, Array]]) -> dict[str, float]:
    """Return how far each floating-point output of NEW is from that of OLD on TRIAL at most, without padding."""
    found: dict[str, float] = {}
    text = text_of(old.manifest)
    for given in trial:
        inputs = inward(old.manifest, given)
        ours, theirs = (run_program(it, text, inputs, dict) for it in (new, old))
        for name, array in theirs.items():
            if array.dtype.kind == "f":
                mask = given.get("attention_mask")
                gap = distance(*(unmasked(it, mask) for it in (ours[name], array)))
                found[name] = max(found.get(name, 0.0), gap)
    return found


def distance(array: Array, other: Array) -> float:
    """Return how far ARRAY is from OTHER, as a part of the size of OTHER.

    >>> distance(np.float32([1, 1]), np.float32([1, 0]))
    1.0
    """
    one, two = array.astype(np.float64), other.astype(np.float64)
    size = float(np.linalg.norm(two))
    gap = float(np.linalg.norm(one - two))
    return gap / size if size else math.inf if gap else 0.0
