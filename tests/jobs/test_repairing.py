"""Directories whose model.py mends mlx-lm's class; the oracles are mlx-lm's own loader and transformers."""

import json
import shutil
import statistics
import warnings
from importlib import import_module

import mlx.core as mx
import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.converters.adapters import write_adapter
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.repairs.catalogue import INSTEAD, OF_LIBRARY, REPAIRS
from weighbridge.converters.libraries.repairs.writing import MODEL_FILES, text
from weighbridge.converters.values import LowRank
from weighbridge.tests.support.atlas import logits, tiny

EVIL = "from pathlib import Path\nPath('code-ran').touch()\n"


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def make(kind, folder, own=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tiny.make(kind, folder, own=own, gain=tiny.GAIN)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make("mistral", tmp_path_factory.mktemp("repair") / "hub")


@pytest.fixture(scope="module")
def repaired(made):
    folder = made.folder.parent / "mlx"
    output = invoke("convert", "torch-to-mlx", made.folder, folder, "--repair")
    assert "PASS" in output
    return folder


@pytest.fixture(scope="module")
def adapter(repaired, tmp_path_factory):
    """An adapter on one projection, small enough to be merged without loss of the rest."""
    folder, name = tmp_path_factory.mktemp("adapter") / "run", "model.layers.0.self_attn.q_proj"
    out, into = mx.load(str(repaired / "model.safetensors"))[f"{name}.weight"].shape
    noise = np.random.default_rng(0)
    a, b = (noise.normal(size=size).astype(np.float32) for size in ((2, into), (out, 2)))
    parameters = {"rank": 2, "scale": 1.0, "dropout": 0.0, "keys": ["self_attn.q_proj"]}
    settings = {"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters}
    write_adapter(folder, {f"{name}.weight": LowRank(a, b, 1.0)}, config=settings)
    return folder


def test_a_class_at_fault_differs_and_the_verdict_offers_the_repair(made, tmp_path):
    output = invoke("convert", "torch-to-mlx", made.folder, tmp_path / "mlx", code=1)
    command = f"weighbridge convert torch-to-mlx {made.folder} {tmp_path / 'mlx'} --repair"
    assert command in " ".join(output.split())


@pytest.mark.parametrize("shape", [logits.SHORT, logits.LONG])
def test_mlx_lm_computes_what_transformers_does(made, repaired, shape):
    model, wanted = logits.mlx_lm(repaired), logits.reference(made.model, shape)
    assert logits.error(logits.native(model, shape), wanted.double) <= wanted.bar
    whole = model(mx.array(logits.tokens(shape))).astype(
        mx.float32
    )  # as in training, without a cache
    assert logits.error(np.array(whole).astype(np.float64), wanted.double) <= wanted.bar


def test_generation_past_the_window_is_transformers_own(made, repaired):
    prompt = logits.tokens((1, 80))[0]
    assert made.config.sliding_window < len(prompt)
    chosen = logits.greedy(logits.mlx_lm(repaired), prompt)
    assert logits.behind(made.model, prompt, chosen) <= logits.FLOOR


def test_the_way_back_gives_the_checkpoint_and_leaves_the_code_behind(made, repaired, tmp_path):
    invoke("convert", "mlx-to-torch", repaired, tmp_path / "home", "--check", "none")
    for file in made.folder.iterdir():
        assert (tmp_path / "home" / file.name).read_bytes() == file.read_bytes()
    assert not (tmp_path / "home" / "model.py").exists()


def test_the_check_accepts_what_we_wrote(made, repaired):
    assert "PASS" in invoke("parity", "check", made.folder, repaired)


@pytest.mark.parametrize(
    "words",
    [
        ("convert", "mlx-to-torch", "{it}", "{out}"),
        ("parity", "check", "{hub}", "{it}"),
        ("merge", "{it}", "{adapter}", "{out}"),
        ("quantize", "{it}", "{out}", "--bits", "4"),
    ],
    ids=" ".join,
)
def test_any_other_code_is_refused_in_one_line_and_not_run(
    made, repaired, adapter, tmp_path, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(repaired, "it")
    file = tmp_path / "it" / "model.py"
    file.write_text(file.read_text() + EVIL)
    places = {"it": "it", "out": "out", "hub": made.folder, "adapter": adapter}
    output = invoke(*(word.format(**places) for word in words), code=3)
    assert "model.py" in output
    assert "Traceback" not in output
    assert not (tmp_path / "code-ran").exists()
    assert not (tmp_path / "out").exists()


def test_an_adapter_is_merged_and_the_code_stays(made, repaired, adapter, tmp_path):
    assert "PASS" in invoke("merge", repaired, adapter, tmp_path / "merged")
    assert (tmp_path / "merged/model.py").read_bytes() == (repaired / "model.py").read_bytes()


def test_a_model_without_a_known_fault_is_refused(tmp_path):
    folder = make("llama", tmp_path / "hub").folder
    output = invoke("convert", "torch-to-mlx", folder, tmp_path / "mlx", "--repair", code=3)
    assert "nothing is known to repair in llama" in output


def test_a_mended_class_that_does_not_load_the_weights_is_refused(tmp_path):
    folder = make("gpt_neox", tmp_path / "hub", {"tie_word_embeddings": True}).folder
    output = invoke("convert", "torch-to-mlx", folder, tmp_path / "mlx", "--repair", code=3)
    assert "repaired will not load this" in output
    assert "leave --repair out" in output
    assert not (tmp_path / "mlx").exists()


def test_code_of_the_source_is_not_replaced(made, tmp_path):
    shutil.copytree(made.folder, tmp_path / "hub")
    (tmp_path / "hub" / "model.py").write_text(EVIL)
    output = invoke(
        "convert", "torch-to-mlx", tmp_path / "hub", tmp_path / "mlx", "--repair", code=3
    )
    assert "model.py is there already" in output


@pytest.mark.parametrize("kind", REPAIRS)
def test_a_repair_is_of_a_class_that_mlx_lm_has_and_is_python(kind):
    target = find({"model_type": kind, "model_file": "model.py"})
    assert target.repaired
    assert issubclass(target.code().Model, import_module(target.module).Model)


# One type for each part, set so that its fault shows; the atlas has the types as they are, checked.
PARTS = {repair.part: kind for kind, repairs in REPAIRS.items() for repair in repairs}
QUICK = ["gemma3_text", "glm", "gptj", "minicpm3", "phi3", "starcoder2"]
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.5, 2.0, 2.5, 3.0, 3.5, 4.0],
    "original_max_position_embeddings": 32,
}
OWN = {
    "gemma3_text": {"layer_types": ["full_attention", "sliding_attention"] * 2},
    "gpt_neox": {"intermediate_size": 80},
    "olmo": {"clip_qkv": 0.8},
    "gptj": {"n_inner": 80},
    "phi3": {"rope_parameters": LONG_ROPE, "original_max_position_embeddings": 32},
    "qwen2": {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    "qwen2_moe": {"norm_topk_prob": True},
}


def error_of(folder, made, shape):
    """Return the error of mlx-lm's logits over its bar; more than 1 where it does not load."""
    wanted = logits.reference(made.model, shape)
    try:
        found = logits.native(logits.mlx_lm(folder), shape)
    except ValueError:
        return np.inf
    return logits.error(found, wanted.double) / wanted.bar


@pytest.mark.parametrize(
    "kind",
    [
        *QUICK,
        *(
            pytest.param(it, marks=pytest.mark.heavy)
            for it in sorted({*PARTS.values(), *OWN} - {*QUICK})
        ),
    ],
)
def test_every_part_mends_what_it_is_for(kind, tmp_path):
    made = make(kind, tmp_path / "hub", OWN.get(kind))
    how = ("--check", "none", "--library", "mlx-lm")  # the parts are of its classes
    words = ("convert", "torch-to-mlx", made.folder, *how)
    said = invoke(*words, tmp_path / "plain", code=3 if kind in INSTEAD else 0)
    invoke(*words, tmp_path / "mended", "--repair")
    if kind in INSTEAD:
        assert "convert with --repair" in said
    else:
        assert error_of(tmp_path / "plain", made, logits.LONG) > 1
    assert error_of(tmp_path / "mended", made, logits.LONG) <= 1
    assert error_of(tmp_path / "mended", made, logits.SHORT) <= 1


@pytest.mark.parametrize(("dtype", "bar"), [("float32", 2e-7), ("bfloat16", 0)])
def test_embeddings_are_scaled_as_transformers_scales_them_in_every_dtype(dtype, bar, tmp_path):
    made, seen = make("gemma3_text", tmp_path), []
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_file": "model.py", "sliding_window_pattern": 2}
    model, kept = find(config).build(config), made.model.to(getattr(torch, dtype)).model
    weight = kept.embed_tokens.weight.detach()
    model.model.embed_tokens.weight = mx.array(weight.float().numpy()).astype(getattr(mx, dtype))
    model.model.layers = [lambda h, *_: seen.append(h) or h] * len(model.layers)
    model.model(mx.array(logits.tokens()))
    wanted = kept.embed_tokens(torch.from_numpy(logits.tokens())).detach().float().numpy()
    found = np.array(seen[0].astype(mx.float32))
    assert np.abs(found - wanted).max() <= bar * np.abs(wanted).max()


def test_a_class_of_our_own_is_no_library_s_and_is_not_repaired(tmp_path):
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1}
    transformers.T5Model(transformers.T5Config(**sizes)).save_pretrained(tmp_path / "hub")
    words = ("convert", "torch-to-mlx", tmp_path / "hub", tmp_path / "mlx", "--repair")
    said = invoke(*words, code=3)
    assert said.count("\n") == 1
    assert "goes to weighbridge, which runs no model.py" in said
    assert not (tmp_path / "mlx").exists()


@pytest.mark.heavy
def test_a_repaired_model_is_quantized_and_its_library_loads_the_codes(tmp_path):
    made = make("mistral", tmp_path / "hub", {"hidden_size": 64, "intermediate_size": 96})
    output = invoke(
        *("convert", "torch-to-mlx", made.folder, tmp_path / "mlx"),
        *("--repair", "--quantize", "4:32"),
    )
    assert "PASS" in output


def test_repairs_are_short():
    window = {"sliding_window": 64}
    asked = [(kind, file) for library, file in MODEL_FILES.items() for kind in OF_LIBRARY[library]]
    targets = [
        find({"model_type": kind, "model_file": file, "text_config": window, **window})
        for kind, file in asked
    ]
    lines = [text(it.module, it.model_type, it.repaired).count("\n") for it in targets]
    assert statistics.median(lines) <= 40


def test_the_configuration_asks_for_the_file_and_says_so(repaired):
    config = json.loads((repaired / "config.json").read_text())
    assert config["model_file"] == "model.py"
