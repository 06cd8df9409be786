"""Quantized models exported to GGUF by the command line: the numbers are those that MLX has."""

from __future__ import annotations

import subprocess
import sys

import gguf
import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner
from mlx_lm.utils import load_model

from tests.converters.gguf.models import like_file
from weighbridge.cli import main
from weighbridge.tests.converters.quantization.conftest import LLAMA, MOE, save

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}
CONFIGS = {"llama": LLAMA | {"head_dim": 16}, "qwen3_moe": MOE | {"num_hidden_layers": 2}}
HEADS = {"attn_q": 4, "attn_k": 2}


def run(*words, code=0):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def export(source, target, like, *more, code=0):
    return run("export", "gguf", source, target, "--like", like, *more, code=code)


def make(folder, family):
    """Return the base of FAMILY in FOLDER as mlx-lm has it, and its GGUF file."""
    config = CONFIGS[family] | {"architectures": [ARCHITECTURES[family]]}
    save(folder / "dense", config)
    base = folder / "base"
    run("convert", "mlx-to-torch", folder / "dense", base, "--check", "none", "--original", "none")
    return config, like_file(folder / "base.gguf", family, base, "F16")


@pytest.fixture(scope="module", params=list(CONFIGS))
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return folder, *make(folder, request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    return folder, *make(folder, "llama")


def quantized(folder, name, config, dtype="float16", **how):
    path = folder / name
    if not path.exists():
        save(path, config, dtype, **how)
    return path


def canonical(path):
    """Return each weight of the mlx-lm model at PATH in float64, and how it is quantized."""
    model, _ = load_model(path)
    found = {}
    for name, module in model.named_modules():
        if "scales" not in module:
            continue
        how = {key: getattr(module, key) for key in ("group_size", "bits", "mode")}
        wide = [
            part.astype(mx.float32) if part.dtype != mx.uint8 else part
            for part in (module.scales, module.get("biases"))
            if part is not None
        ]
        found[name] = np.array(mx.dequantize(module.weight, *wide, **how, dtype=mx.float32))
    return found


def stored(path):
    """Return every tensor of the GGUF file at PATH, rows of heads as MLX has them, and the types."""
    values, types = {}, {}
    for tensor in gguf.GGUFReader(path).tensors:
        rows = gguf.dequantize(tensor.data, tensor.tensor_type)
        heads = next((HEADS[key] for key in HEADS if f".{key}." in tensor.name), None)
        values[tensor.name], types[tensor.name] = rows, tensor.tensor_type.name
        if heads and "attn_q_norm" not in tensor.name:
            shape = (heads, len(rows) // heads // 2, 2, *rows.shape[1:])
            values[f"{tensor.name}, undone"] = (
                rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape)
            )
    return values, types


WITHOUT = """
import sys
from weighbridge.cli import main
main(sys.argv[1:], standalone_mode=False)
print([it for it in ("torch", "transformers", "mlx") if it in sys.modules])
"""


def test_an_export_reads_defaults_without_holding_the_frameworks_in_memory(llama, monkeypatch):
    folder, config, like = llama
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(folder / "cache"))
    source = quantized(folder, "small", config, group_size=32, bits=4)
    words = ["export", "gguf", source, folder / "small.gguf", "--like", like]
    (folder / "export.py").write_text(WITHOUT)
    command = [sys.executable, folder / "export.py", *map(str, words), "--check", "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


NAMES = {
    "model.embed_tokens": "token_embd.weight",
    "lm_head": "output.weight",
    **{
        f"model.layers.{i}.{ours}": f"blk.{i}.{theirs}.weight"
        for i in range(2)
        for ours, theirs in {
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.o_proj": "attn_output",
            "mlp.gate_proj": "ffn_gate",
            "mlp.up_proj": "ffn_up",
            "mlp.down_proj": "ffn_down",
            "mlp.gate": "ffn_gate_inp",
            "mlp.switch_mlp.gate_proj": "ffn_gate_exps",
            "mlp.switch_mlp.up_proj": "ffn_up_exps",
            "mlp.switch_mlp.down_proj": "ffn_down_exps",
        }.items()
    },
}


def farthest(source, target, *, undone):
    """Return by GGUF name how far each quantized weight of SOURCE is from the numbers in TARGET."""
    values, _ = stored(target)
    weights = canonical(source)
    assert len(weights) > 10
    found = {}
    for name, weight in weights.items():
        theirs = NAMES[name]
        there = values.get(f"{theirs}, undone") if undone else None
        there = values[theirs] if there is None else there
        found[theirs] = float(np.max(np.abs(there - weight)))
    return found


SCHEMES = {
    "affine 4/64": ({"bits": 4, "group_size": 64}, {"Q4_0", "Q4_1"}),
    "affine 5/32": ({"bits": 5, "group_size": 32}, {"Q5_0", "Q5_1"}),
    "affine 3/64": ({"bits": 3, "group_size": 64}, {"Q4_0", "Q4_1"}),
    "affine 2/32": ({"bits": 2, "group_size": 32}, {"Q4_0", "Q4_1"}),
    "mxfp4": ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, {"MXFP4"}),
    "nvfp4": ({"bits": 4, "group_size": 16, "mode": "nvfp4"}, {"NVFP4"}),
    "mxfp8": ({"bits": 8, "group_size": 32, "mode": "mxfp8"}, {"BF16"}),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_value_of_a_quantized_model_is_in_the_file(made, tmp_path, scheme):
    folder, config, like = made
    how, kinds = SCHEMES[scheme]
    source = quantized(folder, scheme.replace("/", "-"), config, **how)
    said = export(source, tmp_path / "a.gguf", like)
    family = config["model_type"]
    gaps = farthest(source, tmp_path / "a.gguf", undone=family == "llama")
    assert max(gaps.values()) < 2e-7, gaps  # MLX rounds to float32 twice
    _, types = stored(tmp_path / "a.gguf")
    assert {types["blk.0.attn_q.weight"], types["token_embd.weight"]} <= kinds
    assert types["blk.0.attn_norm.weight"] == "F32"
    assert "read back" in said
    assert "0 rounded" in said


def test_other_schemes_for_some_layers_take_other_types(llama, tmp_path):
    folder, config, like = llama
    five = {"bits": 5, "group_size": 32}

    def predicate(path, _):
        return five if "down" in path else path != "lm_head"

    source = folder / "mixed"
    save(source, config, "bfloat16", predicate, bits=4, group_size=32)
    export(source, tmp_path / "a.gguf", like)
    _, types = stored(tmp_path / "a.gguf")
    assert types["blk.1.ffn_down.weight"].startswith("Q5_")
    assert types["blk.1.ffn_up.weight"].startswith("Q4_")
    assert types["output.weight"] == "BF16"
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    assert reader.fields["general.file_type"].contents() in (2, 3)
    assert reader.fields["general.quantization_version"].contents() == gguf.GGML_QUANT_VERSION


@pytest.mark.parametrize("bits", [6, 8])
def test_codes_that_no_type_keeps_are_refused_by_name(llama, tmp_path, bits):
    folder, config, like = llama
    source = quantized(folder, f"affine{bits}", config, bits=bits, group_size=64)
    said = export(source, tmp_path / "a.gguf", like, code=3)
    assert "--allow-lossy" in said
    assert "blk.0.attn_q.weight" in said
    assert not list(tmp_path.iterdir())
    said = export(source, tmp_path / "a.gguf", like, "--allow-lossy")
    assert "Q8_0" in said
    assert "blk.0.attn_q.weight: relative error" in said
    gaps = farthest(source, tmp_path / "a.gguf", undone=True)
    assert 0 < max(gaps.values()) < 0.02


def test_float32_keeps_the_values_of_any_codes(llama, tmp_path):
    folder, config, like = llama
    source = quantized(folder, "affine8", config, bits=8, group_size=64)
    export(source, tmp_path / "a.gguf", like, "--type", "F32")
    assert max(farthest(source, tmp_path / "a.gguf", undone=True).values()) < 2e-7


def test_scales_that_float16_does_not_hold_are_named_with_their_steps(llama, tmp_path):
    folder, config, like = llama
    source = quantized(folder, "wide", config, "float32", bits=4, group_size=64)
    said = export(source, tmp_path / "a.gguf", like, code=3)
    assert "steps at most" in said
    export(source, tmp_path / "a.gguf", like, "--allow-lossy")


def test_a_model_quantized_from_another_is_refused(llama, tmp_path):
    folder, config, like = llama
    source = folder / "another"
    if not source.exists():
        save(source, config, "float16", seed=9, bits=4, group_size=64)
    said = export(source, tmp_path / "a.gguf", like, code=3)
    assert "far from it" in said
    assert not list(tmp_path.iterdir())


def test_types_of_codes_are_for_quantized_models_alone(llama, tmp_path):
    folder, _, like = llama
    said = export(folder / "base", tmp_path / "a.gguf", like, "--type", "Q4_1", code=3)
    assert "quantized" in said


def test_without_a_check_it_says_unverified(llama, tmp_path):
    folder, config, like = llama
    source = quantized(folder, "affine 4-64", config, bits=4, group_size=64)
    assert "UNVERIFIED" in export(source, tmp_path / "a.gguf", like, "--check", "none")
