"""What is good before it is spoiled: tiny models, adapters, files and runs, each made once.

Weights are multiples of 1/64: they compress well, so that a kept case is small, and every dtype
holds them exactly.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from .watch import in_child, verb

SIZES = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "max_position_embeddings": 32,
}
LLAMA = {
    "vocab_size": 34,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789.,"]
PORT = '''"""A forecaster for training runs."""
import torch

class Forecaster(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.nn.Linear(6, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, series):
        return self.head(torch.tanh(self.hidden(series.flatten(1))))

def make():
    torch.manual_seed(3)
    return Forecaster().eval()
'''
RECIPE = """model: port:make
data: {kind: series, train: series/train.npz, validation: series/validation.npz}
objective: regression
optimizer: {learning_rate: 3e-3, weight_decay: 0.0}
schedule: {kind: linear, warmup: 0.1}
steps: 4
batch_size: 4
validate_every: 2
checkpoint_every: 2
compile: false
"""
RECIPE_TOML = """model = "port:make"
steps = 4
batch_size = 4
validate_every = 2
checkpoint_every = 2
compile = false
[data]
kind = "series"
train = "series/train.npz"
validation = "series/validation.npz"
[objective]
name = "regression"
[optimizer]
learning_rate = 3e-3
"""
PAIRS = """model: bert
data: {kind: pairs, train: pairs/train.jsonl, validation: pairs/validation.jsonl, lengths: {query: [16], document: [16, 24]}}
objective: {name: contrastive}
adapter: {rank: 2, targets: [query, value]}
steps: 2
batch_size: 4
validate_every: 2
checkpoint_every: 2
compile: false
"""


def sixty_fourths(model, seed: int = 20):
    """Return MODEL in eval mode with random multiples of 1/64 for weights."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            numbers = torch.randint(-24, 25, parameter.shape, generator=generator)
            one = name.endswith(("LayerNorm.weight", "norm.weight"))
            parameter.copy_(numbers / 64 + one)
    return model.eval()


def bert(folder: Path) -> None:
    from transformers import BertConfig, BertModel

    from tests.conftest import SENTENCE_FILES, save_tokenizer

    sixty_fourths(BertModel(BertConfig(vocab_size=len(WORDS), **SIZES))).save_pretrained(folder)
    save_tokenizer(WORDS, folder)
    (folder / "1_Pooling").mkdir()
    for name, content in SENTENCE_FILES.items():
        (folder / name).write_text(json.dumps(content, indent=2))
    (folder / "generation_config.json").write_text('{"max_length": 20, "eos_token_id": 3}')


def tensors(folder: Path):
    """Return the weights of the good in FOLDER."""
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def plain(folder: Path, name: str, save: Callable) -> None:
    """Make FOLDER a copy of the BERT beside it with its weights in the file NAME, written by SAVE."""
    shutil.copytree(folder.parent / "bert", folder)
    loaded = tensors(folder)
    (folder / "model.safetensors").unlink()
    save(loaded, folder / name)


def bert_npz(folder: Path) -> None:
    import numpy as np

    plain(
        folder,
        "weights.npz",
        lambda loaded, path: np.savez(path, **{k: v.numpy() for k, v in loaded.items()}),
    )


def bert_npz_packed(folder: Path) -> None:
    import numpy as np

    plain(
        folder,
        "weights.npz",
        lambda loaded, path: np.savez_compressed(path, **{k: v.numpy() for k, v in loaded.items()}),
    )


def bert_pt(folder: Path) -> None:
    import torch

    plain(folder, "model.pt", torch.save)


def bert_bin(folder: Path) -> None:
    import torch

    plain(
        folder,
        "pytorch_model.bin",
        lambda loaded, path: torch.save(loaded, path, _use_new_zipfile_serialization=False),
    )


def bert_shards(folder: Path) -> None:
    from safetensors.torch import save_file

    def save(loaded, path: Path) -> None:
        names, where = sorted(loaded), {}
        for part in range(3):
            file = f"model-0000{part + 1}-of-00003.safetensors"
            mine = {name: loaded[name] for name in names[part::3]}
            save_file(mine, path.parent / file, metadata={"format": "pt"})
            where |= dict.fromkeys(mine, file)
        total = sum(tensor.nbytes for tensor in loaded.values())
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
        path.write_text(json.dumps(index, indent=1))

    plain(folder, "model.safetensors.index.json", save)


def bert_bf16(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    plain(
        folder,
        "model.safetensors",
        lambda loaded, path: save_file(
            {k: v.to(torch.bfloat16) for k, v in loaded.items()}, path, metadata={"format": "pt"}
        ),
    )


def mlx(folder: Path) -> None:
    command("convert", "torch-to-mlx", "bert", folder.name, "--check", "none")


def peft(folder: Path) -> None:
    import peft as library
    import torch
    from transformers import BertModel

    base = BertModel.from_pretrained("bert")
    options = {"r": 2, "lora_alpha": 4, "target_modules": ["query", "value"]}
    tuned = library.get_peft_model(base, library.LoraConfig(**options))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in sorted(tuned.named_parameters()):
            if "lora_" in name:
                parameter.copy_(torch.randint(-24, 25, parameter.shape, generator=generator) / 64)
    tuned.save_pretrained(folder)


def mlx_adapter(folder: Path) -> None:
    command("convert", "peft-to-mlx", "peft", folder.name, "--base", "bert", "--check", "none")


def llama(folder: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sixty_fourths(LlamaForCausalLM(LlamaConfig(**LLAMA))).save_pretrained(folder)


def llama_mlx(folder: Path) -> None:
    command("convert", "torch-to-mlx", "llama", folder.name, "--check", "none")


def encoder(folder: Path) -> None:
    """Make a Qwen3 without a head, whose class in mlx-embeddings is mended."""
    from transformers import Qwen3Config, Qwen3Model

    sixty_fourths(Qwen3Model(Qwen3Config(**LLAMA, head_dim=16))).save_pretrained(folder)


def mended(folder: Path) -> None:
    how = ("--library", "mlx-embeddings", "--repair", "--check", "none")
    command("convert", "torch-to-mlx", "encoder", folder.name, *how)


def like(kind: str) -> Callable[[Path], None]:
    """Return a maker of the GGUF file of the Llama with matrices of KIND."""

    def make(path: Path) -> None:
        import gguf
        import numpy as np

        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name("The base")
        writer.add_block_count(1)
        writer.add_head_count(2)
        writer.add_head_count_kv(1)
        writer.add_file_type({"F32": 0, "BF16": 32, "Q8_0": 7}[kind])
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([f"t{number}" for number in range(34)])
        writer.add_array("tokenizer.ggml.scores", [0.5] * 34)
        for name, array in gguf_tensors(path.parent / "llama").items():
            stored = gguf.GGMLQuantizationType["F32" if array.ndim < 2 else kind]
            writer.add_tensor(name, gguf.quantize(np.array(array), stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    return make


def gguf_tensors(folder: Path):
    """Return the Llama in FOLDER as llama.cpp's converter names and lays it, in float32."""
    import gguf

    from tests.converters.gguf.models import permuted

    table = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 1)
    heads = {".q_proj.": 2, ".k_proj.": 1}
    made = {}
    for name, tensor in tensors(folder).items():
        turns = next((count for part, count in heads.items() if part in name), 0)
        value = permuted(tensor, turns) if turns else tensor
        target = table.get_name(name, try_suffixes=(".weight", ".bias"))
        made[target] = value.float().contiguous().numpy()
    return made


def package(folder: Path) -> None:
    command("export", "coreml", "bert", folder.name, "--check", "none", "--compute", "float32")


def two_functions(folder: Path) -> None:
    options = ("--stateful", "--multifunction", "--check", "none")
    command("export", "coreml", "llama", folder.name, *options)


def golden(folder: Path) -> None:
    command("parity", "record", "bert", folder.name)


def onnx_file(path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    codes = numpy_helper.from_array(np.ones((3, 2), np.uint8), "codes")
    scale = numpy_helper.from_array(np.ones((), np.float32), "scale")
    shape = ["batch", 3]
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["codes", "scale"], ["weight"]),
            helper.make_node("MatMul", ["x", "weight"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 2])],
        [codes, scale],
    )
    onnx.save(helper.make_model(graph), path)


def products(path: Path) -> None:
    """Write a file whose weights are multiplied by in ``MatMulNBits``."""
    quantized = path.with_name("quantized")
    how = ("--bits", "4", "--group-size", "32", "--check", "none")
    command("quantize", "llama", quantized.name, *how)
    words = ("--quant-format", "QOperator", "--check", "none")
    command("export", "onnx", quantized.name, path.name, *words)
    shutil.rmtree(quantized)


def asset(folder: Path) -> None:
    command("export", "coreai", "bert", folder.name, "--check", "none")


def with_states(folder: Path) -> None:
    command("export", "coreai", "llama", folder.name, "--stateful", "--check", "none")


def onnx_folder(folder: Path) -> None:
    folder.mkdir()
    onnx_file(folder / "model.onnx")
    (folder / "config.json").write_text((folder.parent / "bert" / "config.json").read_text())


def port(path: Path) -> None:
    path.write_text(PORT)


def series(folder: Path) -> None:
    import numpy as np

    folder.mkdir()
    generator = np.random.default_rng(6)
    for split, count in {"train": 9, "validation": 5}.items():
        waves = np.sin(generator.uniform(0, 6, (count, 2, 1)) + np.arange(5) / 2)
        waves = np.round(waves * 64).astype(np.float32) / 64
        np.savez(folder / f"{split}.npz", series=waves[:, :, :3], target=waves[:, 0, 3:])


def pairs(folder: Path) -> None:
    folder.mkdir()
    for split, count in {"train": 9, "validation": 5}.items():
        rows = [{"query": f"{split} {n}", "document": f"{n} is {split}"} for n in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")


def text(content: str) -> Callable[[Path], None]:
    """Return a maker of a file that holds CONTENT."""

    def make(path: Path) -> None:
        path.write_text(content)

    return make


def run(folder: Path) -> None:
    """Make a run that was stopped after two of its four updates."""
    command("train", folder.name, "--backend", "torch", "--config", "recipe.yaml")
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    for name in ("result.json", "loss.png", "model.safetensors", "weighbridge.json"):
        (folder / name).unlink(missing_ok=True)
    whole = (folder / "config.yaml").read_text()  # absolute paths would be those of this folder
    (folder / "config.yaml").write_text(whole.replace(f"{folder.parent.absolute()}/", ""))


def run_done(folder: Path) -> None:
    """Make the run that was stopped, gone on with to its end."""
    whole = folder.parent / "run-kept"
    shutil.copytree(folder.parent / "run", whole)
    command("train", "run", "--resume", "--backend", "torch")
    (folder.parent / "run").rename(folder)
    whole.rename(folder.parent / "run")


def leftover(folder: Path) -> None:
    """Make what a conversion leaves that was killed at its twelfth tensor."""
    from weighbridge.converters.checkpoints import Writer

    write, calls = Writer.write, []

    def killed(self, name, data):
        calls.append(name)
        if len(calls) == 12:
            os._exit(0)
        return write(self, name, data)

    Writer.write = killed
    command("convert", "torch-to-mlx", "bert", folder.name.split(".")[1], "--check", "none")


def inputs(path: Path) -> None:
    import numpy as np

    ids = np.array([[2, 7, 9, 3], [2, 8, 3, 0]])
    np.savez(path, input_ids=ids, attention_mask=(ids > 0).astype(ids.dtype))


def wmap(path: Path) -> None:
    from weighbridge.converters.maps.binding.weightmap import WeightMap  # noqa: F401  # is it there at all

    tables = Path(__file__).parent.parent.parent / "converters" / "maps" / "tables"
    path.write_text((tables / "bert.wmap").read_text())


def command(*argv: str) -> None:
    """Run our own command line, which must not fail."""
    try:
        verb(argv)()
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"{' '.join(argv)} ended with {end.code}") from end


# name -> how it is made, from goods that are above it
GOODS: dict[str, Callable[[Path], None]] = {
    "bert": bert,
    "bert-npz": bert_npz,
    "bert-npz-packed": bert_npz_packed,
    "bert-pt": bert_pt,
    "bert-bin": bert_bin,
    "bert-shards": bert_shards,
    "bert-bf16": bert_bf16,
    "mlx": mlx,
    "peft": peft,
    "mlx-adapter": mlx_adapter,
    "llama": llama,
    "llama-mlx": llama_mlx,
    "encoder": encoder,
    "mended": mended,
    "like-f32.gguf": like("F32"),
    "like-bf16.gguf": like("BF16"),
    "like-q8.gguf": like("Q8_0"),
    "model.mlpackage": package,
    "functions.mlpackage": two_functions,
    "golden": golden,
    "model.onnx": onnx_file,
    "onnx": onnx_folder,
    "products.onnx": products,
    "model.aimodel": asset,
    "states.aimodel": with_states,
    "port.py": port,
    "series": series,
    "pairs": pairs,
    "recipe.yaml": text(RECIPE),
    "recipe.toml": text(RECIPE_TOML),
    "pairs.yaml": text(PAIRS),
    "run": run,
    "run-done": run_done,
    ".out.staging": leftover,
    "inputs.npz": inputs,
    "bert.wmap": wmap,
}
NEEDS = {
    "mlx-adapter": ("bert", "peft"),
    "llama-mlx": ("llama",),
    "mended": ("encoder",),
    "like-f32.gguf": ("llama",),
    "like-bf16.gguf": ("llama",),
    "like-q8.gguf": ("llama",),
    "model.mlpackage": ("bert",),
    "functions.mlpackage": ("llama",),
    "golden": ("bert",),
    "products.onnx": ("llama",),
    "onnx": ("bert",),
    "model.aimodel": ("bert",),
    "states.aimodel": ("llama",),
    "run": ("port.py", "series", "recipe.yaml"),
    "run-done": ("run",),
    ".out.staging": ("bert",),
    "peft": ("bert",),
    "mlx": ("bert",),
} | {f"bert-{kind}": ("bert",) for kind in ("npz", "npz-packed", "pt", "bin", "shards", "bf16")}


def with_needs(names) -> list[str]:
    """Return NAMES and what they are made of, in the order of making."""
    wanted, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        wanted.add(name)
        waiting += NEEDS.get(name, ())
    return [name for name in GOODS if name in wanted]


def make_goods(folder: Path, names) -> list[str]:
    """Make the goods NAMES in FOLDER, each in a child; return the modules that it took.

    Raises:
        RuntimeError: one could not be made.
    """
    from .warm import loaded

    modules: set[str] = set()
    for name in with_needs(names):
        note = folder.parent / "modules.json"

        def job(name=name, note=note) -> int:
            GOODS[name](folder / name)
            note.write_text(json.dumps(loaded()))
            return 0

        if (folder / name).exists():
            continue
        seen = in_child(job, folder, {}, limit=120)
        if seen.code or not (folder / name).exists():
            raise RuntimeError(f"{name}: {seen}")
        modules |= set(json.loads(note.read_text())) if note.exists() else set()
    return sorted(modules)
