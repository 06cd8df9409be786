"""GGUF files converted by the command line: mlx-lm loads the very numbers that are in the file."""

from __future__ import annotations

import json
import shutil

import gguf
import mlx.core as mx
import numpy as np
import pytest
import transformers

from tests.converters.gguf.models import like_file
from tests.jobs.test_export_gguf_quantized import (
    ARCHITECTURES,
    CONFIGS,
    canonical,
    export,
    farthest,
    quantized,
    run,
    stored,
)
from weighbridge.tests.converters.quantization.conftest import save

PLAIN = {  # a weight whose rows llama.cpp leaves alone
    "llama": ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight"),
    "qwen3_moe": ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
}
KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")


@pytest.fixture(scope="module", params=list(CONFIGS))
def made(request, tmp_path_factory):
    """Return a folder with a dense model in it as PyTorch has it, and one with its config alone."""
    folder, family = tmp_path_factory.mktemp(request.param), request.param
    save(folder / "dense", CONFIGS[family] | {"architectures": [ARCHITECTURES[family]]})
    base, bare = folder / "base", folder / "bare"
    run("convert", "mlx-to-torch", folder / "dense", base, "--check", "none", "--original", "none")
    bare.mkdir()
    shutil.copyfile(base / "config.json", bare / "config.json")
    return folder, family


def file_of(made, kind):
    folder, family = made
    path = folder / f"{kind}.gguf"
    return path if path.exists() else like_file(path, family, folder / "base", kind)


def convert(source, target, like, *more, code=0):
    return run("convert", "gguf-to-mlx", source, target, "--like", like, *more, code=code)


@pytest.mark.parametrize("kind", KINDS)
def test_mlx_has_the_numbers_of_the_file(made, tmp_path, kind):
    folder, family = made
    source, target = file_of(made, kind), tmp_path / "mlx"
    convert(source, target, folder / "bare", "--check", "none")
    gaps = farthest(target, source, undone=family == "llama")
    assert max(gaps.values()) < 1e-6, gaps
    config = json.loads((target / "config.json").read_text())
    assert config["quantization"]["group_size"] == 32


def test_weights_beside_the_config_tell_the_same_as_the_architecture(made, tmp_path):
    folder, _ = made
    for like in ("bare", "base", "dense"):  # the last one is MLX's
        convert(file_of(made, "Q4_1"), tmp_path / like, folder / like, "--check", "none")
    one, *others = (canonical(tmp_path / like) for like in ("bare", "base", "dense"))
    for other in others:
        assert one.keys() == other.keys()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_the_check_runs_the_result_against_the_file(made, tmp_path):
    folder, _ = made
    said = convert(file_of(made, "Q8_0"), tmp_path / "mlx", folder / "bare")
    assert "PASS" in said


def test_there_and_back_keeps_codes_and_scales(made, tmp_path):
    folder, family = made
    config = CONFIGS[family] | {"architectures": [ARCHITECTURES[family]]}
    source = quantized(folder, "four", config, bits=4, group_size=32)
    export(source, tmp_path / "a.gguf", file_of(made, "F16"))
    convert(tmp_path / "a.gguf", tmp_path / "back", folder / "bare", "--check", "none")
    ours, theirs = (mx.load(str(it / "model.safetensors")) for it in (source, tmp_path / "back"))
    found = [name for name in ours if name.endswith(".scales") and "mlp.gate." not in name]
    assert len(found) > 10
    for scales in found:
        for part in ("weight", "scales", "biases"):
            name = scales.replace("scales", part)
            assert mx.array_equal(ours[name], theirs[name]), name


def test_types_without_a_scheme_become_dense(made, tmp_path):
    folder, family = made
    source = tmp_path / "k.gguf"
    config = CONFIGS[family] | {"architectures": [ARCHITECTURES[family]]}
    eight = quantized(folder, "eight", config, bits=8, group_size=32)
    export(eight, source, file_of(made, "F16"), "--type", "BF16")
    convert(source, tmp_path / "mlx", folder / "bare", "--check", "none")
    assert "quantization" not in json.loads((tmp_path / "mlx" / "config.json").read_text())


@pytest.mark.parametrize("fault", ["cut", "no config", "another model", "unknown type"])
def test_bad_input_is_one_error_and_leaves_nothing(made, tmp_path, fault):
    folder, _ = made
    like, source = folder / "bare", tmp_path / "bad.gguf"
    shutil.copyfile(file_of(made, "Q4_0"), source)
    if fault == "cut":
        source.write_bytes(source.read_bytes()[:-100])
    elif fault == "no config":
        like = tmp_path / "empty"
        like.mkdir()
    elif fault == "another model":
        like = tmp_path / "other"
        like.mkdir()
        config = json.loads((folder / "bare" / "config.json").read_text())
        (like / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    else:
        data = bytearray(source.read_bytes())
        name = b"token_embd.weight"
        at = data.index(name) + len(name) + 4 + 16
        data[at : at + 4] = (77).to_bytes(4, "little")
        source.write_bytes(data)
    before = sorted(tmp_path.iterdir())
    said = convert(source, tmp_path / "mlx", like, code=3)
    assert said.count("Error:") == 1
    assert "Traceback" not in said
    assert sorted(tmp_path.iterdir()) == before


def test_pytorch_has_the_numbers_of_the_file(made, tmp_path):
    import torch
    import transformers

    folder, family = made
    source, target = file_of(made, "Q4_1"), tmp_path / "torch"
    words = ("convert", "gguf-to-torch", source, target, "--like", folder / "bare")
    run(*words, "--check", "none", "--dequantize", "fp32")
    module = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    ours, name = PLAIN[family]
    theirs = module.get_parameter(ours).detach().numpy()
    values, _ = stored(source)
    assert np.array_equal(theirs, values[name])


OTHERS = {
    "rope.freq_base": lambda writer: writer.add_rope_freq_base(5e5),
    "attention.layer_norm_rms_epsilon": lambda writer: writer.add_layer_norm_rms_eps(1e-3),
    "attention.head_count": lambda writer: writer.add_head_count(8),
    "rope.scaling.factor": lambda writer: (
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
        writer.add_rope_scaling_factor(4.0),
    ),
}


def test_a_file_that_computes_otherwise_than_the_config_says_is_refused_both_ways(made, tmp_path):
    folder, family = made
    base, file = folder / "base", tmp_path / "other.gguf"
    like_file(file, family, base, "F16", extra=lambda writer: [add(writer) for add in OTHERS.values()])  # fmt: skip
    said = convert(file, tmp_path / "mlx", base, "--check", "none", code=3)
    said += export(base, tmp_path / "out.gguf", file, code=3)
    for name in OTHERS:
        assert said.count(f"{name} is ") == 2, said
    assert not (tmp_path / "mlx").exists()


def test_a_file_that_lacks_the_scaling_of_positions_is_refused(made, tmp_path):
    folder, _ = made
    like = shutil.copytree(folder / "base", tmp_path / "like")
    config = json.loads((like / "config.json").read_text())
    config["rope_parameters"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
    (like / "config.json").write_text(json.dumps(config))
    said = convert(file_of(made, "F16"), tmp_path / "mlx", like, "--check", "none", code=3)
    assert "rope.scaling.factor is not there, factor 4" in said


def test_a_file_whose_metadata_agree_with_the_config_is_taken(made, tmp_path):
    folder, family = made
    config = transformers.AutoConfig.from_pretrained(folder / "base")

    def agree(writer):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_sliding_window(config.sliding_window or 0) if family == "qwen3_moe" else None

    file = like_file(tmp_path / "same.gguf", family, folder / "base", "Q8_0", extra=agree)
    convert(file, tmp_path / "mlx", folder / "bare", "--check", "none")
