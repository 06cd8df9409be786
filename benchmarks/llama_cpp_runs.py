"""Run what `weighbridge export gguf` writes in llama.cpp itself, and compare its logits with transformers'.

    python benchmarks/llama_cpp_runs.py [LLAMA_CPP] [--quantize PROGRAM] [--only FAMILY ...]

Needs the binding `llama_cpp` (llama-cpp-python), and LLAMA_CPP, a checkout of llama.cpp such as
``vendor/llama.cpp`` of that package's sdist, whose convert_hf_to_gguf.py makes the base files.
With ``--quantize``, its llama-quantize, files in its blocks come in and go out again too.

Every family is a random model whose numbers are spread as trained ones are. It goes out as it is
in four types, and quantized by MLX in several; each file is checked by `parity check`. Of each the
table has the verdict, how far the float32 run is from float64 as a multiple of what PyTorch's own
float32 run is, and how far the file as it ships moves the logits besides. Writes
``results/llama_cpp_runs.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gguf_handover import FAMILIES as HANDED
from gguf_handover import Family, Scripts, failure, family, save_bytes, save_words
from null_cases import like_trained

RESULT = Path(__file__).parent / "results" / "llama_cpp_runs.json"
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
GEMMA = {"query_pre_attn_scalar": 64, "sliding_window": 64}
GPT_OSS = {
    "layer_types": ["sliding_attention", "full_attention"],
    "sliding_window": 64,
    "rope_scaling": None,
    "pad_token_id": 0,
}


def sized(row: Family, **more: Any) -> Family:
    """Return ROW in sizes of which blocks of 256 are made."""
    return row._replace(config={**row.config, **SIZES, **more})


FAMILIES: dict[str, Family] = {
    "llama": sized(HANDED["llama"]),
    "llama 3 rope, tied, biases": sized(HANDED["llama 3 rope, tied, biases"]),
    "mistral": sized(family("Mistral", {"sliding_window": 64}, "f32")),
    "qwen2": sized(family("Qwen2", {"tie_word_embeddings": True}, "f32", words=False)),
    "qwen3": sized(HANDED["qwen3"]),
    "gemma": sized(family("Gemma", {}, "f32")),
    "gemma2": sized(family("Gemma2", GEMMA, "f32")),
    "gemma3": sized(HANDED["gemma3"], sliding_window=64, query_pre_attn_scalar=64),
    "mixtral": sized(HANDED["mixtral"]),
    "qwen3_moe": sized(HANDED["qwen3_moe"], moe_intermediate_size=256),
    "phi3": sized(family("Phi3", {"pad_token_id": 0}, "f32")),
    "granite": sized(family("Granite", {"attention_multiplier": 0.125}, "f32")),
    "olmo2": sized(family("Olmo2", {}, "f32", words=False)),
    "starcoder2": sized(family("Starcoder2", {}, "f32", words=False)),
    "gpt2": HANDED["gpt2"]._replace(
        config={**HANDED["gpt2"].config, "n_embd": 256, "n_positions": 512, "n_ctx": 512}
    ),
    "gpt_oss": sized(family("GptOss", {**EXPERTS, **GPT_OSS}, "f32", words=False)),
}
DENSE = ("F32", "F16", "BF16", "Q8_0")
# What MLX is asked for, and what `export gguf` is besides.
QUANTIZED: dict[str, tuple[list[str], list[str]]] = {
    "4 bits": (["--bits", "4"], []),
    "4 bits, as Q4_0": (["--bits", "4"], ["--type", "Q4_0", "--allow-lossy"]),
    "5 bits": (["--bits", "5"], []),
    "8 bits": (["--bits", "8"], ["--allow-lossy"]),
    "mxfp4": (["--mode", "mxfp4"], []),
    "nvfp4": (["--mode", "nvfp4"], []),
}
WHOLE = (
    "llama",
    "qwen3_moe",
)  # families of which all cases are run; of others one dense and one quantized
BLOCKS = ("Q4_0", "Q5_0", "Q4_K_S")  # that come in from llama-quantize, and go out again


def make_base(row: Family, folder: Path) -> None:
    """Save a random bfloat16 model of ROW in FOLDER, its numbers spread as trained ones are."""
    import torch
    import transformers

    folder.mkdir(parents=True)
    prefix, config, head = row.classes
    size = (save_words if row.words else save_bytes)(folder) + row.config.get("vocab_size", 0)
    kind = "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}{config}"
    said = getattr(transformers, kind)(**{**row.config, "vocab_size": size})
    model = getattr(transformers, f"{prefix}{head}")(said)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(like_trained(name, parameter, generator, prefix.startswith("Gemma")))
    model.to(torch.bfloat16).save_pretrained(folder)


def checked(source: Path, file: Path) -> dict[str, Any]:
    """Return what a check of FILE against SOURCE found."""
    from weighbridge.errors import WeighbridgeError
    from weighbridge.jobs.options import CheckOptions
    from weighbridge.jobs.parity import check

    try:
        verdict = check(str(source), str(file), options=CheckOptions(check="quick"))
    except WeighbridgeError as error:
        return {"verdict": "refused", "why": re.sub(r"/\S*/", "", str(error))}
    stages = {stage.name: stage for stage in verdict.stages}
    found: dict[str, Any] = {"verdict": verdict.status}
    for name in ("structure", "precision"):
        rows = stages[name].figures.get("rows", ()) if name in stages else ()
        if rows:
            worst = max(rows, key=lambda it: it["ratio"])
            found[name] = {part: worst[part] for part in ("ratio", "error")}
    if "activations" in stages:
        found["moved"] = stages["activations"].figures["moved"]["logits"]
    wrong = [
        f"{it.name}: {it.detail}" for it in verdict.stages if it.status in ("fail", "unverified")
    ]
    return found | ({"why": wrong} if wrong else {})


def tool(*words: Any) -> str:
    """Run weighbridge; return what went wrong."""
    import click

    from weighbridge.cli import main as command
    from weighbridge.errors import WeighbridgeError

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            command([*map(str, words)], standalone_mode=False)
    except (WeighbridgeError, click.ClickException) as error:
        return re.sub(r"/\S*/", "", " ".join(str(error).split()))  # no folder of ours
    except SystemExit as end:
        return "" if not end.code else f"exit {end.code}"
    return ""


def exports(
    base: Path, like: Path, folder: Path, most: int | None
) -> Iterator[tuple[str, Path, Path, str]]:
    """Yield case, source, file and what went wrong of exports of the model in BASE: the first MOST of each kind."""
    for kind in DENSE[:most]:
        file = folder / f"dense-{kind}.gguf"
        yield f"dense, {kind}", base, file, exported(base, file, like, "--type", kind)
    for name, (bits, more) in list(QUANTIZED.items())[:most]:
        source = folder / f"mlx {' '.join(bits)}"
        said = "" if source.is_dir() else tool("quantize", base, source, *bits, "--check", "none")
        file = folder / f"{name}.gguf"
        yield f"MLX, {name}", source, file, said or exported(source, file, like, *more)


def exported(source: Path, file: Path, like: Path, *more: str) -> str:
    """Export SOURCE to FILE; return what went wrong."""
    return tool("export", "gguf", source, file, "--like", like, "--check", "none", *more)


def around(base: Path, like: Path, folder: Path, quantize: Path) -> Iterator[Any]:
    """Yield the same of files that QUANTIZE made, which come in and go out again."""
    for kind in BLOCKS:
        theirs, mlx = folder / f"theirs-{kind}.gguf", folder / f"from-{kind}"
        said = failure([str(quantize), str(like), str(theirs), kind])
        yield f"llama-quantize's {kind}", base, theirs, said
        said = said or tool(
            "convert", "gguf-to-mlx", theirs, mlx, "--like", base, "--check", "none"
        )
        file = folder / f"again-{kind}.gguf"
        yield f"{kind} in and out", mlx, file, said or exported(mlx, file, like)


def types(file: Path) -> str:
    """Return the types of the matrices in FILE."""
    from weighbridge.converters.gguf import GgufFile

    found = {it.type for it in GgufFile(file).tensors.values() if len(it.shape) > 1}
    return ", ".join(sorted(found))


def run(name: str, scripts: Scripts, folder: Path, quantize: Path | None) -> dict[str, Any]:
    """Return what is measured of the family NAME, by case."""
    row, base, like = FAMILIES[name], folder / "base" / "tuned", folder / "base.gguf"
    make_base(row, base)
    if said := scripts.model(row, base, like, "f32"):
        found = {"convert_hf_to_gguf.py": {"verdict": "not made", "why": said}}
        show(name, *next(iter(found.items())))
        return found
    found: dict[str, Any] = {}
    whole = name in WHOLE
    cases = [exports(base, like, folder, None if whole else 1)]
    cases += [around(base, like, folder, quantize)] if quantize and whole else []
    for case, source, file, said in (it for some in cases for it in some):
        found[case] = (
            {"verdict": "not made", "why": said}
            if said
            else checked(source, file) | {"types": types(file)}
        )
        show(name, case, found[case])
    return found


def show(name: str, case: str, row: dict[str, Any]) -> None:
    """Print one ROW."""
    numbers = [
        f"{row[it]['ratio']:.2f} ({row[it]['error']:.1e})"
        for it in ("structure", "precision")
        if it in row
    ]
    numbers += [f"moves {row['moved']:.1e}"] if "moved" in row else []
    print(
        f"{name:28} {case:24} {row.get('types', ''):16} {row['verdict']:12} {'; '.join(numbers)}",
        flush=True,
    )
    if row["verdict"] not in ("PASS", "UNVERIFIED") or ("why" in row and "moved" not in row):
        print(f"    {row.get('why')}", flush=True)


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path, nargs="?", help="A checkout of llama.cpp.")
    parser.add_argument("--quantize", type=Path, help="Its llama-quantize.")
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.llama_cpp is None or find_spec("llama_cpp") is None:
        print("not run: needs the binding llama_cpp and a checkout of llama.cpp")
        return
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    scripts = Scripts(arguments.llama_cpp.resolve(), None)
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            keep(arguments.out, {name: run(name, scripts, Path(folder), arguments.quantize)})


def keep(out: Path, found: dict[str, Any]) -> None:
    """Put what was FOUND of some families into the file OUT."""
    import llama_cpp

    known = json.loads(out.read_text())["families"] if out.is_file() else {}
    packages = ("gguf", "mlx", "torch", "transformers")
    versions = {it: version(it) for it in packages} | {"llama-cpp-python": llama_cpp.__version__}
    document = {
        "families": {name: (known | found)[name] for name in FAMILIES if name in known | found},
        "versions": versions,
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
