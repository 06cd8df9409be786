"""What becomes of quantized weights from MLX to each format and back: exact, near, lossy or refused.

    python benchmarks/quantization_matrix.py [--write]

A cell writes a small weight, or reads one, and compares its canonical values in float64. What is written is
decoded by the formulas of the formats' own libraries (``tests/support/quantized_formats.py``), which share no
code with ours. Prints the tables and writes ``results/quantization_matrix.json``; with ``--write`` also into
``docs/quantization.md``. More formats are more rows of ``CELLS``: who makes them, and a function without
arguments.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from weighbridge.converters.checkpoints.derived import Overlay
from weighbridge.converters.quantization import Blocks, Dequantized, Scheme, quantize
from weighbridge.converters.quantization.formats import registry
from weighbridge.errors import UnsupportedError
from weighbridge.tests.support.quantized_formats import BY

RESULT = Path(__file__).parent / "results" / "quantization_matrix.json"
PAGE = Path(__file__).parent.parent / "docs" / "quantization.md"
SHAPE = (64, 256)
SIZES = (32, 64, 128)
NEAR = 0.1  # steps: a tenth of what rounding to the codes has cost on the worst weight
E8M0 = ml_dtypes.float8_e8m0fnu
Array = Any


class Outcome(NamedTuple):
    """What became of a weight: how, and its largest difference, in steps where codes were kept."""

    kind: str
    error: float = 0.0
    note: str = ""

    def __str__(self) -> str:
        """Print as a cell of a table."""
        size = f" {self.error:.2g}" if self.error else ""
        return f"{self.kind}{size}{f' ({self.note})' if self.note else ''}"


class Cell(NamedTuple):
    """One way: of a table, from a source, to a target, and what measures it."""

    table: str
    source: str
    target: str
    measure: Callable[[], Outcome]


class Nothing:
    """A checkpoint without tensors, to lay arrays over."""

    path, headers, metadata, files, ignored = Path("memory"), {}, {}, (), ()


def checkpoint(arrays: dict[str, Array]) -> Overlay:
    """Return ARRAYS by name as a checkpoint."""
    return Overlay(Nothing(), arrays)


def quantized(
    scheme: Scheme, dtype: str, *, whole: bool = False, scaled: bool = False
) -> Dequantized:
    """Return a weight ``up`` as MLX quantizes it, its scales in DTYPE.

    Args:
        scheme: of MLX.
        dtype: of the scales.
        whole: with whole zero points and float32 biases, as other formats give it.
        scaled: with a global scale, and in 3 axes, as mlx-lm has experts.
    """
    random = np.random.default_rng(0)
    values = random.standard_normal(SHAPE) * np.exp(random.standard_normal((SHAPE[0], 1)))
    dense = values[None] if scaled else values
    parts = quantize(dense.astype(np.float32), scheme, dtype, global_scale=scaled)
    if whole:
        scales = parts["scales"].astype(np.float64)
        zeros = np.clip(
            np.rint(-parts["biases"].astype(np.float64) / scales), 0, 2**scheme.bits - 1
        )
        parts["biases"] = (-zeros * scales).astype(np.float32)
    named = {"up.weight" if part == "weight" else f"up.{part}": it for part, it in parts.items()}
    return Dequantized(checkpoint(named), {"quantization": scheme.record})


def written(weights: Iterable[Callable[[], Dequantized]], method: str) -> Outcome:
    """Return the worst outcome of writing WEIGHTS in the format METHOD."""
    return max((_written(make(), method) for make in weights), key=lambda it: it.error)


def _written(view: Dequantized, method: str) -> Outcome:
    parts, scheme = view.parts("up.weight"), view.schemes["up.weight"]
    exact = Blocks(parts, scheme).values()
    try:
        made = registry.write(view, method)
        tensors = {name: made.tensors.read(name) for name in made.tensors.headers}
    except UnsupportedError:
        return Outcome("refused")
    off = np.abs(BY[method](tensors, made.section) - exact)
    if not scheme.affine:
        return Outcome("exact" if not off.any() else "lossy", float(off.max()))
    scales = np.abs(parts["scales"].astype(np.float64))
    worst = float(np.max(off / np.repeat(scales, scheme.group_size, axis=-1)))
    return Outcome("exact" if worst == 0 else "near" if worst < NEAR else "lossy", worst)


def from_mlx() -> Iterator[Cell]:
    """Yield the ways from MLX to the formats of Hugging Face."""
    for method in BY:
        for dtype in ("float16", "bfloat16", "float32"):
            for bits in (2, 3, 4, 5, 6, 8):
                makes = [partial(quantized, Scheme(bits, size), dtype) for size in SIZES]
                yield Cell("from", f"{bits}-bit, {dtype}", method, partial(written, makes, method))
        for bits in (2, 3, 4, 8):
            makes = [
                partial(quantized, Scheme(bits, size), "float16", whole=True) for size in SIZES
            ]
            source = f"{bits}-bit, whole zero points"
            yield Cell("from", source, method, partial(written, makes, method))
        yield Cell("from", "2-bit, three values", method, partial(written, [ternary], method))
        for mode in ("mxfp4", "mxfp8", "nvfp4"):
            makes = [partial(quantized, Scheme.of({"mode": mode}), "float32")]
            yield Cell("from", mode, method, partial(written, makes, method))
        yield Cell("from", "mxfp4, experts", method, partial(written, [experts], method))
        scaled = partial(quantized, Scheme(4, 16, "nvfp4"), "float32", scaled=True)
        yield Cell("from", "nvfp4, global scale", method, partial(written, [scaled], method))


def ternary() -> Dequantized:
    """Return a weight of -1, 0 and 1 with one scale."""
    codes = np.random.default_rng(0).integers(0, 3, SHAPE)
    scales = np.full((SHAPE[0], SHAPE[1] // 64), 0.37, np.float16)
    stored = {"scales": scales, "biases": -scales}
    parts = Blocks.of_codes(codes, stored, Scheme(2, 64)).parts
    named = {f"up.{part}": array for part, array in parts.items()}
    return Dequantized(checkpoint(named), {"quantization": Scheme(2, 64).record})


def experts() -> Dequantized:
    """Return a weight of mxfp4 in 3 axes."""
    random = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)
    scheme = Scheme(4, 32, "mxfp4")
    named = {f"up.{part}": it for part, it in quantize(random, scheme, "float32").items()}
    return Dequantized(checkpoint(named), {"quantization": scheme.record})


def read_back(make: Callable[[], tuple[dict[str, Array], dict[str, Any], Array]]) -> Outcome:
    """Return what becomes of the tensors that MAKE gives, with their config and their values."""
    tensors, section, exact = make()
    try:
        seen = registry.read(checkpoint(tensors), {"quantization_config": section})
    except UnsupportedError:
        return Outcome("refused")
    view = Dequantized(seen.tensors, {"quantization": seen.section} if seen.section else {})
    [name] = [it for it in view.headers if it.startswith("up")]
    scheme = view.schemes.get(name)
    if scheme is None:
        off = np.abs(view.read(name).astype(np.float64) - exact)
        kind = "dense, exact" if not off.any() else "dense, rounded to float32 once"
        assert (off <= np.abs(exact) * 2.0**-24).all()
        return Outcome(kind)
    parts = view.parts(name)
    off = np.abs(Blocks(parts, scheme).values() - exact)
    if not off.any():
        return Outcome("exact", note=str(scheme))
    scales = np.repeat(np.abs(parts["scales"].astype(np.float64)), scheme.group_size, axis=-1)
    return Outcome("near", float(np.max(off / scales)), str(scheme))


def again(method: str, make: Callable[[], Dequantized], **changes: Any) -> Any:
    """Return what METHOD writes of what MAKE makes, tensors and config changed by CHANGES, decoded."""
    done = registry.write(make(), method)
    tensors = {name: done.tensors.read(name) for name in done.tensors.headers}
    tensors |= {f"up.{it}": array for it, array in changes.items()}
    return tensors, dict(done.section), BY[method](tensors, done.section)


def integers(*, groups: int, dtype: Any = np.float16) -> Any:
    """Return int8 of compressed-tensors with a scale for each of GROUPS."""
    random = np.random.default_rng(0)
    weight = random.integers(-128, 128, SHAPE, dtype=np.int8)
    scale = random.random((SHAPE[0], groups)).astype(dtype)
    exact = weight * np.repeat(scale.astype(np.float64), SHAPE[1] // groups, axis=1)
    return {"up.weight": weight, "up.weight_scale": scale}, plain("int"), exact


def plain(kind: str) -> dict[str, Any]:
    """Return a config of compressed-tensors for 8 bits of KIND."""
    weights = {"num_bits": 8, "type": kind, "symmetric": True, "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


def eights(*, method: str, scales: Array, section: dict[str, Any]) -> Any:
    """Return E4M3 with SCALES for blocks that divide."""
    random = np.random.default_rng(0)
    weight = random.standard_normal(SHAPE).astype(ml_dtypes.float8_e4m3fn)
    times = tuple(a // b for a, b in zip(SHAPE, scales.shape, strict=True))
    exact = weight.astype(np.float64) * np.kron(scales.astype(np.float64), np.ones(times))
    name = "up.weight_scale" if method == "compressed-tensors" else "up.weight_scale_inv"
    return {"up.weight": weight, name: scales}, {"quant_method": method, **section}, exact


def nf4() -> Any:
    """Return NF4 of bitsandbytes, without scales that are quantized themselves."""
    random, count = np.random.default_rng(0), SHAPE[0] * SHAPE[1]
    codes, table = random.integers(0, 16, count), random.standard_normal(16).astype(np.float32)
    scales = random.random(count // 64).astype(np.float32)
    state = {"blocksize": 64, "shape": list(SHAPE)}
    tensors = {
        "up.weight": (codes[::2] << 4 | codes[1::2]).astype(np.uint8)[:, None],
        "up.weight.absmax": scales,
        "up.weight.quant_map": table,
        "up.weight.quant_state.bitsandbytes__nf4": np.frombuffer(json.dumps(state).encode(), "u1"),
    }
    exact = table[codes].astype(np.float64) * np.repeat(scales.astype(np.float64), 64)
    return tensors, {"quant_method": "bitsandbytes"}, exact.reshape(SHAPE)


def to_mlx() -> Iterator[Cell]:
    """Yield the ways from the formats of Hugging Face to MLX."""
    random = np.random.default_rng(1)
    powers = (2.0 ** random.integers(-9, 9, (2, 2))).astype(np.float32)
    floats = random.random((2, 2)).astype(np.float32)
    mixed = random.permutation(np.arange(SHAPE[1], dtype=np.int32) // 64)
    runs = np.repeat(np.int32([2, 0, 3, 1, 1, 2, 0, 3]), 32)
    four = partial(quantized, Scheme(4, 64), "float16")
    blocks = {"weight_block_size": [32, 128]}
    rows: dict[str, Callable[[], Any]] = {
        "metal": partial(again, "metal", four),
        "compressed-tensors int4": partial(again, "compressed-tensors", four),
        "compressed-tensors int8, a scale a row": partial(integers, groups=1),
        "compressed-tensors int8, groups of 16": partial(integers, groups=16),
        "compressed-tensors int4, float32 scales": partial(
            again, "compressed-tensors", partial(quantized, Scheme(4, 64), "float32")
        ),
        "compressed-tensors fp8, a scale a row": partial(
            eights,
            method="compressed-tensors",
            scales=random.random((SHAPE[0], 1)).astype(ml_dtypes.bfloat16),
            section=plain("float"),
        ),
        "compressed-tensors nvfp4, global scale 1": partial(
            again, "compressed-tensors", partial(quantized, Scheme(4, 16, "nvfp4"), "float32")
        ),
        "compressed-tensors nvfp4, global scale 3": partial(
            again,
            "compressed-tensors",
            partial(quantized, Scheme(4, 16, "nvfp4"), "float32"),
            weight_global_scale=np.float32([3]),
        ),
        "compressed-tensors mxfp4": partial(
            again, "compressed-tensors", partial(quantized, Scheme(4, 32, "mxfp4"), "float32")
        ),
        "compressed-tensors mxfp8": partial(
            again, "compressed-tensors", partial(quantized, Scheme(8, 32, "mxfp8"), "float32")
        ),
        "GPTQ": partial(again, "gptq", four),
        "GPTQ, columns mixed (act-order)": partial(again, "gptq", four, g_idx=mixed),
        "GPTQ, groups mixed as a whole": partial(again, "gptq", four, g_idx=runs),
        "AWQ": partial(again, "awq", four),
        "gpt-oss mxfp4": partial(again, "mxfp4", experts),
        "fp8, scales ue8m0": partial(
            eights, method="fp8", scales=powers.astype(E8M0), section=blocks
        ),
        "fp8, scales ue8m0 in float32": partial(
            eights, method="fp8", scales=powers, section={**blocks, "scale_fmt": "ue8m0"}
        ),
        "fp8, float scales": partial(eights, method="fp8", scales=floats, section=blocks),
        "BitNet": partial(again, "bitnet", ternary),
        "bitsandbytes NF4": nf4,
    }
    for source, make in rows.items():
        yield Cell("to", source, "MLX", partial(read_back, make))


CELLS: list[Callable[[], Iterator[Cell]]] = [from_mlx, to_mlx]
TITLES = {"from": "From MLX", "to": "To MLX"}


def measured() -> dict[str, dict[str, dict[str, Outcome]]]:
    """Return every outcome by table, source and target."""
    found: dict[str, dict[str, dict[str, Outcome]]] = {}
    for cell in (cell for cells in CELLS for cell in cells()):
        found.setdefault(cell.table, {}).setdefault(cell.source, {})[cell.target] = cell.measure()
    return found


def markdown(title: str, rows: dict[str, dict[str, Outcome]]) -> str:
    """Return ROWS as a table of Markdown."""
    targets = list(dict.fromkeys(target for row in rows.values() for target in row))
    lines = [f"| {title} | {' | '.join(targets)} |", f"|---{'|---' * len(targets)}|"]
    for source, row in rows.items():
        cells = [str(row[target]) if target in row else "" for target in targets]
        lines.append(f"| {source} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/quantization.md too")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    found = measured()
    text = "\n\n".join(markdown(TITLES.get(table, table), rows) for table, rows in found.items())
    print(text)
    record = {
        table: {source: {to: str(it) for to, it in row.items()} for source, row in rows.items()}
        for table, rows in found.items()
    }
    arguments.out.write_text(json.dumps(record, indent=2) + "\n")
    if arguments.write:
        marked = r"(<!-- matrix -->\n).*?(<!-- end of matrix -->)"
        page = re.sub(marked, rf"\g<1>\n{text}\n\n\g<2>", PAGE.read_text(), flags=re.DOTALL)
        PAGE.write_text(page)


if __name__ == "__main__":
    main()
