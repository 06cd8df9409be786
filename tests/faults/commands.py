"""Small sources, and a command of every verb that writes something."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from weighbridge.tests.faults import little

SERIES: Final = ("--trust-code", "examples.timeseries:build")
LITTLE: Final = ("--trust-code", "tests.faults.little:build")


class Command(NamedTuple):
    """A verb with its arguments.

    Attributes:
        words: arguments; ``{s}`` stands for the folder of sources, ``{t}`` for the target.
        target: the target's name.
        resume: what to give instead where an interrupted run has left something to go on from.
    """

    words: tuple[str, ...]
    target: str = "out"
    resume: tuple[str, ...] = ()

    @property
    def trains(self) -> bool:
        """Tell whether it is a training run, which has no ``--force``."""
        return bool(self.resume)

    @property
    def reads(self) -> list[str]:
        """Return the names of the sources that it reads."""
        names = [word.partition("{s}/")[2].split("/")[0] for word in self.words]
        return [name for name in names if name]

    def given(self, sources: Path, target: Path, *more: str, resume: bool = False) -> list[str]:
        """Return the arguments, MORE at their end."""
        words = self.resume if resume else self.words
        return [word.format(s=sources, t=target) for word in (*words, *more)]


def _train(recipe: str, **settings: object) -> Command:
    chosen = {"steps": 3, "validate_every": 2, "checkpoint_every": 1, "batch_size": 4} | settings
    pairs = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
    return Command(
        ("train", "{t}", "--config", recipe, *pairs), "run", ("train", "{t}", "--resume")
    )


UNCHECKED: Final = ("--check", "none")
PICTURES: Final = ("--image", "pixel_values", "--labels", "config")
REPAIRED: Final = ("--library", "mlx-embeddings", "--repair")
COMMANDS: Final = {
    "torch-to-mlx": Command(("convert", "torch-to-mlx", "{s}/bert", "{t}", *UNCHECKED)),
    "mlx-to-torch": Command(("convert", "mlx-to-torch", "{s}/bert-mlx", "{t}", *UNCHECKED)),
    "shards": Command(
        ("convert", "torch-to-mlx", "{s}/llama", "{t}", "--max-shard-size", "1e-4", *UNCHECKED)
    ),
    "checked": Command(("convert", "torch-to-mlx", "{s}/bert", "{t}")),
    "merge": Command(("merge", "{s}/llama", "{s}/peft", "{t}", *UNCHECKED)),
    "merge-quantized": Command(("merge", "{s}/q4", "{s}/adapter", "{t}", *UNCHECKED)),
    "peft-to-mlx": Command(
        ("convert", "peft-to-mlx", "{s}/peft", "{t}", "--base", "{s}/llama", *UNCHECKED)
    ),
    "mlx-to-peft": Command(
        ("convert", "mlx-to-peft", "{s}/adapter", "{t}", "--base", "{s}/llama", *UNCHECKED)
    ),
    "coreml": Command(
        ("export", "coreml", "{s}/series", "{t}", *SERIES, *UNCHECKED), "out.mlpackage"
    ),
    "coreml-functions": Command(
        ("export", "coreml", "{s}/llama", "{t}", "--stateful", "--multifunction", *UNCHECKED),
        "out.mlpackage",
    ),
    "coreml-compressed": Command(
        ("export", "coreml", "{s}/bert", "{t}", "--palettize", "2", *UNCHECKED), "out.mlpackage"
    ),
    "coreml-pictures": Command(
        ("export", "coreml", "{s}/vit", "{t}", *PICTURES, *UNCHECKED), "out.mlpackage"
    ),
    "onnx": Command(("export", "onnx", "{s}/series", "{t}", *SERIES, *UNCHECKED), "out.onnx"),
    "onnx-products": Command(
        ("export", "onnx", "{s}/q4", "{t}", "--quant-format", "QOperator", *UNCHECKED), "out.onnx"
    ),
    "onnx-folder": Command(
        ("export", "onnx", "{s}/bert", "{t}", "--external-data", "--precision", "fp16", *UNCHECKED)
    ),
    "coreai-stateful": Command(
        ("export", "coreai", "{s}/llama", "{t}", "--stateful", *UNCHECKED), "out.aimodel"
    ),
    "coreai": Command(
        ("export", "coreai", "{s}/series", "{t}", *SERIES, *UNCHECKED), "out.aimodel"
    ),
    "onnx-to-torch": Command(
        ("convert", "onnx-to-torch", "{s}/llama.onnx", "{t}", "--like", "{s}/llama", *UNCHECKED)
    ),
    "coreml-to-mlx": Command(
        ("convert", "coreml-to-mlx", "{s}/bert.mlpackage", "{t}", "--like", "{s}/bert", *UNCHECKED)
    ),
    "gguf": Command(("export", "gguf", "{s}/tuned", "{t}", "--like", "{s}/llama.gguf"), "out.gguf"),
    "quantize": Command(
        ("quantize", "{s}/llama", "{t}", "--bits", "4", "--group-size", "32", *UNCHECKED)
    ),
    "quantize-library": Command(
        ("quantize", "{s}/sees", "{t}", "--group-size", "32", "--library", "mlx-lm", *UNCHECKED)
    ),
    "repaired": Command(("convert", "torch-to-mlx", "{s}/embeds", "{t}", *REPAIRED, *UNCHECKED)),
    "quantized-to-torch": Command(("convert", "mlx-to-torch", "{s}/q4", "{t}", *UNCHECKED)),
    "torch-to-quantized": Command(("convert", "torch-to-mlx", "{s}/metal", "{t}", *UNCHECKED)),
    "dequantized": Command(
        ("convert", "mlx-to-torch", "{s}/q4", "{t}", "--dequantize", "bf16", *UNCHECKED)
    ),
    "quantized-to-gguf": Command(
        ("export", "gguf", "{s}/q4", "{t}", "--like", "{s}/llama.gguf", "--allow-lossy"), "out.gguf"
    ),
    "gguf-to-mlx": Command(
        ("convert", "gguf-to-mlx", "{s}/llama.gguf", "{t}", "--like", "{s}/llama", *UNCHECKED)
    ),
    "gguf-to-torch": Command(
        ("convert", "gguf-to-torch", "{s}/llama.gguf", "{t}", "--like", "{s}/llama", *UNCHECKED)
    ),
    "record": Command(
        ("parity", "record", "{s}/little", "{t}", *LITTLE, "--inputs", "{s}/inputs.npz")
    ),
    "infer": Command(
        ("map", "infer", "examples.ports.encoder:build", "examples.ports.encoder:build_mlx", "{t}"),
        "out.wmap",
    ),
    "train-adapter": _train(
        "minilm-lora",
        **{"model": "{s}/bert", "data.train": "{s}/pairs/train.jsonl"},
        **{"data.validation": "{s}/pairs/validation.jsonl", "data.test": "null"},
        **{"data.lengths": "{{query: [16], document: [24]}}"},
    ),
    "train-weights": _train(
        "examples/timeseries.yaml",
        model="{s}/series-mlx",
        trust_code="examples.timeseries:build",
        **{"data.train": "{s}/data/train.npz", "data.validation": "{s}/data/validation.npz"},
    ),
}


EXPORTED: Final = {"llama.onnx", "bert.mlpackage"}


def make_sources(folder: Path, commands: Iterable[str] = COMMANDS) -> Path:
    """Write what COMMANDS read to the new FOLDER; return it."""
    folder.mkdir(parents=True)
    _encoder(folder)
    _decoder(folder)
    _forecaster(folder)
    read = {name for command in commands for name in COMMANDS[command].reads}
    if EXPORTED & read:
        _exported(folder)
    for name in read & {*ASKED}:
        ASKED[name](folder / name)
    return folder


def varied(sources: Path, folder: Path) -> Path:
    """Return FOLDER with a copy of SOURCES whose numbers are others."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    from weighbridge.tests.converters.gguf.models import like_file

    shutil.copytree(sources, folder)
    for path in sorted(folder.rglob("*.safetensors")):
        tensors = load_file(path)
        floating = {name: value for name, value in tensors.items() if value.is_floating_point()}
        changed = {name: value * 1.5 for name, value in floating.items()}
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        save_file(tensors | changed, path, metadata=metadata)
    like_file(folder / "llama.gguf", "llama", folder / "llama")
    if (folder / "llama.onnx").exists():
        _exported(folder)
    (folder / "adapter" / "weighbridge.json").unlink()  # it speaks of the other numbers
    return folder


def _exported(folder: Path) -> None:
    """Write what other programs run of the models in FOLDER."""
    from weighbridge.jobs import WriteOptions
    from weighbridge.jobs.export import export_coreml, export_onnx

    options = WriteOptions(check="none", force=True)
    export_onnx(str(folder / "llama"), folder / "llama.onnx", options=options)
    export_coreml(str(folder / "bert"), folder / "bert.mlpackage", options=options)


def classifier_of_pictures(folder: Path) -> Path:
    """Write a small classifier of pictures and its image processor to FOLDER; return it."""
    import torch
    import transformers

    from weighbridge.tests.support.coreml.models import lively

    sizes = {"hidden_size": 20, "intermediate_size": 36, "num_attention_heads": 2}
    torch.manual_seed(0)
    names = dict(enumerate(("cat", "dog", "crane", "crane")))
    config = transformers.ViTConfig(
        image_size=12, patch_size=4, num_hidden_layers=1, id2label=names, **sizes
    )
    lively(transformers.ViTForImageClassification(config)).save_pretrained(folder)
    moments = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    square = {"height": 12, "width": 12}
    transformers.ViTImageProcessorPil(size=square, **moments).save_pretrained(folder)
    return folder


def seeing(folder: Path) -> None:
    """Write a Qwen2-VL whose language model can be quantized in groups of 32 to FOLDER."""
    from weighbridge.tests.support.atlas import tiny

    rotary = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
    own = {"text_config": {"hidden_size": 64, "intermediate_size": 96, **rotary}}
    tiny.make("qwen2_vl", folder, own=own, library="mlx-vlm")


def embedding(folder: Path) -> None:
    """Write a Qwen3, whose class in mlx-embeddings is mended, to FOLDER."""
    from weighbridge.tests.support.atlas import tiny

    tiny.make("qwen3", folder, library="mlx-embeddings")


# Sources that are made for the commands that read them alone.
ASKED: Final = {
    "vit": classifier_of_pictures,
    "sees": seeing,
    "embeds": embedding,
    "little": little.write,
}


def _encoder(folder: Path) -> None:
    """Write a BERT, its MLX twin, and pairs to train it with."""
    from weighbridge import jobs
    from weighbridge.tests.conftest import save_tokenizer, tiny_bert, tiny_vocabulary

    words = tiny_vocabulary()
    tiny_bert(len(words)).save_pretrained(folder / "bert")
    save_tokenizer(words, folder / "bert")
    options = jobs.Options(check="none")
    jobs.convert(str(folder / "bert"), folder / "bert-mlx", "mlx", options=options)
    (folder / "pairs").mkdir()
    for split in ("train", "validation"):
        rows = [f'{{"query": "{split} {n}", "document": "it is {n} {split}"}}' for n in range(16)]
        (folder / "pairs" / f"{split}.jsonl").write_text("\n".join(rows) + "\n")


def _decoder(folder: Path) -> None:
    """Write a Llama, dense, changed, quantized and as GGUF, and an adapter in both dialects."""
    import peft
    import torch
    from mlx_lm.utils import load_model, quantize_model, save_config, save_model

    from weighbridge import jobs
    from weighbridge.tests.converters.gguf.models import like_file, module, saved, tuned

    base = saved(module("llama").to(torch.float32), folder / "llama")
    saved(tuned("llama", torch.float32), folder / "tuned")
    like_file(folder / "llama.gguf", "llama", base)
    torch.manual_seed(1)
    settings = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"])
    model = peft.get_peft_model(module("llama").to(torch.float32), settings)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    model.save_pretrained(folder / "peft")
    request = jobs.AdapterRequest("mlx", str(base), None, None)
    options = jobs.Options(check="none")
    jobs.convert_adapter(folder / "peft", folder / "adapter", request, options=options)
    made, config = quantize_model(*load_model(base), group_size=32, bits=4)
    save_model(folder / "q4", made)
    save_config(config, config_path=folder / "q4" / "config.json")
    jobs.convert(str(folder / "q4"), folder / "metal", "torch", options=options)


def _forecaster(folder: Path) -> None:
    """Write the model of ``examples/timeseries.py``, its MLX twin, an input, and its data."""
    import numpy as np

    from weighbridge import jobs
    from weighbridge.examples.timeseries import write_data, write_model

    write_data(folder / "data")
    write_model(folder / "series")
    series = np.random.default_rng(0).standard_normal((1, 3, 96), dtype=np.float32)
    np.savez(folder / "inputs.npz", series=series)  # one probe takes a quarter of the time of four
    table = Path(__file__).parents[2] / "examples" / "timeseries.wmap"
    options = jobs.Options(check="none", map=str(table), trust_code=SERIES[1])
    jobs.convert(str(folder / "series"), folder / "series-mlx", "mlx", options=options)
