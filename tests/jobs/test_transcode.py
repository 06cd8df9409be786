"""Quantized models converted as any other: the same codes and scales, by the command line."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from mlx_lm.models import llama, qwen3_moe
from mlx_lm.utils import load_model

from weighbridge.cli import main
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.converters.planning.transcoding import quantized_view
from weighbridge.converters.quantization.formats import registry
from weighbridge.parity.quantized.loaded import loaded_stage
from weighbridge.tests.support.quantized_bases import LLAMA, MOE, quantized, trained
from weighbridge.verbs.options import QUANT_METHODS

DENSE = LLAMA | {"architectures": ["LlamaForCausalLM"], "head_dim": 16}
EXPERTS = MOE | {"architectures": ["Qwen3MoeForCausalLM"]}
IDS = [[3, 200, 17, 9, 250, 31, 4]]


def run(verb, source, target, *more, code=0):
    """Convert SOURCE by VERB; return what was printed."""
    result = CliRunner().invoke(main, ["convert", verb, str(source), str(target), *map(str, more)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


@pytest.fixture(scope="module", params=[2, 4, 8])
def there(request, tmp_path_factory):
    """Return a quantized Llama of MLX and what it becomes in PyTorch."""
    folder = tmp_path_factory.mktemp(f"bits{request.param}")
    source = quantized(folder, DENSE, llama, bits=request.param)
    verdict = json.loads(run("mlx-to-torch", source, folder / "torch", "--json"))["verdict"]
    return source, folder / "torch", verdict


def test_transformers_loads_the_weights_that_mlx_has(there):
    _, _, verdict = there
    first = verdict["stages"][0]
    assert (verdict["status"], first["name"], first["status"]) == ("PASS", "loaded", "pass")
    assert "transformers loads all 15 quantized weights" in first["detail"]


def test_transformers_computes_what_mlx_computes(there):
    source, made, _ = there
    module = transformers.AutoModelForCausalLM.from_pretrained(made, device_map="cpu").float()
    model, _ = load_model(source)
    model.set_dtype(mx.float32)
    with torch.no_grad():
        found = module(torch.tensor(IDS)).logits.numpy()
    expected = np.array(model(mx.array(IDS)))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()


def test_a_merge_into_codes_that_no_merge_writes_is_refused_in_one_line(there, tmp_path):
    _, made, _ = there
    given = ["merge", str(made), str(tmp_path), str(tmp_path / "merged")]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 3, result.output
    said = " ".join(result.output.split())
    assert "and codes of that format are not merged into; keep the adapter live" in said
    assert f"weighbridge convert torch-to-mlx {made} {made.name}-mlx" in said


def test_the_way_back_gives_the_same_codes_and_scales(there, tmp_path):
    source, made, _ = there
    run("torch-to-mlx", made, tmp_path / "back", "--check", "none")
    first, again = open_checkpoint(source), open_checkpoint(tmp_path / "back")
    packed = [name for name in first.headers if "embed_tokens" not in name]
    for name in packed:
        assert again.read(name).tobytes() == first.read(name).tobytes(), name
    name = "model.embed_tokens.weight"
    dense = quantized_view(open_model(source)).checkpoint.read(name).astype(np.float16)
    assert np.array_equal(again.read(name), dense)  # rounded once, as MLX reads it
    load_model(tmp_path / "back")


def test_experts_come_back_as_they_were(tmp_path):
    source = quantized(tmp_path, EXPERTS, qwen3_moe)
    how = ("--quant-method", "metal", "--json")
    verdict = json.loads(run("mlx-to-torch", source, tmp_path / "torch", *how))["verdict"]
    assert verdict["status"] == "PASS", verdict
    run("torch-to-mlx", tmp_path / "torch", tmp_path / "back")
    one, two = (quantized_view(open_model(path)).checkpoint for path in (source, tmp_path / "back"))
    for name in one.headers:
        linear = "self_attn" in name or "lm_head" in name
        wanted = one.read(name) if linear else one.read(name).astype(np.float16)  # dense there
        assert np.array_equal(wanted, two.read(name)), name


def test_experts_stay_quantized_where_a_format_has_codes_for_them(tmp_path):
    source = quantized(tmp_path, EXPERTS, qwen3_moe)
    said = run("mlx-to-torch", source, tmp_path / "torch", "--check", "none")
    assert "24 weights of experts have zero points" in " ".join(said.split())
    section = json.loads((tmp_path / "torch" / "config.json").read_text())["quantization_config"]
    assert section["quant_method"] == "compressed-tensors"
    experts = [n for n in open_checkpoint(tmp_path / "torch").headers if ".experts." in n]
    assert {name.rpartition(".")[2] for name in experts} >= {"weight_packed", "weight_scale"}


@pytest.mark.parametrize("method", [None, "gptq"])
def test_a_router_is_dense_as_its_class_has_no_linear_layer_there(tmp_path, method):
    source = quantized(tmp_path, EXPERTS, qwen3_moe)  # by mlx-lm in 8 bits, as the class says
    how = ["--quant-method", method] if method else []
    run("mlx-to-torch", source, tmp_path / "torch", "--check", "none", *how)
    made = open_model(str(tmp_path / "torch"))
    names = [name for name in made.checkpoint.headers if ".mlp.gate." in name]
    assert names == [f"model.layers.{layer}.mlp.gate.weight" for layer in range(2)]
    if method is None:
        left = made.config["quantization_config"]["ignore"]
        assert {name.removesuffix(".weight") for name in names} <= {*left}


def test_a_layer_of_a_few_outputs_is_packed_as_any_other(tmp_path):
    few = DENSE | {"num_key_value_heads": 1, "head_dim": 4, "attention_bias": False}
    source = quantized(tmp_path, few, llama, bits=8, group_size=32, dtype=mx.float32)
    run("mlx-to-torch", source, tmp_path / "torch", "--quant-method", "gptq", "--check", "none")
    zeros = open_checkpoint(tmp_path / "torch").headers["model.layers.0.self_attn.k_proj.qzeros"]
    assert zeros.shape == (2, 1)  # a byte for each of 4 outputs
    run("torch-to-mlx", tmp_path / "torch", tmp_path / "back", "--check", "none")
    one, two = (quantized_view(open_model(path)).checkpoint for path in (source, tmp_path / "back"))
    name = "model.layers.0.self_attn.k_proj.weight"
    np.testing.assert_allclose(one.read(name), two.read(name), atol=1e-6)


def test_a_quantized_directory_is_checked_against_its_source(there):
    source, made, _ = there
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(made), "--quick"])
    assert result.exit_code == 0, result.output


def damaged(folder, target, change):
    """Copy FOLDER to TARGET with its tensors changed by CHANGE."""
    shutil.copytree(folder, target)
    file = target / "model.safetensors"
    tensors = mx.load(str(file))
    change(tensors)
    mx.save_safetensors(str(file), tensors, {"format": "pt"})
    return target


def test_one_other_code_differs(there, tmp_path):
    source, made, _ = there
    name = "model.layers.1.mlp.up_proj.weight"

    def flip(tensors):
        tensors[name] = tensors[name] ^ mx.array(np.eye(*tensors[name].shape, dtype=np.uint32))

    wrong = damaged(made, tmp_path / "wrong", flip)
    result = CliRunner().invoke(main, ["parity", "check", str(source), str(wrong), "--quick"])
    assert result.exit_code == 1, result.output
    assert "layers.1.mlp.up_proj" in result.output


def test_a_library_that_reads_other_codes_fails_the_stage(there, monkeypatch):
    model = quantized_view(open_model(there[1]))
    right = model.tensors.parts
    monkeypatch.setattr(
        model.tensors, "parts", lambda name: right(name) | {"scales": right(name)["scales"] * 1.01}
    )
    stage = loaded_stage(model)
    assert stage.status == "fail"
    assert "other values" in stage.detail


def test_what_no_format_holds_is_refused_and_nothing_is_left(tmp_path):
    source = quantized(tmp_path, DENSE, llama, bits=4, group_size=32, mode="mxfp4")
    said = run("mlx-to-torch", source, tmp_path / "torch", "--quant-method", "metal", code=3)
    assert "metal holds linear layers of 2, 4 or 8-bit affine codes" in " ".join(said.split())
    assert not [path for path in tmp_path.iterdir() if "torch" in path.name]


def test_weights_that_would_move_are_refused_with_a_command_that_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = quantized(tmp_path, DENSE, llama, bits=4)
    write = registry.write

    def moving(parts, method):
        return write(parts, method)._replace(losses={"lm_head.weight": 0.75})

    monkeypatch.setattr(registry, "write", moving)
    said = run("mlx-to-torch", source, tmp_path / "torch", code=3)
    assert "lm_head.weight: by up to 0.75 of a step" in said
    words = said.partition("keep all: weighbridge ")[2].splitlines()[0].rpartition(":")[0].split()
    result = CliRunner().invoke(main, [*words, "--check", "none"])
    assert result.exit_code == 0, result.output
    said = run("mlx-to-torch", source, tmp_path / "torch", "--allow-lossy", "--check", "none")
    assert "lm_head.weight: moves by 0.75 of a step" in said
    facts = json.loads((tmp_path / "torch" / "weighbridge.json").read_text())["transcoded"]
    assert facts["losses"] == {"lm_head.weight": 0.75}


def test_an_adapter_is_not_merged_into_codes_on_the_way(there, tmp_path):
    source, *_ = there
    adapter = trained(tmp_path / "adapter", source, 0.1)
    said = run("mlx-to-torch", source, tmp_path / "torch", "--adapter", adapter, code=3)
    assert "merge the adapter first: weighbridge merge" in " ".join(said.split())


def test_a_truncated_section_is_refused_by_name(there, tmp_path):
    _, made, _ = there
    wrong = shutil.copytree(made, tmp_path / "wrong")
    config = json.loads((wrong / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "xyz"
    (wrong / "config.json").write_text(json.dumps(config))
    said = run("torch-to-mlx", wrong, tmp_path / "back", code=3)
    assert "'xyz' is unknown" in " ".join(said.split())
    assert not (tmp_path / "back").exists()


def test_methods_of_the_command_line_are_those_that_are_written():
    written = {name for name, method in registry.METHODS.items() if method.write}
    assert written <= set(QUANT_METHODS)


@pytest.fixture(scope="module")
def zero_points(tmp_path_factory):
    """Return a quantized Llama of MLX, and it with the whole zero points of GPTQ."""
    folder = tmp_path_factory.mktemp("zeros")
    source = quantized(folder, DENSE, llama, bits=4, dtype=mx.bfloat16)
    said = run("mlx-to-torch", source, folder / "gptq", "--quant-method", "gptq", "--json", code=4)
    return source, folder / "gptq", json.loads(said)["verdict"]


def test_a_format_with_whole_zero_points_says_how_far_weights_moved(zero_points):
    _, _, verdict = zero_points
    loaded, moved = verdict["stages"][:2]
    assert (loaded["name"], loaded["status"]) == ("loaded", "unverified")
    assert "optimum" in loaded["detail"]
    assert (moved["name"], moved["status"]) == ("moved", "pass")
    stated, found = moved["figures"]["stated"], moved["figures"]["moved"]
    assert stated.keys() == found.keys()
    assert all(0 < found[name] <= stated[name] * 1.0001 < 0.06 for name in stated)
    assert {it["status"] for it in verdict["stages"][2:]} <= {"pass", "skipped"}


def test_scales_in_float32_move_no_further_than_stated(tmp_path):
    source = quantized(tmp_path, DENSE, llama, bits=6, group_size=32, dtype=mx.float32)
    how = ("--quant-method", "compressed-tensors", "--json")
    said = run("mlx-to-torch", source, tmp_path / "torch", *how, code=4)
    loaded, moved = json.loads(said)["verdict"]["stages"][:2]
    assert (loaded["status"], moved["name"], moved["status"]) == ("unverified", "moved", "pass")


@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")
@pytest.mark.parametrize("middle", [True, False])
def test_transformers_with_the_library_loads_compressed_tensors(tmp_path, middle):
    pytest.importorskip("compressed_tensors")
    source = quantized(tmp_path, DENSE, llama)
    if middle:  # is zero, in all groups
        weights = mx.load(str(source / "model.safetensors"))
        scales = {it.removesuffix(".scales"): weights[it] for it in weights if ".scales" in it}
        weights |= {f"{path}.biases": -8 * found for path, found in scales.items()}
        mx.save_safetensors(str(source / "model.safetensors"), weights, {"format": "mlx"})
    how = ("--quant-method", "compressed-tensors", "--json")
    verdict = json.loads(run("mlx-to-torch", source, tmp_path / "torch", *how))["verdict"]
    loaded = verdict["stages"][0]
    assert (loaded["name"], loaded["status"]) == ("loaded", "pass"), loaded
    assert "transformers loads all 15 quantized weights" in loaded["detail"]


def test_a_weight_that_moved_further_than_stated_differs(zero_points, tmp_path):
    source, made, _ = zero_points
    wrong = shutil.copytree(made, tmp_path / "wrong")
    manifest = json.loads((wrong / "weighbridge.json").read_text())
    losses = manifest["transcoded"]["losses"]
    name = max(losses, key=lambda it: losses[it])
    losses[name] /= 2
    (wrong / "weighbridge.json").write_text(json.dumps(manifest))
    words = ["parity", "check", str(source), str(wrong), "--quick", "--json"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1, result.output
    stage = next(it for it in json.loads(result.stdout)["stages"] if it["name"] == "moved")
    assert stage["status"] == "fail"
    assert name in stage["detail"]


def test_a_manifest_that_states_any_move_proves_nothing(zero_points, tmp_path):
    source, made, _ = zero_points
    name = "model.layers.1.mlp.up_proj"

    def flip(tensors):
        tensors[f"{name}.qweight"] = tensors[f"{name}.qweight"] ^ 15

    wrong = damaged(made, tmp_path / "wrong", flip)
    manifest = json.loads((wrong / "weighbridge.json").read_text())
    manifest["transcoded"]["losses"][f"{name}.weight"] = 1e9
    (wrong / "weighbridge.json").write_text(json.dumps(manifest))
    words = ["parity", "check", str(source), str(wrong), "--quick", "--json"]
    result = CliRunner().invoke(main, words)
    stage = next(it for it in json.loads(result.stdout)["stages"] if it["name"] == "moved")
    assert (result.exit_code, stage["status"]) == (4, "unverified")
    assert f"{name}.weight" in stage["detail"]


def test_whole_zero_points_come_to_mlx_without_moving_again(zero_points, tmp_path):
    _, made, _ = zero_points
    verdict = json.loads(run("torch-to-mlx", made, tmp_path / "back", "--json"))["verdict"]
    assert verdict["status"] == "PASS"
    assert not any(it["name"] == "moved" for it in verdict["stages"])


def test_a_quantized_pytorch_model_becomes_a_dense_one_of_mlx(zero_points, tmp_path):
    _, made, _ = zero_points
    said = run("torch-to-mlx", made, tmp_path / "dense", "--dequantize", "fp32", "--json")
    assert json.loads(said)["verdict"]["status"] == "PASS"
    dense = open_checkpoint(tmp_path / "dense")
    theirs = quantized_view(open_model(made)).checkpoint
    for name in theirs.headers:
        assert np.array_equal(dense.read(name), theirs.read(name)), name
    assert "quantization" not in (tmp_path / "dense" / "config.json").read_text()


@pytest.mark.heavy
def test_an_encoder_that_was_quantized_here_goes_home(tmp_path):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.BertConfig(vocab_size=96, num_hidden_layers=2, **sizes)
    transformers.BertModel(config).eval().save_pretrained(tmp_path / "bert")
    words = ["quantize", str(tmp_path / "bert"), str(tmp_path / "small"), "--bits", "4"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    verdict = json.loads(run("mlx-to-torch", tmp_path / "small", tmp_path / "home", "--json"))
    assert verdict["verdict"]["status"] == "PASS"
    assert verdict["verdict"]["stages"][0]["name"] == "loaded"
