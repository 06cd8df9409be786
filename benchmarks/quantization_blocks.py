"""What becomes of MLX's quantized weights in GGUF, ONNX and Core ML, and of GGUF's in MLX.

    python benchmarks/quantization_blocks.py [--write]

Every cell stores a small weight and compares its values in float64: exact, near or lossy (the largest
difference in steps of a group, from a tenth of one on it is lossy), or refused. GGUF is decoded by llama.cpp's own library,
ONNX and Core ML by the formulas of their operators, as ``tests/converters/quantization/constants`` holds
against ONNX's evaluator and coremltools. Prints the tables and writes ``results/quantization_blocks.json``;
with ``--write`` also into ``docs/quantization.md``.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from weighbridge.converters.gguf.blocks import BLOCKS, decoded, encoded, route, routes
from weighbridge.converters.quantization import Blocks, Scheme, quantize
from weighbridge.converters.quantization.constants import coreml, onnx
from weighbridge.errors import UnsupportedError

RESULT = Path(__file__).parent / "results" / "quantization_blocks.json"
PAGE = Path(__file__).parent.parent / "docs" / "quantization.md"
SHAPE: Final = (64, 256)
SIZES: Final = (32, 64, 128)
WIDTHS: Final = (2, 3, 4, 5, 6, 8)
DTYPES: Final = ("float16", "bfloat16", "float32")
OTHERS: Final = ("Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS")
NEAR: Final = 0.1  # steps, as in quantization_matrix.py
Array = Any


def weights(scheme: Scheme, dtype: str) -> Blocks:
    """Return a weight as MLX quantizes it, its scales in DTYPE."""
    random = np.random.default_rng(0)
    values = random.standard_normal(SHAPE) * np.exp(random.standard_normal((SHAPE[0], 1)))
    return Blocks(quantize(values.astype(np.float32), scheme, dtype), scheme)


def steps(values: Array, blocks: Blocks) -> float:
    """Return how far VALUES are from BLOCKS; in steps of their groups where these are affine."""
    off = np.abs(values - blocks.values())
    if blocks.scheme.affine:
        scales = np.abs(blocks.parts["scales"].astype(np.float64))
        off = off / np.repeat(scales, blocks.scheme.group_size, axis=-1)
    return float(off.max())


def in_gguf(blocks: Blocks) -> tuple[str, float]:
    """Return the type that holds BLOCKS best, and how far its values are by llama.cpp's library."""
    tried = [route(blocks.parts, blocks.scheme, kind) for kind in routes(blocks.scheme, SHAPE[1])]
    tried = [each for each in tried if np.isfinite(each.error)]
    if not tried:
        raise UnsupportedError("no type keeps the codes")
    kind = min(tried, key=lambda each: each.error).kind
    found = gguf.dequantize(encoded(blocks, kind), gguf.GGMLQuantizationType[kind])
    same = np.array_equal(found, blocks.dense())  # both round to float32, once
    return kind, 0.0 if same else steps(found, blocks)


def in_linear(blocks: Blocks) -> tuple[str, float]:
    """Return how far ``DequantizeLinear`` and ``Add`` are from BLOCKS."""
    found = onnx.linear(blocks)
    scales, biases = (it.astype(np.float64)[..., None] for it in (found.scales, found.biases))
    worth = found.x.reshape(*found.scales.shape, -1) * scales + biases
    return f"UINT{found.bits}", steps(worth.reshape(SHAPE), blocks)


def in_matmul(blocks: Blocks) -> tuple[str, float]:
    """Return how far ``MatMulNBits``, and what is added to blocks, is from BLOCKS."""
    found = onnx.matmul(blocks)
    return f"{found.bits} bits", steps(found.values(), blocks)


def in_shift(blocks: Blocks) -> tuple[str, float]:
    """Return how far ``constexpr_blockwise_shift_scale`` is from BLOCKS."""
    found = coreml.shift(blocks)
    return f"uint{found.bits}", steps(found.values(), blocks)


def in_table(blocks: Blocks) -> tuple[str, float]:
    """Return how far a table of values is from BLOCKS."""
    return "", steps(coreml.table(blocks).values(), blocks)


TARGETS: Final[dict[str, Callable[[Blocks], tuple[str, float]]]] = {
    "GGUF": in_gguf,
    "ONNX DequantizeLinear + Add": in_linear,
    "ONNX MatMulNBits": in_matmul,
    "Core ML shift and scale": in_shift,
    "Core ML tables": in_table,
}


def cell(make: Callable[[Blocks], tuple[str, float]], many: list[Blocks]) -> str:
    """Return the worst outcome of MANY weights as text."""
    try:
        found = [make(blocks) for blocks in many]
    except UnsupportedError:
        return "refused"
    error, kinds = max(each for _, each in found), sorted({kind for kind, _ in found if kind})
    word = "near" if error < NEAR else "lossy"
    said = f"{word} {error:.2g}" if error else "exact"
    return f"{said} ({', '.join(kinds)})" if kinds else said


def from_mlx() -> dict[str, dict[str, str]]:
    """Return what becomes of every scheme of MLX, group sizes taken together."""
    sources = {
        f"{bits}-bit, {dtype}": [weights(Scheme(bits, size), dtype) for size in SIZES]
        for dtype in DTYPES
        for bits in WIDTHS
    }
    for mode in ("mxfp4", "mxfp8", "nvfp4"):
        sources[mode] = [weights(Scheme.of({"mode": mode}), "float32")]
    return {
        source: {target: cell(make, many) for target, make in TARGETS.items()}
        for source, many in sources.items()
    }


def from_gguf() -> dict[str, dict[str, str]]:
    """Return what becomes of the types of GGUF in MLX."""
    found = {kind: {"MLX": read(kind)} for kind in BLOCKS}
    return found | {kind: {"MLX": "dense, float32"} for kind in OTHERS}


def read(kind: str) -> str:
    """Return how near MLX's parts are to blocks of KIND, which are random bytes and sound scales."""
    random = np.random.default_rng(0)
    record = BLOCKS[kind].record
    blocks = np.frombuffer(random.bytes(SHAPE[0] * record.itemsize), record).copy()
    if blocks["d"].dtype == np.float16:
        for part in {"d", "m"} & set(record.names or ()):
            blocks[part] = random.normal(size=blocks.shape).astype(np.float16)
    else:
        blocks["d"] = random.integers(100, 120, blocks["d"].shape)
    rows = blocks.view(np.uint8).reshape(SHAPE[0], -1)
    made = decoded(rows, kind)
    theirs = gguf.dequantize(rows, gguf.GGMLQuantizationType[kind])
    same = np.array_equal(made.dense(), theirs)
    return f"exact ({made.scheme}, {made.parts['scales'].dtype} scales)" if same else "differs"


def markdown(title: str, rows: dict[str, dict[str, str]]) -> str:
    """Return ROWS as a table of Markdown."""
    targets = list(next(iter(rows.values())))
    lines = [f"| {title} | {' | '.join(targets)} |", f"|---{'|---' * len(targets)}|"]
    return "\n".join(
        lines + [f"| {name} | {' | '.join(row.values())} |" for name, row in rows.items()]
    )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/quantization.md too")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    found = {"From MLX": from_mlx(), "From GGUF": from_gguf()}
    text = "\n\n".join(markdown(title, rows) for title, rows in found.items())
    print(text)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if arguments.write:
        marked = r"(<!-- blocks -->\n).*?(<!-- end of blocks -->)"
        page = PAGE.read_text(encoding="utf-8")
        page = re.sub(marked, rf"\g<1>\n{text}\n\n\g<2>", page, flags=re.DOTALL)
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
