"""Quantized for a text, by the command line: outputs err less, and bits go where they are needed."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from tokenizers import Tokenizer, models, pre_tokenizers

from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.models import open as open_model
from weighbridge.jobs.quantizing.texts import rows_of
from weighbridge.tests.converters.quantization.conftest import save
from weighbridge.tests.jobs.quantizing.test_quantize import run
from weighbridge.tests.support.quantized_bases import LLAMA, MOE

SHORT = {"max_position_embeddings": 64}


def with_tokenizer(folder, vocabulary):
    """Put a tokenizer of whole numbers into FOLDER."""
    words = {str(number): number for number in range(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "0"})
    )


def text(path, count=2000, vocabulary=90, seed=0):
    ids = np.random.default_rng(seed).integers(1, vocabulary, count)
    path.write_text(" ".join(map(str, ids)))
    return path


@pytest.fixture
def source(tmp_path):
    save(tmp_path / "float", {**LLAMA, **SHORT})
    with_tokenizer(tmp_path / "float", LLAMA["vocab_size"])
    return tmp_path / "float"


def logits(folder, seed=9):
    model, _ = load_model(folder)
    ids = np.random.default_rng(seed).integers(1, 90, (8, 64))
    return np.array(model(mx.array(ids)).astype(mx.float32))


def output_error(source, made):
    return np.linalg.norm(logits(made) - logits(source)) / np.linalg.norm(logits(source))


@pytest.mark.heavy
def test_outputs_err_less_for_another_text_than_with_codes_for_the_weights_alone(source, tmp_path):
    made = {name: tmp_path / name for name in ("mlx", "search", "calibrated")}
    run(source, made["mlx"], "--bits", 3)
    run(source, made["search"], "--bits", 3, method="search")
    printed = run(
        source,
        made["calibrated"],
        "--bits",
        3,
        "--calibrate",
        text(tmp_path / "text"),
        method="search",
    )
    found = {name: output_error(source, folder) for name, folder in made.items()}
    assert found["calibrated"] < 0.95 * found["search"] < 0.95 * found["mlx"]
    assert "codes of 15 weights chosen for what they are given as the model reads" in printed
    facts = json.loads((made["calibrated"] / "weighbridge.json").read_text())["calibration"]
    assert facts["weights"] == 15  # seven of each layer, and the head; embeddings are looked up


def test_a_calibrated_model_passes_its_check(source, tmp_path):
    options = ("--calibrate", text(tmp_path / "text"))
    printed = run(source, tmp_path / "made", *options, check="quick", method="search")
    assert "DIFFERS" not in printed
    assert "codes chosen for their inputs" in (tmp_path / "made" / "weighbridge.json").read_text()


@pytest.mark.heavy
def test_experts_that_cannot_be_calibrated_get_searched_codes(tmp_path):
    save(tmp_path / "float", {**MOE, **SHORT})
    with_tokenizer(tmp_path / "float", MOE["vocab_size"])
    run(
        tmp_path / "float",
        tmp_path / "made",
        "--calibrate",
        text(tmp_path / "text"),
        method="search",
    )
    run(tmp_path / "float", tmp_path / "plain", method="search")
    made, plain = open_checkpoint(tmp_path / "made"), open_checkpoint(tmp_path / "plain")
    expert = next(name for name in made.headers if "switch_mlp" in name and "weight" in name)
    query = next(name for name in made.headers if name.endswith("q_proj.weight"))
    np.testing.assert_array_equal(made.read(expert), plain.read(expert))
    assert (made.read(query) != plain.read(query)).any()


@pytest.mark.parametrize("calibrated", [False, True])
def test_bits_per_weight_are_not_exceeded_and_differ_by_weight(source, tmp_path, calibrated):
    more = ("--calibrate", text(tmp_path / "text")) if calibrated else ()
    run(source, tmp_path / "made", "--bits-per-weight", 4.0, *more, method="search")
    made, dense = open_checkpoint(tmp_path / "made"), open_checkpoint(source)
    parts = [n for n in made.headers if n.endswith((".scales", ".biases"))]
    weights = [n.replace(".scales", ".weight") for n in parts if n.endswith(".scales")]
    bits = 8 * sum(made.headers[name].nbytes for name in [*parts, *weights])
    numbers = sum(int(np.prod(dense.headers[name].shape)) for name in weights)
    assert 3.5 < bits / numbers <= 4.0
    section = json.loads((tmp_path / "made" / "config.json").read_text())["quantization"]
    assert len({str(it) for it in section.values() if isinstance(it, dict)}) > 1
    assert np.isfinite(logits(tmp_path / "made")).all()


def test_weights_on_which_the_output_hardly_depends_get_fewer_bits(source, tmp_path):
    path = source / "model.safetensors"
    tensors = mx.load(str(path))
    faint = "model.layers.0.self_attn.o_proj.weight"
    tensors[faint] = tensors[faint] * 1e-3
    mx.save_safetensors(str(path), tensors, {"format": "mlx"})
    given = ("--calibrate", text(tmp_path / "text", 200))
    run(source, tmp_path / "made", "--bits-per-weight", 4.5, *given, method="search")
    section = json.loads((tmp_path / "made" / "config.json").read_text())["quantization"]
    bits = [section[f"model.layers.{n}.self_attn.v_proj"]["bits"] for n in range(2)]
    assert bits[0] < bits[1]


def test_a_rule_keeps_its_scheme_beside_bits_that_are_found(source, tmp_path):
    run(source, tmp_path / "made", "--bits-per-weight", 4.5, "--rule", "lm_head=8", method="search")
    section = json.loads((tmp_path / "made" / "config.json").read_text())["quantization"]
    assert section["lm_head"]["bits"] == 8


def test_what_it_costs_is_that_of_mlx_lm_on_the_same_tokens(source, tmp_path):
    given = text(tmp_path / "text", 64 * 6)
    run(source, tmp_path / "made", "--bits", 3, "--measure", given, method="search")
    run(source, tmp_path / "plain", "--bits", 3)
    found = json.loads((tmp_path / "made" / "weighbridge.json").read_text())["measured"]
    rows = rows_of(given, open_model(source), "TEXT")
    logs = {}
    for name, folder in {
        "before": source,
        "after": tmp_path / "made",
        "plain": tmp_path / "plain",
    }.items():
        wide = np.array(load_model(folder)[0](mx.array(rows)).astype(mx.float32), np.float64)
        logs[name] = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
        chosen = np.take_along_axis(logs[name][:, :-1], rows[:, 1:, None], -1)
        key = {"plain": "by mx.quantize"}.get(name, name)
        assert found["perplexity"][key] == pytest.approx(np.exp(-chosen.mean()), rel=0.01)
    before, after = logs["before"][:, :-1], logs["after"][:, :-1]
    divergence = (np.exp(before) * (before - after)).sum(-1).mean()
    assert found["divergence"]["after"] == pytest.approx(divergence, rel=0.05)
    assert found["outputs"]["ratio"] < 1
    assert found["seconds"]["before"] > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bits-per-weight", 1), "is not between 2 and 16"),
        (("--bits-per-weight", "nan"), "is not between 2 and 16"),
        (("--bits-per-weight", 2.1), "leaves too little"),
        (("--bits-per-weight", 4, "--bits", 4), "leave out --bits"),
        (("--calibrate", "TEXT", "--method", "mlx"), "knows no calibration"),
        (("--calibrate", "SHORT"), "too short"),
        (("--measure", "SHORT"), "too short"),
        (("--calibrate", "BINARY"), "no text in UTF-8"),
        (("--calibrate", "BEYOND"), "its tokenizer is not that of the model"),
    ],
)
def test_bad_options_end_in_one_line_and_leave_nothing(source, tmp_path, words, message):
    with_tokenizer(source, 500)
    text(tmp_path / "TEXT")
    text(tmp_path / "SHORT", 5)
    text(tmp_path / "BEYOND", vocabulary=400)
    (tmp_path / "BINARY").write_bytes(b"\xff\xfe\x00")
    files = [tmp_path / it if str(it).isupper() else it for it in words]
    printed = run(source, tmp_path / "made", *files, code=3, method="search")
    assert message in printed
    assert printed.count("Error") == 1
    assert not (tmp_path / "made").exists()


def test_a_model_without_a_tokenizer_cannot_be_calibrated(tmp_path):
    save(tmp_path / "float", LLAMA)
    words = ("--calibrate", text(tmp_path / "text"))
    printed = run(tmp_path / "float", tmp_path / "made", *words, code=3, method="search")
    assert "has no tokenizer" in printed
