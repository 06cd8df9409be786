"""Quantized MLX models made dense PyTorch ones, by the command line."""

from __future__ import annotations

import json
import shutil

import ml_dtypes
import mlx.core as mx
import numpy as np
import pytest
import transformers
from click.testing import CliRunner
from mlx_lm.utils import load_model

from weighbridge.cli import main
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.quantization import view
from weighbridge.tests.converters.quantization.conftest import save
from weighbridge.tests.support.quantized_bases import LLAMA

CONFIG = LLAMA | {"architectures": ["LlamaForCausalLM"], "head_dim": 16}
SCHEMES = {
    "affine4": {"group_size": 64, "bits": 4},
    "affine3": {"group_size": 32, "bits": 3},
    "mxfp4": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
    "nvfp4": {"group_size": 16, "bits": 4, "mode": "nvfp4"},
}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def run(source, target, *more, code=0):
    """Convert SOURCE to PyTorch; return what was printed."""
    words = ["convert", "mlx-to-torch", str(source), str(target), *more]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.output


def quantized(folder, name):
    """Write a tiny Llama in FOLDER, quantized by the scheme NAME."""
    save(folder, CONFIG, **SCHEMES[name])
    return folder


def by_mlx(folder):
    """Return every quantized weight in FOLDER as mlx-lm's own module holds it, in float32."""
    model, _ = load_model(folder)
    found = {}
    for path, module in model.named_modules():
        if "scales" in module:
            some = [module[it] for it in ("scales", "biases") if module.get(it) is not None]
            wide = [it.astype(mx.float32) if it.dtype != mx.uint8 else it for it in some]
            how = {key: getattr(module, key) for key in ("group_size", "bits", "mode")}
            made = mx.dequantize(module.weight, *wide, **how, dtype=mx.float32)
            found[f"{path}.weight"] = np.array(made)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCHEMES)
def test_weights_are_those_of_mlx_rounded_once(tmp_path, name, dtype):
    source = quantized(tmp_path / "source", name)
    run(source, tmp_path / "made", "--dequantize", dtype, "--check", "none")
    made, expected = open_checkpoint(tmp_path / "made"), by_mlx(source)
    kind = np.dtype(getattr(ml_dtypes, DTYPES[dtype], DTYPES[dtype]))
    assert len(expected) == 16
    for path, values in expected.items():
        found = made.read(path)
        assert found.dtype == kind
        step = float(ml_dtypes.finfo(kind).eps) / 2 + 2.0**-22  # half a last place
        assert np.allclose(found.astype(np.float64), values, rtol=step, atol=1e-7), path
    assert "quantization" not in (tmp_path / "made" / "config.json").read_text()


@pytest.mark.parametrize("name", ["affine4", "mxfp4"])
def test_the_check_passes_and_says_what_rounding_cost(tmp_path, name):
    source = quantized(tmp_path / "source", name)
    verdict = json.loads(run(source, tmp_path / "made", "--dequantize", "bf16", "--json"))[
        "verdict"
    ]
    first = verdict["stages"][0]
    assert (verdict["status"], first["name"], first["status"]) == ("PASS", "dequantized", "pass")
    said = "rounding to BF16 moved them by 0.001" if name == "affine4" else "holds them exactly"
    assert said in first["detail"]


def test_codes_that_were_read_in_another_order_differ(tmp_path, monkeypatch):
    source, right = quantized(tmp_path / "source", "affine4"), view.dequantize
    monkeypatch.setattr(view, "dequantize", lambda *given: right(*given)[..., ::-1].copy())
    said = run(source, tmp_path / "made", "--dequantize", "bf16", "--json", code=1)
    assert "not what mx.dequantize makes of their codes" in said
    assert not (tmp_path / "made").exists()


def test_a_section_of_mlx_that_stays_in_the_configuration_differs(tmp_path):
    """Transformers refuses to load such a directory."""
    source, made = quantized(tmp_path / "source", "mxfp4"), tmp_path / "made"
    run(source, made, "--dequantize", "bf16", "--check", "none")
    right = CliRunner().invoke(main, ["parity", "check", str(made), str(made), "--json"])
    config = json.loads((made / "config.json").read_text())
    config["quantization_config"] = {"bits": 4, "group_size": 32}
    wrong = shutil.copytree(made, tmp_path / "wrong")
    (wrong / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="quant_method"):
        transformers.AutoModelForCausalLM.from_pretrained(wrong)
    checked = CliRunner().invoke(main, ["parity", "check", str(made), str(wrong), "--json"])
    assert (right.exit_code, checked.exit_code) == (0, 1), checked.output
    assert "without quant_method" in checked.stdout


def test_numbers_beyond_float16_are_refused_and_nothing_is_left(tmp_path):
    source = quantized(tmp_path / "source", "affine4")
    weights = mx.load(str(source / "model.safetensors"))
    weights["lm_head.scales"] = weights["lm_head.scales"] * 1e8
    mx.save_safetensors(str(source / "model.safetensors"), weights, {"format": "mlx"})
    said = run(source, tmp_path / "made", "--dequantize", "fp16", "--check", "none", code=3)
    assert "lm_head.weight holds numbers beyond float16" in " ".join(said.split())
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_model_that_is_not_quantized_is_refused_with_the_option(tmp_path):
    save(tmp_path / "source", CONFIG)
    said = run(tmp_path / "source", tmp_path / "made", "--dequantize", "bf16", code=3)
    assert "no quantized weights" in " ".join(said.split())


def edited(folder, change):
    """CHANGE the configuration in FOLDER."""
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def without_section(folder):
    edited(folder, lambda config: (config.pop("quantization"), config.pop("quantization_config")))


def contradictory(folder):
    edited(folder, lambda config: config["quantization_config"].update(bits=8))


def other_override(folder):
    edited(folder, lambda config: config["quantization"].update({QUERY: {"bits": 8}}))
    edited(folder, lambda config: config.pop("quantization_config"))


def other_method(folder):
    edited(folder, lambda config: config.pop("quantization"))
    edited(folder, lambda config: config["quantization_config"].update(quant_method="gptq"))


def unknown_mode(folder):
    edited(folder, lambda config: config["quantization"].update(mode="q4_k"))
    edited(folder, lambda config: config.pop("quantization_config"))


def changed_tensor(part, change):
    def apply(folder):
        weights = mx.load(str(folder / "model.safetensors"))
        name = f"{QUERY}.{part}"
        weights[name] = change(weights[name])
        if weights[name] is None:
            del weights[name]
        mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
        (folder / "model.safetensors.index.json").unlink()

    return apply


QUERY = "model.layers.0.self_attn.q_proj"
DAMAGE = {
    "no section": (without_section, "config.json has no `quantization`"),
    "two sections that differ": (contradictory, "quantization and quantization_config differ"),
    "an override that does not fit": (other_override, f"{QUERY}: config.json says 8-bit affine"),
    "another library's method": (other_method, "config.json has no `quantization`"),
    "a mode that MLX lacks": (unknown_mode, "q4_k"),
    "integer scales": (
        changed_tensor("scales", lambda it: it.astype(mx.int32)),
        f"{QUERY}.scales is I32",
    ),
    "fewer scales": (changed_tensor("scales", lambda it: it[:10]), f"{QUERY}.weight is U32"),
    "no biases": (changed_tensor("biases", lambda _: None), f"{QUERY}.biases is missing"),
    "no scales": (changed_tensor("scales", lambda _: None), f"{QUERY}"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_source_is_refused_in_plain_words(tmp_path, name):
    source, (damage, expected) = quantized(tmp_path / "source", "affine4"), DAMAGE[name]
    damage(source)
    said = run(source, tmp_path / "made", "--dequantize", "bf16", "--check", "none", code=3)
    assert expected in " ".join(said.split())
    assert "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
