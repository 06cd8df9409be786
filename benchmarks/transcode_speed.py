"""Time 4-bit models of MLX written in another format, code for code, against ``cp``.

    python benchmarks/transcode_speed.py [--gigabytes 4] [--repeat 5]

A Llama with the proportions of Llama 3 8B, random codes, groups of 64, float16 scales, whose middle
code is zero, so that both formats hold it. No check, as in ``copy_speed.py``; ``with its check`` reads
the GGUF file again through llama.cpp's own library. compressed-tensors holds no embeddings: they are
written dense, in 16 bits. Writes ``results/transcode_speed.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np

from weighbridge.converters.checkpoints import Header, Writer
from weighbridge.converters.gguf import GgufFile, Plan, write
from weighbridge.converters.gguf.choosing import Choice
from weighbridge.converters.gguf.header import Stored
from weighbridge.converters.gguf.names import Pairing
from weighbridge.converters.gguf.plan import Made
from weighbridge.converters.gguf.proof import Proof
from weighbridge.converters.gguf.rules import RULES, Wanted
from weighbridge.converters.models import open as open_model
from weighbridge.converters.quantization import Dequantized, Scheme, layout
from weighbridge.tests.support.large_models import KINDS, Kind, layout_of
from weighbridge.tests.support.side_by_side import convert, cp, machine, measure, show, summarise

RESULT = Path(__file__).parent / "results" / "transcode_speed.json"
SCHEME: Final = Scheme(4, 64)
SIZES: Final = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
METHOD: Final = "compressed-tensors"
MIDDLE: Final = 8  # of the codes of 4 bits
BLOCK: Final = 16 << 20  # bytes of random numbers, used again
NAMES: Final = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OUTSIDE: Final = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def kind() -> Kind:
    """Return a Llama with the proportions of Llama 3 8B."""
    llama = KINDS["llama"]
    return llama._replace(config=llama.config | SIZES)


def stored_layout(layers: int) -> dict[str, Header]:
    """Return the tensors of the quantized model with so many LAYERS."""
    found: dict[str, Header] = {}
    for name, header in layout_of(kind(), layers).items():
        dense = len(header.shape) < 2
        found |= (
            {name: Header("F16", header.shape)}
            if dense
            else layout(name, header.shape, SCHEME, "F16")
        )
    return found


def make_model(folder: Path, nbytes: float) -> int:
    """Write a quantized model of about NBYTES to FOLDER; return its bytes."""
    fixed, one = (sum(it.nbytes for it in stored_layout(n).values()) for n in (0, 1))
    layers = max(1, round((nbytes - fixed) / (one - fixed)))
    headers = stored_layout(layers)
    folder.mkdir()
    writer = Writer(folder, headers, metadata={"format": "mlx"})
    random = np.random.default_rng(0)
    noise = memoryview(os.urandom(BLOCK) * 2)
    numbers = random.normal(size=BLOCK // 2).astype(np.float16)
    scales = memoryview(np.tile(numbers, 2)).cast("B")
    biases = memoryview(np.tile(numbers * np.float16(-MIDDLE), 2)).cast("B")
    for number, (name, header) in enumerate(headers.items()):
        pool = noise if header.dtype == "U32" else scales
        own = (biases, number - 1) if name.endswith(".biases") else (pool, number)
        writer.write(name, pieces(*own, header.nbytes))
    writer.close()
    section = SCHEME.record
    config = kind().config | {"num_hidden_layers": layers, "quantization": section}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return sum(header.nbytes for header in headers.values())


def pieces(pool: memoryview, number: int, nbytes: int) -> Any:
    """Yield NBYTES of POOL, from another place on for each NUMBER."""
    start = number * 4096 % BLOCK
    for done in range(0, nbytes, BLOCK):
        yield pool[start : start + min(BLOCK, nbytes - done)]


def make_like(path: Path, source: Path) -> None:
    """Write the GGUF file of the base of the model in SOURCE to PATH, as llama.cpp lays it out.

    It has the same numbers, so that the export finds what it looks for; only samples are read.
    """
    model = open_model(str(source))
    dense = Dequantized(model.checkpoint, model.config)
    metadata = path.with_suffix(".metadata")
    writer = gguf.GGUFWriter(metadata, "llama")
    writer.add_block_count(model.config["num_hidden_layers"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    like = GgufFile(metadata)
    made = {gguf_name(name): made_of(name, dense) for name in dense.headers}
    nothing = Pairing({}, (), {}, (), ())
    write(path, Plan(like, made, like.fields, nothing, Proof({}, 0, 0, 0, ()), ""), dense)
    metadata.unlink()


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of the tensor NAME."""
    stem = name.removesuffix(".weight")
    if stem in OUTSIDE:
        return f"{OUTSIDE[stem]}.weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.weight"


def made_of(name: str, dense: Dequantized) -> Made:
    """Return how the tensor NAME lies in the file."""
    rules = {rule.name: rule for rule in RULES}
    shape = dense.headers[name].shape
    heads = {"q_proj": SIZES["num_attention_heads"], "k_proj": SIZES["num_key_value_heads"]}
    own = next((count for part, count in heads.items() if f".{part}." in name), None)
    rule = rules["heads interleaved" if own else "same"]
    if len(shape) < 2:
        return Made(Stored("F32", shape), (name,), rule, Wanted(shape))
    choice = Choice("Q4_1", codes=True)
    return Made(Stored("Q4_1", shape), (name,), rule, Wanted(shape, own), choice)


def export(source: Path, target: Path, like: Path, *more: str) -> list[str]:
    """Return the command that writes SOURCE to a file in the new folder TARGET."""
    tool = [sys.executable, "-m", "weighbridge", "export", "gguf", source, target / "a.gguf"]
    words = [*tool, "--like", like, "--type", "Q4_1", *more]
    return ["sh", "-c", f"mkdir {shlex.quote(str(target))} && exec {shlex.join(map(str, words))}"]


def compare(folder: Path, gigabytes: float, repeat: int, *, checked: bool) -> dict[str, Any]:
    """Make a model of about GIGABYTES in FOLDER and time what transcodes it."""
    source, target, like = folder / "source", folder / "target", folder / "base.gguf"
    nbytes = make_model(source, gigabytes * 1e9)
    make_like(like, source)
    commands = {
        "cp": cp(source, target),
        "GGUF Q4_1": export(source, target, like, "--check", "none"),
        METHOD: convert("mlx-to-torch", source, target, "--quant-method", METHOD),
    }
    if checked:
        commands["with its check"] = export(source, target, like)
    return summarise(measure(commands, target, repeat), nbytes)


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[4])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--checked", action="store_true", help="Time the file's check too.")
    parser.add_argument("--folder", type=Path, help="Where the models are made.")
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    results = []
    for gigabytes in arguments.gigabytes:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
            found = compare(Path(name), gigabytes, arguments.repeat, checked=arguments.checked)
        results.append(found)
        show("4-bit Llama, transcoded", found)
    document = {"sizes": results, "machine": machine()}
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
