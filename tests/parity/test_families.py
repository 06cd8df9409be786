"""Language models are weighed by logits, whoever runs them and however their weights are cut."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from weighbridge.converters.configs import to_mlx
from weighbridge.converters.libraries import find
from weighbridge.converters.models import open as open_model
from weighbridge.jobs.checking import compare
from weighbridge.parity.goldens.golden import Golden
from weighbridge.parity.goldens.recorder import record
from weighbridge.tests.support.atlas.tiny import make


def sixteen(folder):
    """Keep the weights in FOLDER in bfloat16."""
    import torch

    file = folder / "model.safetensors"
    tensors = {name: it.to(torch.bfloat16) for name, it in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Return the folders of a tiny model of a type, torch's and mlx-lm's; ``-bf16`` for 16 bits."""
    root, made = tmp_path_factory.mktemp("pairs"), {}

    def both(kind):
        if kind in made:
            return made[kind]
        folder, out = make(kind.removesuffix("-bf16"), root / kind).folder, root / f"{kind}-mlx"
        if kind.endswith("-bf16"):
            sixteen(folder)
        config = json.loads((folder / "config.json").read_text())
        target = find(config)
        config = to_mlx(config, target).config
        out.mkdir()
        weights = target.sanitize(config, mx.load(str(folder / "model.safetensors")))
        mx.save_safetensors(str(out / "model.safetensors"), weights, metadata={"format": "mlx"})
        (out / "config.json").write_text(json.dumps(config))
        made[kind] = folder, out
        return made[kind]

    return both


@pytest.mark.parametrize("way", ["to mlx", "to torch"])
@pytest.mark.parametrize(
    "kind",
    [
        *("llama", "qwen3_moe", "deepseek_v3", "lfm2"),
        pytest.param("qwen3_next-bf16", marks=pytest.mark.heavy),
    ],
)
def test_a_right_conversion_passes_both_ways(pairs, kind, way):
    torch, mlx = map(open_model, pairs(kind))
    verdict = compare(torch, mlx) if way == "to mlx" else compare(mlx, torch)
    assert verdict.status == "PASS", [stage for stage in verdict.stages if stage.status != "pass"]
    assert "own class" in verdict.stage("layout").detail


@pytest.mark.parametrize("way", ["to mlx", "to torch"])
def test_only_the_tower_and_its_processor_keep_a_right_conversion_from_passing(pairs, way):
    torch, mlx = map(open_model, pairs("qwen3_vl"))
    verdict = compare(torch, mlx) if way == "to mlx" else compare(mlx, torch)
    assert verdict.status == "UNVERIFIED"
    others = [(stage.name, stage.status) for stage in verdict.stages if stage.status != "pass"]
    open_ = {("towers", "unverified"), ("processor", "unverified")}
    assert open_ <= set(others)
    assert {status for name, status in others if (name, status) not in open_} <= {"skipped"}


def test_an_embedding_s_scale_in_sixteen_bits_is_the_source_s_too(pairs):
    torch, mlx = map(open_model, pairs("gemma3_text-bf16"))
    structure = compare(torch, mlx).stage("structure")
    assert structure.status == "pass"
    assert "scale rounded to bfloat16 on both sides" in structure.detail


def test_experts_in_another_order_differ(pairs, tmp_path):
    torch, mlx = pairs("qwen3_moe")
    weights = mx.load(str(mlx / "model.safetensors"))
    name = "model.layers.1.mlp.switch_mlp.up_proj.weight"
    weights[name] = weights[name][mx.array([1, 0, 2, 3, 4, 5])]
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights, metadata={"format": "mlx"})
    (tmp_path / "config.json").write_text((mlx / "config.json").read_text())
    verdict = compare(open_model(torch), open_model(tmp_path))
    failed = [stage.name for stage in verdict.stages if stage.status == "fail"]
    assert failed == ["fingerprints", "structure"]


def test_a_golden_knows_whose_layout_its_source_has(pairs, tmp_path):
    golden = record(open_model(pairs("llama")[0]), precisions=())
    golden.save(tmp_path)
    assert Golden.load(tmp_path).framework == golden.framework == "torch"
    assert Golden.load(tmp_path).provenance["model_type"] == "llama"


def test_a_saved_golden_explains_stacked_experts_without_its_source(pairs, tmp_path):
    torch, mlx = pairs("deepseek_v3")
    record(open_model(torch), precisions=()).save(tmp_path)
    verdict = compare(Golden.load(tmp_path), open_model(mlx))
    assert verdict.stage("fingerprints").status == "pass"
    assert verdict.stage("structure").status == "pass"


def test_language_models_are_probed_with_ids_alone_at_several_lengths(pairs):
    golden = record(open_model(pairs("llama")[0]), precisions=())
    assert {tuple(probe.inputs) for probe in golden.probes} == {("input_ids",)}
    assert len({probe.inputs["input_ids"].shape for probe in golden.probes}) == 4
    assert all(np.isfinite(row["logits"]).all() for row in golden.outputs["stored"])
