"""Conversions as a user runs them; the oracles are the native loaders of each side."""

import json
import re

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer, BertModel

from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.values import LowRank
from weighbridge.tests.support.quantized_bases import quantized

UNCHECKED = jobs.Options(check="none")
NAMES = [
    f"encoder.layer.{n}.attention.self.{p}.weight" for n in range(2) for p in ("query", "value")
]


@pytest.fixture(scope="module")
def mlx_dir(tiny_bert_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mlx") / "bert"
    jobs.convert(str(tiny_bert_dir), folder, "mlx", options=UNCHECKED)
    return folder


@pytest.fixture(scope="module")
def adapter(mlx_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapter") / "run"
    tensors, generator, updates = (
        load_file(mlx_dir / "model.safetensors"),
        np.random.default_rng(0),
        {},
    )
    for name in NAMES:
        out, into = tensors[name].shape
        a, b = generator.normal(size=(3, into)), generator.normal(size=(out, 3)) * 0.1
        updates[name] = LowRank(a.astype(np.float32), b.astype(np.float32), 2.0)
    parameters = {
        "rank": 3,
        "scale": 2.0,
        "dropout": 0.0,
        "keys": ["attention.self.query", "attention.self.value"],
    }
    write_adapter(
        folder,
        updates,
        config={"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters},
    )
    return folder


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result


def test_there_and_back_is_byte_identical(tiny_bert_dir, mlx_dir, tmp_path):
    jobs.convert(str(mlx_dir), tmp_path / "home", "torch", options=UNCHECKED)
    before, after = (load_file(f / "model.safetensors") for f in (tiny_bert_dir, tmp_path / "home"))
    assert {name: array.tobytes() for name, array in before.items()} == {
        name: array.tobytes() for name, array in after.items()
    }


def test_transformers_opens_what_came_home(tiny_bert_dir, mlx_dir, tmp_path):
    jobs.convert(str(mlx_dir), tmp_path / "home", "torch", options=UNCHECKED)
    _, report = BertModel.from_pretrained(tmp_path / "home", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = [
        AutoTokenizer.from_pretrained(f)("a test")["input_ids"]
        for f in (tiny_bert_dir, tmp_path / "home")
    ]
    assert ids[0] == ids[1]


def test_sentence_transformers_opens_what_came_home(tiny_bert_dir, mlx_dir, tmp_path):
    from sentence_transformers import SentenceTransformer

    jobs.convert(str(mlx_dir), tmp_path / "home", "torch", options=UNCHECKED)
    both = [
        SentenceTransformer(str(f), device="cpu").encode("a test")
        for f in (tiny_bert_dir, tmp_path / "home")
    ]
    assert np.array_equal(*both)


def test_an_adapter_is_merged_as_peft_merges_it(tiny_bert_dir, mlx_dir, adapter, tmp_path):
    from peft import LoraConfig, get_peft_model

    outcome = jobs.convert(
        str(mlx_dir), tmp_path / "home", "torch", adapter=adapter, options=UNCHECKED
    )
    base = BertModel.from_pretrained(tiny_bert_dir)
    peft = get_peft_model(base, LoraConfig(r=3, lora_alpha=6, target_modules=["query", "value"]))
    for name, array in load_file(adapter / "adapters.safetensors").items():
        path, _, half = name.rpartition(".")
        layer = peft.base_model.model.get_submodule(path)
        getattr(layer, {"lora_a": "lora_A", "lora_b": "lora_B"}[half])[
            "default"
        ].weight.data = torch.from_numpy(array.T.copy())
    theirs = peft.merge_and_unload().state_dict()
    ours = load_file(tmp_path / "home" / "model.safetensors")
    assert sorted(outcome.facts["merged"]) == sorted(NAMES)
    for name in NAMES:
        assert np.allclose(ours[name], theirs[name].numpy(), rtol=0, atol=2e-7), name


def test_a_quick_check_passes_a_good_merge_and_is_recorded(mlx_dir, adapter, tmp_path):
    outcome = jobs.convert(str(mlx_dir), tmp_path / "home", "torch", adapter=adapter)
    manifest = json.loads((tmp_path / "home" / "weighbridge.json").read_text())
    assert outcome.status == manifest["verdict"]["status"] == "PASS"


def test_a_dry_run_prints_the_plan_and_writes_nothing(tiny_bert_dir, tmp_path):
    result = invoke("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--dry-run")
    assert "attention.self.query" in result.stdout
    assert not list(tmp_path.iterdir())


def test_json_is_one_document_on_stdout(tiny_bert_dir, tmp_path):
    result = invoke(
        "convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--check", "none", "--json"
    )
    document = json.loads(result.stdout)
    assert document["status"] == "UNVERIFIED"
    assert set(document["facts"]["tensors"]) == set(
        load_file(tmp_path / "out" / "model.safetensors")
    )


def test_force_replaces_the_target(tiny_bert_dir, tmp_path):
    command = ("convert", "torch-to-mlx", tiny_bert_dir, tmp_path / "out", "--check", "none")
    invoke(*command, "--max-shard-size", "0.00001")
    assert not (tmp_path / "out" / "model.safetensors").exists()
    invoke(*command, "--force")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert not list((tmp_path / "out").glob("model-*"))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_shards_are_written_and_read_alike(tiny_bert_dir, tmp_path):
    invoke(
        "convert",
        "torch-to-mlx",
        tiny_bert_dir,
        tmp_path / "mlx",
        "--check",
        "none",
        "--max-shard-size",
        "0.00001",
    )
    assert len(list((tmp_path / "mlx").glob("model-*.safetensors"))) > 1
    invoke("convert", "mlx-to-torch", tmp_path / "mlx", tmp_path / "home", "--check", "none")
    before, after = (load_file(f / "model.safetensors") for f in (tiny_bert_dir, tmp_path / "home"))
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_merge_keeps_the_framework_and_equals_merging_on_the_way_home(mlx_dir, adapter, tmp_path):
    jobs.merge(str(mlx_dir), adapter, tmp_path / "merged", options=UNCHECKED)
    jobs.convert(str(tmp_path / "merged"), tmp_path / "one", "torch", options=UNCHECKED)
    jobs.convert(str(mlx_dir), tmp_path / "two", "torch", adapter=adapter, options=UNCHECKED)
    one, two = (load_file(tmp_path / f / "model.safetensors") for f in ("one", "two"))
    assert all(np.array_equal(one[name], two[name]) for name in two)


@pytest.mark.parametrize(
    ("spec", "expected", "verb"),
    [("mlx_dir", "an MLX model", "convert mlx-to-torch"), ("adapter", "a LoRA adapter", "merge")],
)
def test_inspect_ends_in_what_can_be_run(request, spec, expected, verb):
    output = invoke("inspect", request.getfixturevalue(spec)).stdout
    assert expected in output
    assert f"weighbridge {verb}" in output.split("you can now run:")[1]


def test_inspect_tells_how_weights_are_quantized_and_what_was_trained_whole(tmp_path):
    source = quantized(tmp_path, bits=4, mode="mxfp4", group_size=32)
    there = tmp_path / "there"
    jobs.convert(str(source), there, "torch", options=UNCHECKED)
    for path, more in ((source, "--dequantize"), (there, "quant_method: compressed-tensors")):
        output = invoke("inspect", path).stdout
        assert re.search(r"quantized weights:\n  4-bit mxfp4, groups of 32  \d+\n", output)
        assert more in output
    whole = tmp_path / "whole"
    whole.mkdir()
    settings = {"fine_tune_type": "full", "lora_parameters": None, "model": str(source)}
    (whole / "adapter_config.json").write_text(json.dumps(settings))
    save_file({"lm_head.weight": np.ones((2, 3), np.float32)}, whole / "adapters.safetensors")
    output = invoke("inspect", whole).stdout
    assert "is: weights that mlx-lm trained whole" in output
    assert output.split("you can now run:")[1].split()[:3] == ["weighbridge", "merge", str(source)]


def test_a_merge_keeps_the_map_sizes_and_layout_check_of_its_base(mlx_dir, adapter, tmp_path):
    jobs.convert(str(mlx_dir), tmp_path / "home", "torch", options=UNCHECKED)
    checked = tmp_path / "checked"
    jobs.convert(str(tmp_path / "home"), checked, "mlx")
    jobs.merge(str(checked), adapter, tmp_path / "merged", options=UNCHECKED)
    before, after = (
        json.loads((folder / "weighbridge.json").read_text())
        for folder in (checked, tmp_path / "merged")
    )
    for key in ("map", "sizes", "layout_check"):
        assert after[key] == before[key], key


def test_a_merged_torch_directory_goes_to_mlx_with_its_table(tiny_bert_dir, adapter, tmp_path):
    jobs.merge(str(tiny_bert_dir), adapter, tmp_path / "merged", options=UNCHECKED)
    outcome = jobs.convert(str(tmp_path / "merged"), tmp_path / "mlx", "mlx")
    assert outcome.status == "PASS"
    assert "table bert" in outcome.verdict.stage("layout").detail
