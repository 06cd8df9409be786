"""Configuration of any shape: every verb says in one line what is wrong, where, and what to do."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from weighbridge.cli import main

LONG = "x" * 300
BASE = ["data.kind=pairs", "data.train=t", "data.validation=v", "objective.name=contrastive"]


def run(*arguments, code=3):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    assert "Traceback" not in result.output
    assert len(result.output) <= 2_000 or code == 0
    assert result.output.replace("\n", "").isprintable()
    return result.output[max(0, result.output.find("Error: ")) :]  # a slow step says so before


@pytest.fixture
def source(tiny_bert_dir, tmp_path) -> Path:
    return Path(shutil.copytree(tiny_bert_dir, tmp_path / "source"))


DAMAGED = {
    "opened only": "[" * 5_000,
    "digits": '{"model_type": "bert", "hidden_size": ' + "1" * 5_000 + "}",
    "not a number": '{"model_type": "bert", "hidden_size": NaN}',
    "named twice": '{"model_type": "bert", "model_type": "bert"}',
    "nested": '{"model_type": ' + '{"a":' * 500 + "1" + "}" * 501,
    "half a character": '{"model_type": "\\ud800"}',
    "a list": "[1]",
    "empty": "",
    "cut off": '{"model_type": "bert"',
    "control characters": '{"\x1b[2J": 1}',
    "UTF-16": '{"model_type": "bert"}'.encode("utf-16"),
}
FILES = ["config.json", "generation_config.json", "tokenizer_config.json", "modules.json"]


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("verb", ["inspect", "convert", "parity check", "map show", "merge"])
def test_a_damaged_config_is_one_line(source, tmp_path, verb, damage):
    content = DAMAGED[damage]
    (source / "config.json").write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )
    arguments = {
        "inspect": ["inspect", source],
        "convert": ["convert", "torch-to-mlx", source, tmp_path / "out"],
        "parity check": ["parity", "check", source, source],
        "map show": ["map", "show", source],
        "merge": ["merge", source, source, tmp_path / "out"],
    }
    if verb == "merge":
        (source / "adapter_config.json").write_text("{}")
    message = run(*arguments[verb])
    assert "config.json: " in message
    assert message.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", FILES[1:])
def test_a_damaged_file_beside_the_weights_is_one_line(source, tmp_path, name):
    (source / name).write_text('{"a": 1, "a": 2}')
    message = run("convert", "torch-to-mlx", source, tmp_path / "out", "--check", "none")
    assert f"{name}: a is named twice" in message
    assert not (tmp_path / "out").exists()


VALUES = [True, 0, -7, 1.5, 10**30, "x" * 600, "\x1b[2J", [None], {"a": 1}]
READ = ["model_type", "architectures", "hidden_size", "vocab_size", "num_hidden_layers"]
READ += ["max_position_embeddings", "eos_token_id", "quantization", "text_config", "id2label"]
READ += ["quantization_config", "model_file", "weighbridge_factory", "tie_word_embeddings"]


@pytest.mark.parametrize("value", VALUES, ids=lambda it: repr(it)[:12])
@pytest.mark.parametrize("field", READ)
def test_a_field_of_any_value_is_read_or_refused(source, field, value):
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {field: value}))
    result = CliRunner().invoke(main, ["inspect", str(source)])
    assert result.exit_code in (0, 3), result.output
    assert "Traceback" not in result.output
    assert "\x1b" not in result.output


def test_all_wrong_fields_are_told_together(source):
    config = json.loads((source / "config.json").read_text())
    wrong = {"model_type": ["bert"], "architectures": [None], "text_config": {"vocab_size": "9"}}
    (source / "config.json").write_text(json.dumps(config | wrong))
    head, *problems = run("inspect", source).splitlines()
    assert head.endswith("config.json: 3 problems; correct it, or download it again")
    assert [problem.strip() for problem in problems] == [
        "model_type is a list, expected a name of at most 200 characters",
        "architectures is a list, expected a name of at most 200 characters or a list",
        "text_config.vocab_size is '9', expected a whole number from 0 to 2,147,483,647",
    ]


def test_infinity_in_a_config_of_transformers_4_is_read(source):
    config = json.loads((source / "config.json").read_text())
    config["time_step_limit"] = [0.0, float("inf")]
    (source / "config.json").write_text(json.dumps(config))
    run("inspect", source, code=0)


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", LONG],
        ["convert", "torch-to-mlx", LONG, "out"],
        ["convert", "torch-to-mlx", "{source}", LONG, "--check", "none"],
        ["convert", "torch-to-mlx", "{source}", "out", "--adapter", LONG],
        ["parity", "check", LONG, LONG],
        ["parity", "record", "{source}", LONG],
        ["map", "show", LONG],
        ["merge", LONG, LONG, LONG],
        ["merge", "{source}", LONG, LONG],
        ["train", LONG, "--config", "minilm-lora"],
        ["train", "t", "--config", LONG],
        ["preflight", "--config", "minilm-lora", "--set", f"model={LONG}"],
        ["export", "coreml", LONG, LONG + ".mlpackage"],
    ],
    ids=lambda it: " ".join(it)[:30],
)
def test_a_path_that_is_too_long_is_one_line(arguments, source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = run(*[argument.replace("{source}", str(source)) for argument in arguments])
    assert message.count("\n") == 1


SETTINGS = {
    "deep": "[" * 20_000,
    "bomb": "a: &a [x]\nb: [*a, *a]",
    "digits": "steps: " + "1" * 5_000,
    "numbers as keys": "1: a",
    "code": "!!python/object/apply:os.system [ls]",
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("verb", ["train", "preflight"])
def test_settings_that_nobody_means_are_one_line(tmp_path, verb, name):
    config = tmp_path / "run.yaml"
    config.write_text(SETTINGS[name])
    target = [tmp_path / "run"] if verb == "train" else []
    message = run(verb, *target, "--config", config)
    assert message.startswith(f"Error: {config}: ")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", ["1" * 5_000, "[" * 20_000, ".nan", "!!int x", "{a: 1, a: 2}"])
def test_a_value_of_set_that_nobody_means_is_one_line(tmp_path, value):
    sets = [word for item in [*BASE, f"steps={value}"] for word in ("--set", item)]
    message = run("train", tmp_path / "run", *sets)
    assert message.startswith("Error: --set steps: ")


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ELOOP, errno.ESTALE])
def test_a_disk_that_fails_while_reading_is_one_line(source, monkeypatch, code):
    real = os.open

    def fail(path, *arguments, **options):
        if str(path).endswith("config.json"):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", fail)
    assert f"config.json: {os.strerror(code)}; " in run("inspect", source)
