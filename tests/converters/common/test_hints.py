"""A command that a message proposes runs as it is printed."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
from pathlib import Path

import mlx_lm.utils as mlx_lm
import peft
import pytest
import torch
import transformers
from click.testing import CliRunner

from weighbridge.cli import main

ROOT = Path(__file__).parents[3]
FOLDERS = ("converters", "jobs", "parity", "trainers", "verbs")
SOURCES = [*ROOT.glob("*.py"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))]
LLAMA = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
WORDS = r"weighbridge (?:convert|merge|export|parity|train|inspect)\b.*"


def run(*words, code: int = 0) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def follow(text: str, *more: str) -> None:
    """Run the one command of ours in TEXT as it stands there, with the options MORE."""
    (found,) = re.findall(WORDS, text)
    line = found.rstrip("?").partition("; ")[0]
    run(*shlex.split(line)[1:], *more)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a folder, with a blank in its name, of models and adapters that go together."""
    folder = tmp_path_factory.mktemp("models") / "my models"
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    model.save_pretrained(folder / "base")
    tuned = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    tuned.save_pretrained(folder / "peft")
    none = ("--check", "none")
    run("convert", "torch-to-mlx", folder / "base", folder / "mlx", *none)
    run("convert", "peft-to-mlx", folder / "peft", folder / "lora", "--base", folder / "mlx", *none)
    quantized, config = mlx_lm.quantize_model(
        *mlx_lm.load_model(folder / "base"), group_size=32, bits=4
    )
    mlx_lm.save_model(folder / "q4", quantized)
    mlx_lm.save_config(config, config_path=folder / "q4" / "config.json")
    return folder


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Run every command in an empty folder."""
    monkeypatch.chdir(tmp_path)


def test_a_wrong_direction_is_answered_with_a_command_that_runs(models, tmp_path):
    said = run("convert", "torch-to-mlx", models / "mlx", tmp_path / "an out", code=3)
    follow(said, "--check", "none")
    assert (tmp_path / "an out").is_dir()


@pytest.mark.parametrize(("verb", "adapter"), [("mlx-to-peft", "peft"), ("peft-to-mlx", "lora")])
def test_a_wrong_dialect_is_answered_with_a_command_that_runs(models, tmp_path, verb, adapter):
    base = models / "base"
    said = run("convert", verb, models / adapter, tmp_path / "out", "--base", base, code=3)
    follow(said, "--check", "none")
    assert (tmp_path / "out").is_dir()


def test_what_a_program_reads_as_it_is_needs_no_conversion(models, tmp_path):
    words = ("--base", models / "base", "--for", "mlx-lm")
    said = run("convert", "mlx-to-peft", models / "lora", tmp_path / "out", *words, code=3)
    command = shlex.split(said.partition("as it is: ")[2])
    assert command[command.index("--adapter-path") + 1] == str(models / "lora")


@pytest.mark.parametrize("base", ["base", "mlx"])
def test_the_last_line_of_a_converted_adapter_is_a_command_that_runs(models, tmp_path, base):
    words = ("--base", models / base, "--check", "none")
    said = run("convert", "mlx-to-peft", models / "lora", tmp_path / "out", *words)
    assert said.splitlines()[-1].startswith("Next: ")
    follow(said.splitlines()[-1], "--check", "none")


def test_a_quantized_base_is_to_be_dequantized_next(models, tmp_path):
    lora = shutil.copytree(models / "lora", tmp_path / "lora")
    (lora / "weighbridge.json").unlink()  # it records another base
    words = ("--base", models / "q4", "--check", "none")
    said = run("convert", "mlx-to-peft", lora, tmp_path / "out", *words)
    assert "--dequantize" in said.splitlines()[-1]
    follow(said.splitlines()[-1], "--check", "none")


def test_an_adapter_given_as_a_model_is_answered_with_a_command_that_runs(models, tmp_path):
    said = run("parity", "check", models / "lora", models / "base", code=3)
    follow(said, "--check", "none")


def test_an_adapter_whose_base_is_gone_is_answered_without_a_command(models, tmp_path):
    lost = shutil.copytree(models / "lora", tmp_path / "lora")
    (lost / "weighbridge.json").unlink()
    said = run("parity", "check", lost, models / "base", code=3)
    assert "--adapter" in said
    assert "weighbridge merge" not in said


def test_a_live_adapter_is_merged_before_an_export(models, tmp_path):
    (tmp_path / "like.gguf").write_bytes(b"GGUF")
    live = f"{models / 'base'}+{models / 'peft'}"
    said = run("export", "gguf", live, tmp_path / "out.gguf", "--like", "like.gguf", code=3)
    follow(said, "--check", "none")


def test_an_mlx_model_is_brought_home_before_an_export(models, tmp_path):
    (tmp_path / "like.gguf").write_bytes(b"GGUF")
    said = run("export", "gguf", models / "mlx", tmp_path / "o.gguf", "--like", "like.gguf", code=3)
    follow(said, "--check", "none")


HEAVY = [pytest.param(name, marks=pytest.mark.heavy) for name in ("base", "mlx")]


@pytest.mark.parametrize("name", ["lora", "peft", *HEAVY])
def test_every_command_that_inspect_proposes_runs(models, name):
    commands = json.loads(run("inspect", models / name, "--json"))["you can now run"]
    assert commands
    for command in commands:
        if "--help" in command or "--dry-run" in command:
            follow(command)
        else:
            follow(command, "--check", "none")


def test_every_command_that_inspect_proposes_for_a_golden_runs(tiny_bert_dir, tmp_path):
    run("parity", "record", tiny_bert_dir, tmp_path / "golden")
    (command,) = json.loads(run("inspect", tmp_path / "golden", "--json"))["you can now run"]
    follow(command, "--quick")


def test_a_proposed_name_is_free(models, tmp_path):
    (tmp_path / "base-mlx").mkdir()
    (first, *_) = json.loads(run("inspect", models / "base", "--json"))["you can now run"]
    assert first.endswith(" base-2-mlx")


def texts():
    """Yield every text in the code that is no docstring, names in braces as x, with its file."""
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield (
                    path.name,
                    "".join(
                        getattr(part, "value", "x") if isinstance(part, ast.Constant) else "x"
                        for part in node.values
                    ),
                )
            elif isinstance(node, ast.Constant) and id(node) not in documents:
                yield path.name, str(node.value)


def test_no_message_names_a_placeholder_in_a_command():
    """Whoever copies it would get an error for a name that is nowhere."""
    placeholder = re.compile(r"(?:weighbridge|mlx_lm\.\w+|llama-\S+) [^.;]*\b[A-Z]{3,}\b(?!\.)")
    examples = {"routes.py"}
    found = [text for name, text in texts() if name not in examples and placeholder.search(text)]
    assert found == []
