"""Quantize a Llama to 4 bits, against ``mlx_lm convert -q``: time, processor time and peak memory.

    python benchmarks/quantize_speed.py [--gigabytes 1] [--repeat 5] [--methods mlx search]

All are whole processes, in turns. Each also quantizes a Llama of some kilobytes, and that time, its
start-up, is taken off. Weights are random, of realistic gain, in bfloat16; the tokenizer is a tiny
one, which mlx-lm needs. ``mlx`` writes the bytes that mlx-lm does, which is looked at; ``search`` is
the default. No check in either. Writes ``results/quantize_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np

from weighbridge.converters.checkpoints import Header, Writer, open_checkpoint
from weighbridge.tests.support.large_models import KINDS, Kind, layout_of, size_of
from weighbridge.tests.support.side_by_side import UNMEASURED, Run, environment, machine, run

RESULT: Final = Path(__file__).parent / "results" / "quantize_speed.json"
NOISE: Final = 1 << 25  # numbers that are used again, from another place on for each tensor
SMALL: Final = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 64}
SHIFT: Final = 8198
METHODS: Final = ("mlx", "search")


def make(folder: Path, kind: Kind, layers: int) -> int:
    """Write a Llama of LAYERS with a tokenizer into FOLDER; return its bytes."""
    layout = layout_of(kind, layers)
    noise = np.random.default_rng(0).standard_normal(NOISE, np.float32)
    folder.mkdir()
    writer = Writer(folder, layout, metadata={"format": "mlx"}, max_shard_size=5_000_000_000)
    for number, (name, header) in enumerate(layout.items()):
        writer.write(name, values(noise, number, header))
    writer.close()
    config = kind.config | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    add_tokenizer(folder)
    return size_of(layout)


def values(noise: Any, number: int, header: Header) -> Any:
    """Return a tensor: a norm near one, a matrix of gain 1.5."""
    count, start = int(np.prod(header.shape)), number * SHIFT % (NOISE // 2)
    some = np.resize(noise[start:], count).reshape(header.shape)
    wide = 1 + 0.1 * some if some.ndim == 1 else 1.5 * header.shape[-1] ** -0.5 * some
    return wide.astype(ml_dtypes.bfloat16)


def add_tokenizer(folder: Path) -> None:
    """Put a tokenizer of a few words into FOLDER."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = {"<s>": 0, "a": 1, "b": 2}
    model = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<s>").save_pretrained(folder)


def commands(source: Path, target: Path, methods: Sequence[str]) -> dict[str, list[str]]:
    """Return the command lines that quantize SOURCE into TARGET, by mlx-lm and by our METHODS."""
    theirs = [sys.executable, "-m", "mlx_lm", "convert", "--hf-path", str(source)]
    ours = [sys.executable, "-m", "weighbridge", "quantize", str(source), str(target)]
    found = {"mlx-lm": [*theirs, "--mlx-path", str(target), "-q", "--q-bits", "4"]}
    for method in methods:
        found[method] = [*ours, "--bits", "4", "--check", "none", "--method", method]
    return found


def measured(
    source: Path, tiny: Path, repeat: int, methods: Sequence[str]
) -> dict[str, list[tuple[Run, Run]]]:
    """Quantize SOURCE and TINY in turns REPEAT times; return both runs of each, by name."""
    target = source.with_name("target")
    variables = environment(source.parent)
    runs: dict[str, list[tuple[Run, Run]]] = {}
    for number in range(-UNMEASURED, repeat):
        kept: dict[str, Mapping[str, bytes]] = {}
        smalls = commands(tiny, target, methods)
        for name, large in commands(source, target, methods).items():
            small = smalls[name]
            start = run(small, variables)
            shutil.rmtree(target)
            whole = run(large, variables)
            if number == -UNMEASURED and name in ("mlx-lm", "mlx"):
                kept[name] = tensors(target)
            shutil.rmtree(target)
            if number >= 0:
                runs.setdefault(name, []).append((whole, start))
        if "mlx" in kept and kept["mlx-lm"] != kept["mlx"]:
            sys.exit("mlx-lm and --method mlx wrote different tensors")
    return runs


def tensors(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every tensor in FOLDER, hashed."""
    import hashlib

    found = open_checkpoint(folder)
    return {name: hashlib.sha256(found.read(name)).digest() for name in found.headers}


def summarise(runs: Mapping[str, list[tuple[Run, Run]]], nbytes: int) -> dict[str, Any]:
    """Return medians by name, start-up taken off, and how many times faster than mlx-lm each is."""
    found: dict[str, Any] = {}
    for name, pairs in runs.items():
        seconds = statistics.median(whole.seconds - start.seconds for whole, start in pairs)
        processor = statistics.median(whole.processor - start.processor for whole, start in pairs)
        found[name] = {
            "seconds": round(seconds, 3),
            "processor_seconds": round(processor, 3),
            "startup_seconds": round(statistics.median(it.seconds for _, it in pairs), 3),
            "peak_megabytes": round(max(whole.megabytes for whole, _ in pairs), 1),
            "all_seconds": [round(whole.seconds - start.seconds, 3) for whole, start in pairs],
        }
    for it in found.values():
        for key in ("seconds", "processor_seconds"):
            it[f"times_faster_by_{key}"] = round(found["mlx-lm"][key] / it[key], 2)
    return {"gigabytes": round(nbytes / 1e9, 3), "commands": found}


def show(result: Mapping[str, Any]) -> None:
    """Print RESULT, a line for each command."""
    print(f"Llama to 4 bits, {result['gigabytes']} GB, start-up taken off")
    for name, it in result["commands"].items():
        times = it["all_seconds"]
        print(
            f"  {name:7} {it['seconds']:7.3f} s ({min(times):.3f} to {max(times):.3f})"
            f"  {it['times_faster_by_seconds']:5.2f} x as fast;"
            f"  {it['processor_seconds']:7.3f} s of processor"
            f"  {it['times_faster_by_processor_seconds']:5.2f} x;"
            f"  peak {it['peak_megabytes']:6.1f} MB; start-up {it['startup_seconds']:.2f} s"
        )


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    llama = KINDS["llama"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fixed, one = (size_of(layout_of(llama, layers)) for layers in (0, 1))
        layers = max(1, round((arguments.gigabytes * 1e9 - fixed) / (one - fixed)))
        nbytes = make(folder / "large", llama, layers)
        make(folder / "tiny", llama._replace(config=llama.config | SMALL), 1)
        runs = measured(folder / "large", folder / "tiny", arguments.repeat, arguments.methods)
    document = summarise(runs, nbytes) | {"machine": machine()}
    show(document)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
