"""Models quantized by the command line; the oracle is what mlx-lm's own ``convert -q`` writes."""

from __future__ import annotations

import json
import shutil

import mlx.core as mx
import numpy as np
import pytest
import transformers
from click.testing import CliRunner
from mlx import nn
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model, quantize_model, save_config, save_model

import weighbridge
from weighbridge.cli import main
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.tests.converters.quantization.conftest import save
from weighbridge.tests.support.quantized_bases import LLAMA, MOE

SCHEMES = {
    "affine2": {"bits": 2},
    "affine3": {"bits": 3, "group_size": 32},
    "affine4": {"bits": 4},
    "affine8": {"bits": 8, "group_size": 32},
    "mxfp4": {"mode": "mxfp4"},
    "mxfp8": {"mode": "mxfp8"},
    "nvfp4": {"mode": "nvfp4"},
}


def run(source, target, *more, code=0, check="none", method="mlx"):
    """Quantize SOURCE into TARGET by the command line; return what was printed."""
    words = ["quantize", source, target, "--check", check, "--method", method, *more]
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def options(name):
    """Return the words that name a scheme."""
    return [
        word
        for key, value in SCHEMES[name].items()
        for word in (f"--{key.replace('_', '-')}", value)
    ]


def by_mlx_lm(source, target, predicate=None, **how):
    """Quantize SOURCE into TARGET as ``mlx_lm.convert -q`` does; it needs a tokenizer, so in its parts."""
    model, config = load_model(source, lazy=True)
    how = {"group_size": None, "bits": None, "mode": "affine"} | how
    model, config = quantize_model(model, config, quant_predicate=predicate, **how)
    save_model(target, model)
    save_config(config, target / "config.json")
    return target


def tensors(folder):
    """Return header and bytes of every tensor in FOLDER."""
    found = open_checkpoint(folder)
    return {n: (str(head), found.read(n).tobytes()) for n, head in found.headers.items()}


def require_same(made, expected):
    mine, theirs = tensors(made), tensors(expected)
    assert mine.keys() == theirs.keys()
    assert [name for name in theirs if mine[name] != theirs[name]] == []
    configs = [json.loads((folder / "config.json").read_text()) for folder in (made, expected)]
    assert configs[0] == configs[1]


@pytest.mark.parametrize("name", SCHEMES)
def test_every_byte_and_the_config_are_those_of_mlx_lm(name, tmp_path):
    save(tmp_path / "float", LLAMA)
    run(tmp_path / "float", tmp_path / "made", *options(name))
    require_same(
        tmp_path / "made", by_mlx_lm(tmp_path / "float", tmp_path / "mlx", **SCHEMES[name])
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_scales_have_the_dtype_of_the_source(dtype, tmp_path):
    save(tmp_path / "float", LLAMA, dtype=dtype)
    run(tmp_path / "float", tmp_path / "made")
    require_same(tmp_path / "made", by_mlx_lm(tmp_path / "float", tmp_path / "mlx"))


def test_experts_and_their_router_are_quantized_as_their_class_says(tmp_path):
    save(tmp_path / "float", MOE)
    run(tmp_path / "float", tmp_path / "made", "--bits", 4)
    expected = by_mlx_lm(tmp_path / "float", tmp_path / "mlx", bits=4)
    require_same(tmp_path / "made", expected)
    section = json.loads((expected / "config.json").read_text())["quantization"]
    assert section["model.layers.0.mlp.gate"]["bits"] == 8


def test_rules_are_written_as_mlx_lm_writes_overrides(tmp_path):
    save(tmp_path / "float", LLAMA)
    rules = ["--rule", "down_proj=6", "--rule", "*.0.*q_proj=8:32", "--rule", "lm_head=none"]
    run(tmp_path / "float", tmp_path / "made", *rules)

    def predicate(path, _):
        if "down_proj" in path:
            return {"group_size": 64, "bits": 6, "mode": "affine"}
        if ".0." in path and "q_proj" in path:
            return {"group_size": 32, "bits": 8, "mode": "affine"}
        return path != "lm_head"

    expected = by_mlx_lm(tmp_path / "float", tmp_path / "mlx", predicate)
    require_same(tmp_path / "made", expected)
    load_model(tmp_path / "made")  # strictly


def test_scales_may_have_another_dtype(tmp_path):
    save(tmp_path / "float", LLAMA, dtype="float32")
    run(tmp_path / "float", tmp_path / "made", "--dtype", "float16")
    weight = mx.load(str(tmp_path / "float" / "model.safetensors"))["lm_head.weight"]
    made = mx.load(str(tmp_path / "made" / "model.safetensors"))
    expected = mx.quantize(weight.astype(mx.float16), group_size=64, bits=4)
    for part, array in zip(("weight", "scales", "biases"), expected, strict=True):
        assert mx.array_equal(made[f"lm_head.{part}"], array)


def torch_llama(folder):
    """Write a tiny Llama as transformers saves it."""
    import torch

    torch.manual_seed(0)
    config = transformers.LlamaConfig(**LLAMA | {"architectures": ["LlamaForCausalLM"]})
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def test_a_pytorch_directory_is_converted_on_the_way(tmp_path):
    source = torch_llama(tmp_path / "torch")
    run(source, tmp_path / "made")
    by_mlx_lm(source, tmp_path / "mlx")
    assert tensors(tmp_path / "made") == tensors(tmp_path / "mlx")
    load_model(tmp_path / "made")


@pytest.mark.parametrize(("scheme", "how"), [("4", {}), ("8:32", {"bits": 8, "group_size": 32})])
def test_a_conversion_quantizes_on_the_way(scheme, how, tmp_path):
    source = torch_llama(tmp_path / "torch")
    words = ["convert", "torch-to-mlx", source, tmp_path / "made", "--quantize", scheme]
    result = CliRunner().invoke(main, [str(word) for word in [*words, "--check", "none"]])
    assert result.exit_code == 0, result.output
    options = [it for key, value in how.items() for it in (f"--{key.replace('_', '-')}", value)]
    run(source, tmp_path / "expected", *options, method="search")
    require_same(tmp_path / "made", tmp_path / "expected")


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--quantize", "int4"], "'int4' is no scheme"),
        (["--quantize", "4", "--dequantize", "bf16"], "does not go with --dequantize"),
        (["--quantize", "4", "--adapter", "nowhere"], "does not go with --adapter"),
    ],
)
def test_a_conversion_cannot_quantize_otherwise(more, part, tmp_path):
    source = torch_llama(tmp_path / "torch")
    words = ["convert", "torch-to-mlx", source, tmp_path / "made", *more]
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert (result.exit_code, part in result.output) == (3, True), result.output
    assert not (tmp_path / "made").exists()


def test_size_and_error_are_printed_and_recorded(tmp_path):
    save(tmp_path / "float", LLAMA, dtype="float32")
    printed = run(tmp_path / "float", tmp_path / "made")
    found = json.loads((tmp_path / "made" / "weighbridge.json").read_text())["quantized"]
    own = {path: open_checkpoint(tmp_path / path) for path in ("float", "made")}
    size = {k: sum(h.nbytes for h in it.headers.values()) for k, it in own.items()}
    assert found["bytes"] == {"before": size["float"], "after": size["made"]}
    model, _ = load_model(tmp_path / "made")
    parts = {n.removesuffix(".weight"): m for n, m in model.named_modules() if "scales" in m}
    errors = {}
    for path, module in parts.items():
        real = own["float"].read(f"{path}.weight").astype(np.float64)
        how = {"group_size": module.group_size, "bits": module.bits}
        dense = mx.dequantize(module.weight, module.scales, module.biases, **how)
        error = np.asarray(dense, np.float64) - real
        errors[path] = np.sum(error**2), np.sum(real**2)
        recorded = found["weights"][f"{path}.weight"]["error"]
        assert recorded == pytest.approx(np.sqrt(errors[path][0] / errors[path][1]), rel=1e-4)
    mean = np.sqrt(np.divide(*np.sum(list(errors.values()), axis=0)))
    assert found["error"]["mean"] == pytest.approx(mean, rel=1e-4)
    assert f"{mean:.2%} of their size on average" in printed
    assert found["error"]["worst"] in printed


def test_by_default_scales_are_searched_and_the_error_is_smaller(tmp_path):
    save(tmp_path / "float", LLAMA)
    errors = {}
    for method in ("mlx", "search"):
        run(tmp_path / "float", tmp_path / method, method=method)
        manifest = json.loads((tmp_path / method / "weighbridge.json").read_text())
        errors[method] = manifest["quantized"]["error"]["mean"]
    assert errors["search"] < 0.95 * errors["mlx"]
    result = CliRunner().invoke(
        main, ["quantize", str(tmp_path / "float"), str(tmp_path / "made"), "--check", "none"]
    )
    assert result.exit_code == 0, result.output
    assert tensors(tmp_path / "made") == tensors(tmp_path / "search")


@pytest.mark.parametrize("method", ["mlx", "search"])
def test_a_weight_that_is_not_finite_is_named_or_left_to_mlx(method, tmp_path):
    model, _ = save(tmp_path / "float", LLAMA)
    model.lm_head.weight[3, 5] = mx.inf
    save_model(tmp_path / "float", model, donate_model=False)
    if method == "mlx":
        run(tmp_path / "float", tmp_path / "made")
        require_same(tmp_path / "made", by_mlx_lm(tmp_path / "float", tmp_path / "mlx"))
    else:
        printed = run(tmp_path / "float", tmp_path / "made", code=3, method=method)
        assert "lm_head.weight" in printed


@pytest.mark.parametrize("method", ["mlx", "search"])
def test_a_live_module_is_quantized_as_its_directory_would_be(method, tmp_path):
    save(tmp_path / "float", MOE)
    model, _ = load_model(tmp_path / "float")
    rules = ["o_proj=6"]
    assert weighbridge.quantize(model, bits=4, rules=rules, method=method) is model
    run(tmp_path / "float", tmp_path / "made", "--rule", rules[0], method=method)
    expected = mx.load(str(tmp_path / "made" / "model.safetensors"))
    made = dict(tree_flatten(model.parameters()))
    assert made.keys() == expected.keys()
    assert all(mx.array_equal(made[name], expected[name]) for name in made)


def test_a_module_without_layers_is_refused():
    with pytest.raises(weighbridge.UnsupportedError, match="no layers"):
        weighbridge.quantize(nn.RMSNorm(64))
    with pytest.raises(weighbridge.BadInputError, match="name the directory"):
        weighbridge.quantize("model")


WRONG = {
    "a mode that there is not": (["--mode", "int4"], "--mode int4 is unknown"),
    "bits that there are not": (["--bits", 7], "7-bit affine, groups of 64 is unknown"),
    "a group of another mode": (["--mode", "mxfp4", "--group-size", 64], "mxfp4: bits 4 in"),
    "a rule that is none": (["--rule", "down_proj"], "is not PATTERN=VALUE"),
    "a rule without sense": (["--rule", "down_proj=six"], "'six' is no scheme"),
    "a rule about nothing": (["--rule", "dwn_proj=6"], "--rule dwn_proj=6 fits no module"),
    "rules that contradict": (
        ["--rule", "down_proj=6", "--rule", "layers.1=8"],
        "model.layers.1.mlp.down_proj: --rule down_proj=6 and --rule layers.1=8 contradict",
    ),
    "a group too large for a rule": (["--rule", "q_proj=8:128"], "q_proj"),
    "a method that there is not": (["--method", "magic"], "--method magic is unknown"),
    "a dtype that there is not": (["--dtype", "int8"], "--dtype int8 is unknown"),
    "nothing to quantize": (["--group-size", 128], "no weight is left to be quantized"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused_in_one_line(name, tmp_path):
    words, said = WRONG[name]
    config = LLAMA | ({"intermediate_size": 96} if name == "nothing to quantize" else {})
    save(tmp_path / "float", config)
    printed = run(tmp_path / "float", tmp_path / "made", *words, code=3)
    assert said in printed
    assert printed.startswith("Error: ")
    assert "Traceback" not in printed
    assert [it.name for it in tmp_path.iterdir()] == ["float"]


def test_a_quantized_model_is_not_quantized_again(tmp_path):
    save(tmp_path / "4bit", LLAMA, bits=4, group_size=64)
    printed = run(tmp_path / "4bit", tmp_path / "made", code=3)
    assert "is quantized already" in printed
    assert "--dequantize bf16" in printed


def test_a_weight_that_the_class_has_otherwise_is_named(tmp_path):
    save(tmp_path / "float", LLAMA)
    config = json.loads((tmp_path / "float" / "config.json").read_text())
    (tmp_path / "float" / "config.json").write_text(json.dumps(config | {"intermediate_size": 256}))
    printed = run(tmp_path / "float", tmp_path / "made", code=3)
    assert "model.layers.0.mlp.up_proj.weight is BF16[192, 64], expected [256, 64]" in printed


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
    save(tmp_path / "float", LLAMA)
    printed = run(tmp_path / "float", tmp_path / "made", "--dry-run")
    assert "16 weights: 4-bit affine, groups of 64" in printed
    assert not (tmp_path / "made").exists()


def test_an_interrupted_run_is_resumed_to_the_same_bytes(tmp_path, monkeypatch):
    from weighbridge.jobs.quantizing import write

    save(tmp_path / "float", LLAMA)
    shutil.copytree(tmp_path / "float", tmp_path / "other")
    run(tmp_path / "other", tmp_path / "whole")
    plain, calls = write.METHODS["mlx"], []

    def failing(*words):
        calls.append(words)
        if len(calls) == 9:
            raise MemoryError
        return plain(*words)

    monkeypatch.setattr(write, "METHODS", {"mlx": failing})
    result = CliRunner().invoke(
        main, ["quantize", str(tmp_path / "float"), str(tmp_path / "made"), "--check", "none"]
    )
    assert result.exit_code != 0
    assert not (tmp_path / "made").exists()
    monkeypatch.undo()
    run(tmp_path / "float", tmp_path / "made")
    assert tensors(tmp_path / "made") == tensors(tmp_path / "whole")
