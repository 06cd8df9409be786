"""Every example in the help of a verb runs as it is printed, on tiny models of the names in it."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
import sys
from operator import attrgetter
from pathlib import Path

import click
import mlx_lm.utils as mlx_lm
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import save_model

from examples.ports import encoder
from tests.conftest import SENTENCE_FILES, save_tokenizer, tiny_vocabulary
from tests.converters.gguf.models import like_file, module, saved, tuned
from weighbridge.cli import main
from weighbridge.tests.faults.commands import classifier_of_pictures
from weighbridge.trainers.config import load_config
from weighbridge.trainers.data.indicators.generated import write_market

EXAMPLE = re.compile(r"Example: weighbridge (.*)", re.DOTALL)
QWEN = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
BERT = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "max_position_embeddings": 512,
}


def verbs(command: click.Command = main, path: tuple[str, ...] = ()):
    """Yield every verb with the words that reach it."""
    for name, child in getattr(command, "commands", {}).items():
        yield from verbs(child, (*path, name))
    if not isinstance(command, click.Group):
        yield " ".join(path), command


def examples(command: click.Command) -> list[str]:
    """Return what stands after ``Example:`` in the help of COMMAND, up to the end of the paragraph."""
    found = map(EXAMPLE.match, map(str.strip, re.split(r"\n\s*\n", command.help or "")))
    return [" ".join(match[1].split()) for match in found if match]


EXAMPLES = [(name, line) for name, command in verbs() for line in examples(command)]
SLOW = {"bench", "convert torch-to-mlx", "preflight", "train"}  # over 10 s
SLOW |= {
    name
    for name, _ in EXAMPLES
    if name.startswith(("export ", "convert coreai", "convert coreml", "convert onnx"))
}
CASES = [
    pytest.param(name, line, marks=[pytest.mark.heavy] if name in SLOW else [], id=name)
    for name, line in EXAMPLES
]
NEED_NONE = {"doctor"}


def run(line: str, code: int = 0) -> str:
    """Run LINE as a shell would, in the current directory; return what stands on stdout."""
    words = shlex.split(line)
    words, into = (words[:-2], words[-1]) if ">" in words else (words, None)
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output + repr(result.exception)
    if into:
        Path(into).write_text(result.stdout)
    return result.stdout


def lora(base: Path, folder: Path, targets: list[str]) -> None:
    """Write an adapter of PEFT's for BASE into FOLDER."""
    import peft

    torch.manual_seed(1)
    model = transformers.AutoModel.from_pretrained(base)
    if targets == ["q_proj", "v_proj"]:
        model = transformers.AutoModelForCausalLM.from_pretrained(base)
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    adapted.save_pretrained(folder)


def encoders(folder: Path) -> None:
    """A sentence encoder, its conversions, a run that trained it, and pairs to train on."""
    base, words = folder / "all-MiniLM-L6-v2", tiny_vocabulary()
    config = transformers.BertConfig(vocab_size=len(words), **BERT)
    transformers.BertModel(config).eval().save_pretrained(base)
    save_tokenizer(words, base)
    (base / "1_Pooling").mkdir()
    for name, content in SENTENCE_FILES.items():
        (base / name).write_text(json.dumps(content))
    shutil.copytree(base, folder / "minilm-tuned")
    run(f"convert torch-to-mlx {base} {folder}/minilm-mlx --check none")
    lora(base, folder / "peft", ["query", "value"])
    run(f"convert peft-to-mlx {folder}/peft {folder}/run --base {folder}/minilm-mlx --check none")
    shutil.rmtree(folder / "peft")
    (folder / "pairs").mkdir()
    pairs = [{"query": f"the first of {n}", "document": f"only {n} made"} for n in range(40)]
    for part in ("train", "validation", "test"):
        text = "\n".join(json.dumps(pair) for pair in pairs)
        (folder / "pairs" / f"{part}.jsonl").write_text(text)


def ports(folder: Path) -> None:
    """Somebody's own model, and their own port of it with other names."""
    (folder / "my_model.py").write_text("from examples.ports.encoder import build\n")
    (folder / "my_port.py").write_text(
        "from tests.converters.maps.infer.scramble import scramble\n"
        "def build():\n    return scramble('encoder', 1).module()\n"
    )
    module, _ = encoder.build()
    (folder / "my-dir").mkdir()
    save_model(module, str(folder / "my-dir" / "model.safetensors"))
    ids = np.random.default_rng(0).integers(0, encoder.WORDS, (2, 9))
    np.savez(folder / "inputs.npz", input_ids=ids, attention_mask=np.ones_like(ids))


def decoders(folder: Path) -> None:
    """A language model, its quantized sibling, and an adapter in both dialects."""
    torch.manual_seed(0)
    base = folder / "Qwen3-8B"
    transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**QWEN)).save_pretrained(base)
    model, config = mlx_lm.quantize_model(*mlx_lm.load_model(base), group_size=32, bits=4)
    mlx_lm.save_model(folder / "Qwen3-8B-4bit", model)
    mlx_lm.save_config(config, config_path=folder / "Qwen3-8B-4bit" / "config.json")
    lora(base, folder / "adapter-peft", ["q_proj", "v_proj"])
    run(f"convert peft-to-mlx {folder}/adapter-peft {folder}/run --base {base} --check none")


def experts(folder: Path) -> None:
    """A mixture of experts."""
    config = transformers.MixtralConfig(**QWEN, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(folder / "Mixtral-8x7B")


def ggufs(folder: Path) -> None:
    """A model, a tuned one, the base's GGUF file, and a quantized one."""
    saved(module("llama").to(torch.bfloat16), folder / "base")
    saved(tuned("llama"), folder / "tuned")
    like_file(folder / "base-f16.gguf", "llama", folder / "base")
    shutil.copytree(folder / "base", folder / "model")
    small = f"{folder}/small --bits 4 --group-size 32 --check none"
    run(f"quantize {folder}/model {small}")
    like = f"--like {folder}/base-f16.gguf --check none"
    run(f"export gguf {folder}/small {folder}/model-q4_0.gguf {like}")


def llamas(folder: Path) -> None:
    """A language model in both layouts, as GPTQ has it, in half precision and in 4 bits as GGUF."""
    base, file = folder / "llama", folder / "llama-f16.gguf"
    config = transformers.LlamaConfig(**QWEN | {"intermediate_size": 128})
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(base)
    shutil.copytree(base, folder / "llama-hf")
    like_file(file, "llama", base)
    run(f"convert torch-to-mlx {base} {folder}/llama-mlx --check none")
    small, how = folder / "llama-4bit", "--group-size 32 --check none"
    run(f"quantize {base} {small} --bits 4 {how}")
    run(f"export gguf {small} {folder}/llama-q4_0.gguf --like {file} --check none")
    gptq = f"{folder}/llama-gptq --quant-method gptq --allow-lossy --check none"
    run(f"convert mlx-to-torch {small} {gptq}")


def market(folder: Path) -> None:
    """Prices of some symbols, and later ones."""
    write_market(folder)
    (folder / "validation.npz").rename(folder / "later.npz")


def nothing(folder: Path) -> None:
    """Make nothing: the example needs none."""


WORLDS = {"MiniLM": encoders, "minilm": encoders, "Qwen": decoders, "Mixtral": experts}


def programs(folder: Path) -> None:
    """Write a model, and what other programs run of it."""
    config = transformers.BertConfig(vocab_size=50, **BERT)
    model = transformers.BertModel(config, add_pooling_layer=False)
    model.save_pretrained(folder / "model")
    run(f"export onnx {folder}/model {folder}/model.onnx --check none")
    run(f"export coreml {folder}/model {folder}/model.mlpackage --check none")
    run(f"export coreai {folder}/model {folder}/model.aimodel --check none")


def pictures(folder: Path) -> None:
    """A classifier of pictures."""
    classifier_of_pictures(folder / "vit-tuned")


WORLDS["vit-"] = pictures
WORLDS |= dict.fromkeys(("model.onnx", "model.mlpackage", "model.aimodel"), programs) | WORLDS
WORLDS |= {"llama-": llamas, "train.npz": market, "gguf": ggufs}
WORLDS |= dict.fromkeys(("my_port", "my_model"), ports)


def labelled(folder: Path) -> None:
    """A classifier of two classes, and texts of one's own for it."""
    words = tiny_vocabulary()
    config = transformers.BertConfig(vocab_size=len(words), num_labels=2, **BERT)
    transformers.BertForSequenceClassification(config).save_pretrained(folder / "DIR")
    save_tokenizer(words, folder / "DIR")
    rows = [{"text": f"the {n} of {n % 2}", "label": n % 2} for n in range(80)]
    (folder / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))


def decoder(folder: Path) -> None:
    """A language model with its tokenizer."""
    words = tiny_vocabulary()
    config = transformers.Qwen3Config(**QWEN | {"vocab_size": len(words)})
    transformers.Qwen3ForCausalLM(config).save_pretrained(folder / "DIR")
    save_tokenizer(words, folder / "DIR")


def rewriter(folder: Path) -> None:
    """A T5 with its tokenizer."""
    words = tiny_vocabulary()
    sizes = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 1, "num_heads": 4}
    config = transformers.T5Config(**sizes, vocab_size=len(words), decoder_start_token_id=0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder / "T5DIR")
    save_tokenizer(words, folder / "T5DIR")


WORLDS = {
    "recipe text-classification": labelled,
    "T5DIR": rewriter,
    "DIR": decoder,
    **WORLDS,
}


@pytest.fixture(scope="module")
def world_of(tmp_path_factory):
    """Return what makes, once each, the folder that an example runs in."""
    made: dict[str, Path] = {}

    def get(line: str) -> Path:
        make = next((make for word, make in WORLDS.items() if word in line), nothing)
        if make.__name__ not in made:
            made[make.__name__] = tmp_path_factory.mktemp(make.__name__)
            make(made[make.__name__])
        return made[make.__name__]

    return get


@pytest.fixture
def here(world_of, tmp_path, monkeypatch):
    """Return what brings an example into a folder where its names mean something."""

    def enter(line: str, target: str = "") -> None:
        for item in world_of(line).iterdir():
            if item.name != target:  # it is what the example makes
                (tmp_path / item.name).symlink_to(item)
        importlib.invalidate_caches()
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))

    yield enter
    for name in ("my_model", "my_port"):
        sys.modules.pop(name, None)


def made_by(command: click.Command, line: str) -> str:
    """Return the TARGET that LINE gives COMMAND."""
    words = shlex.split(line)
    skip = next(n for n, w in enumerate(words) if w == command.name) + 1
    context = command.make_context(command.name, words[skip:])
    made = context.params.get("target") or context.params.get("run") or ""
    return str(made).rstrip("/")


@pytest.mark.parametrize(("name", "line"), CASES)
def test_an_example_runs_as_printed(name, line, here, monkeypatch, tmp_path_factory):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path_factory.mktemp("cache")))
    command = dict(verbs())[name]
    target = made_by(command, line.partition(" > ")[0])
    here(line, target)
    output = run(line)
    assert not target or Path(target).exists()
    for after in re.findall("^Next: weighbridge (.*)", output, re.MULTILINE):
        run(after)


def test_every_verb_shows_an_example():
    shown = {name for name, _ in EXAMPLES}
    assert {name for name, _ in verbs()} - shown == NEED_NONE


def test_the_setting_that_help_shows_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path))  # where bundled data would lie
    options = {option.name: option for option in dict(verbs())["train"].params}
    shown = re.search(r"such as (\S+=\S+)\.", options["overrides"].help)[1]
    key, _, value = shown.partition("=")
    assert float(attrgetter(key)(load_config("minilm-lora", [shown]))) == float(value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("lr=3e-4", "optimizer.learning_rate"),
        ("learning_rate=3e-4", "optimizer.learning_rate"),
        ("optimizer.lr=3e-4", "optimizer.learning_rate"),
        ("wd=0.1", "optimizer.weight_decay"),
        ("rank=4", "adapter.rank"),
        ("validation=pairs.jsonl", "data.validation"),
        ("stepz=4", "steps"),
        ("kind=linear", "data.kind or schedule.kind"),
    ],
)
def test_a_setting_by_its_last_name_or_initials_is_suggested_in_full(wrong, right):
    result = CliRunner().invoke(main, ["preflight", "--recipe", "minilm-lora", "--set", wrong])
    assert result.exit_code == 3
    assert f"{wrong.partition('=')[0]}: no such key; did you mean {right}?" in result.output
