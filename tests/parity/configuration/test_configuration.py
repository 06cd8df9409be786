"""A setting that code reads and that is not the source's is named, seen by outputs or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from weighbridge.cli import main
from weighbridge.jobs import Options, convert
from weighbridge.tests.support.atlas.tiny import make

FIXTURES = Path(__file__).parents[3] / "fixtures"


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return the folders of a tiny model of a type and of what it was converted to."""
    root, made = tmp_path_factory.mktemp("pairs"), {}

    def both(kind):
        if kind not in made:
            own = FIXTURES / kind / "model"
            source = own if own.is_dir() else make(kind, root / kind).folder
            target = source
            if kind != "t5":  # its capture takes long; transformers' code runs both sides
                target = root / f"{kind}-mlx"
                convert(str(source), target, "mlx", options=Options(check="none"))
            made[kind] = source, target
        return made[kind]

    return both


def checked(*arguments):
    """Return the exit code of a quick check, and its stages by name."""
    result = CliRunner().invoke(
        main, ["parity", "check", *map(str, arguments), "--quick", "--json"]
    )
    stages = json.loads(result.output)["stages"]
    return result.exit_code, {stage["name"]: stage for stage in stages}


def changed(folder, target, **settings):
    """Return a copy of FOLDER at TARGET with other SETTINGS."""
    shutil.copytree(folder, target)
    config = json.loads((folder / "config.json").read_text()) | settings
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize("kind", ["t5", "bert", "llama", "qwen3_moe"])
def test_a_conversion_has_the_settings_of_its_source(pairs, kind):
    code, stages = checked(*pairs(kind))
    assert (code, stages["configuration"]["status"]) == (0, "pass")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("t5", {"layer_norm_epsilon": 1e-4}),
        ("t5", {"relative_attention_max_distance": 32}),
        ("bert", {"layer_norm_eps": 1e-6}),
        ("llama", {"max_position_embeddings": 13}),
        ("llama", {"rms_norm_eps": 1e-4}),
        ("llama", {"rope_theta": 500.0}),
        ("qwen3_moe", {"num_experts_per_tok": 1}),
    ],
)
def test_another_setting_is_named_with_both_values_and_its_reader(pairs, tmp_path, kind, settings):
    source, converted = pairs(kind)
    code, stages = checked(source, changed(converted, tmp_path / "other", **settings))
    [(key, value)] = settings.items()
    stage = stages["configuration"]
    assert (code, stage["status"]) == (1, "fail")
    assert key in stage["detail"]
    assert repr(value) in stage["detail"]
    assert "read by" in stage["detail"]


def test_a_setting_that_nobody_reads_may_differ(pairs, tmp_path):
    source, converted = pairs("llama")
    candidate = changed(converted, tmp_path / "other", initializer_range=1.0, remark="none")
    assert checked(source, candidate)[0] == 0


def test_a_golden_on_disk_knows_the_settings(pairs, tmp_path):
    source, converted = pairs("t5")
    recording = ["parity", "record", str(source), str(tmp_path / "golden")]
    assert CliRunner().invoke(main, recording).exit_code == 0
    candidate = changed(converted, tmp_path / "other", layer_norm_epsilon=1e-4)
    code, stages = checked(tmp_path / "golden", candidate)
    assert (code, stages["configuration"]["status"]) == (1, "fail")


@pytest.mark.parametrize(("activation", "code"), [("gelu", 4), ("gelu_pytorch_tanh", 0)])
def test_a_captured_family_is_unverified_where_the_class_that_loads_it_computes_otherwise(
    tmp_path, activation, code
):
    source = tmp_path / "modernbert"
    shutil.copytree(FIXTURES / "modernbert" / "model", source)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"hidden_activation": activation}))
    result = CliRunner().invoke(
        main, ["convert", "torch-to-mlx", str(source), str(tmp_path / "mlx")]
    )
    assert result.exit_code == code, result.output
    assert ("computes the tanh form of gelu" in result.output) is (code == 4)


@pytest.mark.parametrize("ties", ["source", "candidate"])
def test_a_head_may_be_tied_or_written_out_where_its_values_are_the_embedding_s(ties, tmp_path):
    def edit(folder, *, tied, head=1.0):
        path, config = folder / "model.safetensors", folder / "config.json"
        tensors = load_file(path)
        tensors.pop("lm_head.weight", None)
        if not tied:
            tensors["lm_head.weight"] = head * tensors["model.embed_tokens.weight"]
        save_file(tensors, path, metadata={"format": "pt"})
        settings = json.loads(config.read_text()) | {"tie_word_embeddings": tied}
        config.write_text(json.dumps(settings))

    source, mlx = tmp_path / "source", tmp_path / "mlx"
    shutil.copytree(FIXTURES / "llama" / "model", source)
    edit(source, tied=ties == "source")
    convert(str(source), mlx, "mlx", options=Options(check="none"))
    edit(mlx, tied=ties == "candidate")
    assert checked(source, mlx)[0] == 0
    other = (mlx, source)[ties == "candidate"]
    edit(other, tied=False, head=np.float32(1.001))
    assert checked(source, mlx)[0] == 1
