"""Hand tuned models over to llama.cpp by its own scripts, and ask its own engine what they answer.

    python benchmarks/gguf_handover.py LLAMA_CPP [--library FOLDER] [--only FAMILY ...]

LLAMA_CPP is a checkout of llama.cpp, such as ``vendor/llama.cpp`` of llama-cpp-python's sdist.
With ``--library``, the folder of a built libllama, files are run too, through the bindings of that
sdist, and compared with transformers and PEFT.

For every family a PEFT adapter is merged; the merged directory goes through convert_hf_to_gguf.py,
and through ``export gguf --like`` the file of the base. Adapters go from PEFT to MLX and back with
``--for llama.cpp`` and through convert_lora_to_gguf.py. Writes ``results/gguf_handover.json``.

The script that converts models recognises a byte-level tokenizer by a hash of what it makes of a
text, and no made vocabulary has a known one; for those families that question is answered here.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import types
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

RESULT = Path(__file__).parent / "results" / "gguf_handover.json"
TOOL = [sys.executable, "-m", "weighbridge"]
TOKENS = [3, 17, 250, 42, 99, 7, 130, 201]
ANSWERED = """
import runpy, sys
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
sys.argv = sys.argv[1:]
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
GPT2 = {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_ctx": 128}
GPT2 |= {"bos_token_id": 0, "eos_token_id": 0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"moe_intermediate_size": 96, "num_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS["norm_topk_prob"] = True  # llama.cpp knows no other qwen3_moe, nor is one published
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STACKED = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
ATTENTION = {"target_modules": ["q_proj", "k_proj"]}


class Family(NamedTuple):
    """A tiny model.

    Attributes:
        classes: prefix of its classes in transformers, and their ending.
        config: what its configuration says.
        words: whether its tokenizer is SentencePiece's; byte-level otherwise.
        type: of its GGUF file.
        merged: the adapter that is merged into it.
        alone: the adapters that are handed over alone.
    """

    classes: tuple[str, str, str]
    config: dict[str, Any]
    words: bool
    type: str
    merged: dict[str, Any]
    alone: dict[str, dict[str, Any]]


def family(prefix: str, config: dict[str, Any], kind: str, **changed: Any) -> Family:
    """Return a family with the usual adapters."""
    row = {"words": True, "merged": {"target_modules": LINEAR}}
    row |= {"alone": {"all linear": {"target_modules": LINEAR}}, **changed}
    return Family((prefix, "Config", "ForCausalLM"), {**SIZES, **config}, type=kind, **row)


FAMILIES = {
    "llama": family(
        "Llama",
        {},
        "f16",
        alone={
            "all linear": {"target_modules": LINEAR},
            "rsLoRA": {"target_modules": LINEAR, "use_rslora": True},
            "alpha_pattern": {"target_modules": LINEAR, "alpha_pattern": {"q_proj": 32}},
            "rank_pattern": {"target_modules": LINEAR, "rank_pattern": {"down_proj": 2}},
            "embedding, head": {"target_modules": ["embed_tokens", "q_proj", "lm_head"]},
            "DoRA": {"target_modules": LINEAR, "use_dora": True},
        },
    ),
    "llama 3 rope, tied, biases": family(
        "Llama",
        {"attention_bias": True, "tie_word_embeddings": True, "rope_scaling": LLAMA3},
        "bf16",
        words=False,
    ),
    "qwen3": family("Qwen3", {}, "q8_0"),
    "gemma3": family(
        "Gemma3", {"sliding_window": 64, "query_pre_attn_scalar": 16, "vocab_size": 8}, "bf16"
    ),
    "gpt2": Family(
        ("GPT2", "Config", "LMHeadModel"),
        GPT2,
        False,
        "f16",
        {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True},
        {},
    ),
    "mixtral": family(
        "Mixtral",
        EXPERTS,
        "bf16",
        merged={**ATTENTION, "target_parameters": STACKED},
        alone={"attention": ATTENTION, "experts": {**ATTENTION, "target_parameters": STACKED}},
    ),
    "qwen3_moe": family(
        "Qwen3Moe",
        QWEN_EXPERTS,
        "q8_0",
        words=False,
        merged={**ATTENTION, "target_parameters": STACKED},
        alone={"attention": ATTENTION},
    ),
}


def text() -> list[str]:
    """Return sentences to make a vocabulary of."""
    words = "the of and to in is that it was for on are as with his they at be this from have"
    return [f"{word}{number} {words}" for number in range(200) for word in ("alpha", "beta")]


def save_words(folder: Path) -> int:
    """Save a SentencePiece tokenizer in FOLDER; return the size of its vocabulary."""
    import sentencepiece

    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text()),
        model_writer=data,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(data.getvalue())
    return int(sentencepiece.SentencePieceProcessor(model_proto=data.getvalue()).vocab_size())


def save_bytes(folder: Path) -> int:
    """Save a byte-level tokenizer in FOLDER; return the size of its vocabulary."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    end = "<|endoftext|>"
    made = ByteLevelBPETokenizer()
    made.train_from_iterator(text(), vocab_size=320, special_tokens=[end], show_progress=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, eos_token=end, bos_token=end)
    fast.save_pretrained(folder)
    return len(fast)


def make_base(row: Family, folder: Path) -> None:
    """Save a random bfloat16 model of ROW in FOLDER."""
    import torch
    import transformers

    folder.mkdir(parents=True)
    prefix, config, head = row.classes
    size = (save_words if row.words else save_bytes)(folder) + row.config.get("vocab_size", 0)
    kind = "Gemma3TextConfig" if prefix == "Gemma3" else f"{prefix}{config}"
    said = getattr(transformers, kind)(**{**row.config, "vocab_size": size})
    torch.manual_seed(1)
    model = getattr(transformers, f"{prefix}{head}")(said)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            one = float(name.endswith("norm.weight") and prefix != "Gemma3")
            parameter.copy_(0.2 * torch.randn_like(parameter) + one)
    model.to(torch.bfloat16).save_pretrained(folder)


def load(folder: Path) -> Any:
    """Return the model in FOLDER in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def answer(model: Any) -> Any:
    """Return what MODEL answers, shape ``(tokens, vocabulary)``."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def make_adapter(base: Path, settings: dict[str, Any], folder: Path) -> Any:
    """Save a random PEFT adapter of BASE in FOLDER; return what it answers live."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(2)
    model = get_peft_model(load(base), LoraConfig(r=4, lora_alpha=8, **settings)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name and "magnitude" not in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return answer(model)


class Engine:
    """llama.cpp itself, on the processor and in float32."""

    def __init__(self, library: Path, sdist: Path) -> None:
        """Load the libllama in LIBRARY by the bindings in SDIST."""
        os.environ["LLAMA_CPP_LIB_PATH"] = str(library.resolve())
        package = types.ModuleType("llama_cpp")  # its own __init__ needs more than the bindings
        package.__path__ = [str(sdist / "llama_cpp")]
        sys.modules["llama_cpp"] = package
        import llama_cpp.llama_cpp as lib

        self.lib = lib
        self.silent = lib.llama_log_callback(lambda *_: None)  # kept alive
        lib.llama_backend_init()
        lib.llama_log_set(self.silent, ctypes.c_void_p(0))

    def __call__(self, path: Path, adapter: Path | None = None) -> Any:
        """Return what the file at PATH answers, with the file ADAPTER live on it."""
        lib = self.lib
        model = lib.llama_model_load_from_file(str(path).encode(), lib.llama_model_default_params())
        context = lib.llama_init_from_model(model, self.settings())
        if adapter:
            self.attach(model, context, adapter)
        if lib.llama_decode(context, self.batch()):
            raise RuntimeError(f"llama.cpp does not run {path}")
        found = self.logits(model, context)
        lib.llama_free(context)
        lib.llama_model_free(model)
        return found

    def settings(self) -> Any:
        """Return settings of a context in float32."""
        made = self.lib.llama_context_default_params()
        made.n_ctx = made.n_batch = 64
        made.n_threads = made.n_threads_batch = 1
        made.flash_attn_type = made.type_k = made.type_v = 0
        return made

    def attach(self, model: Any, context: Any, adapter: Path) -> None:
        """Put the file ADAPTER on CONTEXT."""
        handle = self.lib.llama_adapter_lora_init(model, str(adapter).encode())
        if not handle:
            raise RuntimeError(f"llama.cpp does not load {adapter}")
        handles = (type(handle) * 1)(handle)
        self.lib.llama_set_adapters_lora(context, handles, 1, (ctypes.c_float * 1)(1.0))

    def batch(self) -> Any:
        """Return the tokens, with an answer asked for at each."""
        made = self.lib.llama_batch_init(len(TOKENS), 0, 1)
        made.n_tokens = len(TOKENS)
        for place, token in enumerate(TOKENS):
            made.token[place], made.pos[place], made.logits[place] = token, place, 1
            made.n_seq_id[place], made.seq_id[place][0] = 1, 0
        return made

    def logits(self, model: Any, context: Any) -> Any:
        """Return the answers at all tokens."""
        import numpy as np

        size = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(model))
        rows = [self.lib.llama_get_logits_ith(context, place) for place in range(len(TOKENS))]
        return np.stack([np.ctypeslib.as_array(row, (size,)).copy() for row in rows])


class Scripts(NamedTuple):
    """llama.cpp's scripts, and its engine where there is one."""

    folder: Path
    engine: Engine | None

    def model(self, row: Family, source: Path, target: Path, kind: str) -> str:
        """Convert the directory SOURCE; return what went wrong."""
        before = [] if row.words else ["-c", ANSWERED]
        command = [sys.executable, *before, str(self.folder / "convert_hf_to_gguf.py")]
        return failure([*command, str(source), "--outtype", kind, "--outfile", str(target)])

    def adapter(self, base: Path, source: Path, target: Path) -> str:
        """Convert the PEFT directory SOURCE; return what went wrong."""
        command = [sys.executable, str(self.folder / "convert_lora_to_gguf.py"), str(source)]
        return failure([*command, "--base", str(base), "--outfile", str(target)])


def failure(command: list[str]) -> str:
    """Run COMMAND; return the last line that it says if it fails, nothing otherwise."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()
    errors = [line for line in lines if "rror" in line]
    said = (errors or lines)[-1].strip()[:300]
    return "" if done.returncode == 0 else re.sub(r"/\S*/", "", said)  # no folder of ours


def far(ours: Any, theirs: Any) -> float:
    """Return the relative distance of two answers; one may know of fewer tokens."""
    import numpy as np

    size = min(ours.shape[-1], theirs.shape[-1])
    gap = np.linalg.norm(ours[:, :size] - theirs[:, :size])
    return float(f"{gap / np.linalg.norm(theirs[:, :size]):.3g}")


def hand_over_model(row: Family, scripts: Scripts, folder: Path) -> dict[str, Any]:
    """Merge an adapter and export the result in both ways; return what they have in common."""
    base, merged, adapter = folder / "base" / "tuned", folder / "tuned", folder / "merged-peft"
    make_adapter(base, row.merged, adapter)
    merge = [*TOOL, "merge", str(base), str(adapter), str(merged), "--check", "none"]
    found: dict[str, Any] = {"merge": failure([*merge, "--accept", "unverified"]) or "done"}
    if not merged.is_dir():
        return found
    theirs, ours, like = folder / "theirs.gguf", folder / "ours.gguf", folder / "base.gguf"
    found["convert_hf_to_gguf.py"] = scripts.model(row, merged, theirs, row.type) or "accepts it"
    scripts.model(row, base, like, row.type)
    export = [*TOOL, "export", "gguf", str(merged), str(ours), "--like", str(like)]
    export += ["--base", str(base)]
    found["export gguf"] = failure(export) or "done"
    if ours.is_file() and theirs.is_file():
        found["same file"] = ours.read_bytes() == theirs.read_bytes()
    if scripts.engine and ours.is_file():
        want, before = answer(load(merged)), answer(load(base))
        found["engine against transformers"] = far(scripts.engine(ours), want)
        found["the same for the base"] = far(scripts.engine(like), before)
        found["effect of the adapter"] = far(want, before)
    return found


def hand_over_adapter(
    settings: dict[str, Any], base: Path, whole: Path, scripts: Scripts, folder: Path
) -> dict[str, Any]:
    """Carry an adapter from PEFT to MLX and back for llama.cpp; return what its engine makes of it."""
    live = make_adapter(base, settings, folder / "peft")
    ends = ["--base", str(base), "--check", "none", "--accept", "unverified"]
    there = [*TOOL, "convert", "peft-to-mlx", str(folder / "peft"), str(folder / "mlx"), *ends]
    back = [*TOOL, "convert", "mlx-to-peft", str(folder / "mlx"), str(folder / "back"), *ends]
    said = failure(there) or failure([*back, "--for", "llama.cpp"])
    if said:
        return {"weighbridge": said}
    found: dict[str, Any] = {"weighbridge": "done"}
    for name, source in (("ours", "back"), ("PEFT's own", "peft")):
        target = folder / f"{source}.gguf"
        said = scripts.adapter(base, folder / source, target)
        found[f"convert_lora_to_gguf.py, {name}"] = said or "accepts it"
        if scripts.engine and not said:
            distance = far(scripts.engine(whole, target), live)
            found[f"engine against PEFT, {name}"] = distance
    found["effect of the adapter"] = far(live, answer(load(base)))
    return found


def hand_over(name: str, scripts: Scripts, folder: Path) -> dict[str, Any]:
    """Return all that is measured of the family NAME."""
    row = FAMILIES[name]
    base = folder / "base" / "tuned"  # the script writes a folder's name into the file
    make_base(row, base)
    found = {"type": row.type, "model": hand_over_model(row, scripts, folder), "adapters": {}}
    scripts.model(row, base, folder / "whole.gguf", "f32")
    for number, (case, settings) in enumerate(row.alone.items()):
        place = folder / str(number)
        found["adapters"][case] = hand_over_adapter(
            settings, base, folder / "whole.gguf", scripts, place
        )
    return found


def show(name: str, found: dict[str, Any]) -> None:
    """Print what was FOUND of the family NAME."""
    print(f"{name}, {found['type']}")
    for key, value in found["model"].items():
        print(f"  {key:32} {value}")
    for case, rows in found["adapters"].items():
        print(f"  adapter alone: {case}")
        for key, value in rows.items():
            print(f"    {key:36} {value}")


def main() -> None:
    """Measure, print and keep the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_cpp", type=Path, nargs="?", help="A checkout of llama.cpp.")
    parser.add_argument("--library", type=Path, help="Folder of a built libllama.")
    parser.add_argument(
        "--only",
        nargs="+",
        default=list(FAMILIES),
        choices=list(FAMILIES),
        help="The results of the others are kept.",
    )
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    if arguments.llama_cpp is None:
        print("skipped: name a checkout of llama.cpp, whose converters are asked")
        return
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    checkout = arguments.llama_cpp.resolve()
    run = Engine(arguments.library, checkout.parent.parent) if arguments.library else None
    there = arguments.out.is_file() and len(arguments.only) < len(FAMILIES)
    results = json.loads(arguments.out.read_text())["families"] if there else {}
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = hand_over(name, Scripts(checkout, run), Path(folder))
        show(name, results[name])
    packages = ("gguf", "peft", "torch", "transformers")
    document = {
        "families": results,
        "versions": {package: version(package) for package in packages},
        "machine": {"system": platform.system(), "processor": platform.machine()},
    }
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
