"""Recipes of language models and classifiers, by the commands that their pages show."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import weighbridge
from tests.conftest import save_tokenizer, tiny_vocabulary
from tests.support.gain import realistic
from weighbridge.cli import main
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.trainers.bundles import docstrings, library
from weighbridge.trainers.data.stdlib_pairs import Pair


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Let few texts stand for those of the whole library."""
    kinds = ("read the file", "sort the list", "open a path", "sum of keys")

    def extract_pairs():
        return [
            Pair(f"{kinds[number % 4]} number {number}", "", f"package{number % 4}/m{number}.py")
            for number in range(120)
        ]

    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(docstrings, "extract_pairs", extract_pairs)
    monkeypatch.setattr(docstrings, "ENCODER", docstrings.ENCODER | {"num_hidden_layers": 1})
    monkeypatch.setattr(library, "CHARACTERS", {"test": 3000, "validation": 3000, "train": 9000})
    monkeypatch.setattr(library, "VOCABULARY", 300)
    monkeypatch.setattr(library, "LARGEST", 5000)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Return the directory of a small decoder with a tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("decoder") / "model"
    words = tiny_vocabulary()
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 2, "vocab_size": len(words), "max_position_embeddings": 64}
    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.2)).save_pretrained(folder)
    save_tokenizer(words, folder)
    return folder


def run(*words):
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result


def train(out, recipe, *settings):
    run("train", out, "--recipe", recipe, *(it for one in settings for it in ("--set", one)))
    return json.loads((out / "result.json").read_text())


def test_text_classification_learns_to_tell_packages_apart(cache, tmp_path):
    how = ["steps=12", "batch_size=16", "validate_every=12", "checkpoint_every=12"]
    found = train(tmp_path / "run", "text-classification", *how)
    assert found["metric"] == "accuracy"
    assert found["best"]["accuracy"] > found["before"]["accuracy"]
    assert found["test"]["after"].keys() >= {"balanced_accuracy", "macro_f1", "matthews"}
    onward = shlex.split(found["next"])[1:-1]
    said = CliRunner().invoke(main, [*onward, str(tmp_path / "back")])
    assert (said.exit_code, "UNVERIFIED" in said.output) == (4, True), said.output
    assert found["note"].startswith("its check will say UNVERIFIED: only its own map says how")


SHORT = ["steps=3", "batch_size=2", "data.length=[32]", "validate_every=3", "checkpoint_every=3"]


@pytest.mark.heavy
def test_causal_lora_trains_any_decoder_and_is_merged(cache, decoder, tmp_path):
    how = [f"model={decoder}", "optimizer.learning_rate=0.01", *SHORT]
    found = train(tmp_path / "run", "causal-lora", *how)
    assert found["best"]["perplexity"] < found["before"]["perplexity"]
    assert found["best"]["perplexity"] == pytest.approx(np.exp(found["best"]["loss"]))
    run("merge", decoder, tmp_path / "run", tmp_path / "tuned")
    assert len(json.loads((tmp_path / "tuned" / "weighbridge.json").read_text())["merged"]) == 8


@pytest.mark.heavy
def test_causal_qlora_trains_beside_codes_as_they_lie(cache, decoder, tmp_path):
    base = tmp_path / "base"
    run("convert", "torch-to-mlx", decoder, base, "--quantize", "4")
    before = (base / "model.safetensors").read_bytes()
    how = [f"model={base}", f"tokenizer={decoder}", "optimizer.learning_rate=0.01", *SHORT]
    found = train(tmp_path / "run", "causal-qlora", *how)
    assert found["best"]["loss"] < found["before"]["loss"]
    assert (base / "model.safetensors").read_bytes() == before


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    """Return the directory of a small T5 with a tokenizer."""
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5") / "model"
    words = tiny_vocabulary()
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(2)
    config = T5Config(**sizes, vocab_size=len(words), decoder_start_token_id=0, dropout_rate=0.0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    save_tokenizer(words, folder)
    return folder


PAIRS = ["steps=3", "batch_size=4", "validate_every=3", "checkpoint_every=3"]


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    """Go to a folder of pairs, two of many queries with the same document; return the rows.

    Such pairs may meet in a batch, unlike for retrieval.
    """
    monkeypatch.chdir(tmp_path)
    rows = [("read the file", "open"), ("sort the list", "sum"), ("open a path", "open")] * 4
    rows = [
        f'{{"query": "{query} {at}", "document": "{it}"}}' for at, (query, it) in enumerate(rows)
    ]
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows))
    return rows


def train_on_pairs(*settings, backend="mlx"):
    """Train by the recipe in the folder of ``pairs``, and do what the run says; return its result."""
    splits = [f"data.{it}={it}.jsonl" for it in ("train", "validation", "test")]
    how = [*settings, *splits, "optimizer.learning_rate=0.01", *PAIRS]
    words = [word for one in how for word in ("--set", one)]
    said = run("train", "run", "--recipe", "seq2seq-lora", "--backend", backend, *words).output
    run(*shlex.split(said.partition("Next: weighbridge ")[2].splitlines()[0]))
    found = json.loads(Path("run/result.json").read_text())
    assert found["best"]["loss"] < found["before"]["loss"]
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("place", ["torch", "mlx", "4bit"])
def test_seq2seq_lora_trains_a_t5_by_transformers_own_loss(place, t5, pairs, tmp_path):
    if place == "mlx":
        run("convert", "torch-to-mlx", t5, "mlx", "--check", "none")
    if place == "4bit":  # the head is the embeddings, and not there for itself
        run("quantize", t5, "4bit", "--group-size", "32", "--check", "none")
    base = t5 if place == "torch" else tmp_path / place
    found = train_on_pairs(f"model={base}", f"tokenizer={t5}")
    assert found["best"]["loss"] == pytest.approx(loss_of("run-torch", pairs, t5), rel=1e-5)
    if place != "4bit":
        assert found["before"]["loss"] == pytest.approx(loss_of(t5, pairs, t5), rel=1e-5)


SIDES = [f"{side}_{size}" for side in ("encoder", "decoder") for size in ("layers", "ffn_dim")]
BART = {"d_model": 32, "max_position_embeddings": 128, **dict(zip(SIDES, (1, 32) * 2, strict=True))}
BART |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "dropout": 0.0}
BART |= {"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 3}


@pytest.fixture
def only_in_torch(tmp_path, request):
    """Return the directory of a small model of a class that no MLX library has, with a tokenizer."""
    import transformers

    words, cls = tiny_vocabulary(), getattr(transformers, request.param)
    config = cls.config_class(**BART, vocab_size=len(words), decoder_vocab_size=len(words))
    model = realistic(cls(config))
    model.tie_weights()
    model.save_pretrained(tmp_path / "base")
    save_tokenizer(words, tmp_path / "base")
    return tmp_path / "base"


CLASSES = ["BartForConditionalGeneration", "M2M100ForConditionalGeneration", "MarianMTModel"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("only_in_torch", "backend"),
    [*zip(CLASSES, ("torch", "torch", "mlx"), strict=True)],
    indirect=["only_in_torch"],
)
def test_an_encoder_decoder_without_a_class_in_mlx_trains_as_it_is(only_in_torch, backend, pairs):
    """Marian computes its positions and saves none; M2M100 has no function that shifts labels."""
    found = train_on_pairs(f"model={only_in_torch}", backend=backend)
    for result, folder in (("before", only_in_torch), ("best", "run-torch")):
        own = loss_of(folder, pairs, only_in_torch)
        assert found[result]["loss"] == pytest.approx(own, rel=1e-5)


@pytest.mark.parametrize("only_in_torch", CLASSES[:1], indirect=True)
def test_a_model_without_a_class_in_mlx_is_not_converted_and_says_what_works(only_in_torch):
    command = ["convert", "torch-to-mlx", str(only_in_torch), str(only_in_torch.parent / "out")]
    found = CliRunner().invoke(main, command)
    assert found.exit_code == 3
    assert "no MLX library that is installed has a class for model_type bart" in found.output
    assert "trains there by weighbridge train" in found.output
    said = run("inspect", only_in_torch, "--json").output
    assert "torch-to-mlx" not in str(json.loads(said)["you can now run"])


def loss_of(folder, rows, texts):
    """Return the loss that the class of transformers in FOLDER finds of ROWS, coded as in TEXTS."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    model = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    coder = AutoTokenizer.from_pretrained(texts)
    pairs = [json.loads(row) for row in rows]
    given, wanted = (
        coder([pair[name] for pair in pairs], padding=True, return_tensors="pt")
        for name in ("query", "document")
    )
    labels = wanted["input_ids"].where(wanted["attention_mask"] > 0, -100)
    mask = given["attention_mask"]
    return model(input_ids=given["input_ids"], attention_mask=mask, labels=labels).loss.item()


@pytest.mark.parametrize(
    ("recipe", "model", "row", "says"),
    [
        ("causal-lora", "t5", {"text": "read the file"}, "--recipe seq2seq-lora"),
        ("masked_lm", "t5", {"text": "read the file"}, "--recipe seq2seq-lora"),
        (
            "seq2seq-lora",
            "decoder",
            {"query": "read the file", "document": "open"},
            "LlamaForCausalLM is no encoder-decoder of transformers with a head of words",
        ),
    ],
)
def test_a_model_of_the_other_kind_is_refused_and_told_what_to_do(
    recipe, model, row, says, request, tmp_path
):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text(json.dumps(row))
    how = [f"data.{it}={tmp_path / it}.jsonl" for it in ("train", "validation", "test")]
    length = "data.length" if "text" in row else "data.lengths.document"
    how += [f"{length}=[16]", f"model={request.getfixturevalue(model)}"]
    if recipe == "masked_lm":
        recipe, how = "causal-lora", [*how, "objective=masked_lm", "data.hide=0.5"]
    words = [word for one in how for word in ("--set", one)]
    found = CliRunner().invoke(main, ["train", str(tmp_path / "run"), "--recipe", recipe, *words])
    assert found.exit_code == 3
    assert says in found.output


def test_an_encoder_that_would_see_what_it_is_to_find_is_refused(tmp_path):
    from transformers import BertConfig, BertForMaskedLM

    words = tiny_vocabulary()
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = BertConfig(vocab_size=len(words), intermediate_size=16, **sizes)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    save_tokenizer(words, tmp_path / "bert")
    rows = [json.dumps({"text": text}) for text in ("read the file", "open a path")]
    (tmp_path / "texts.jsonl").write_text("\n".join(rows))
    settings = [f"data.{it}={tmp_path / 'texts.jsonl'}" for it in ("train", "validation")]
    settings += ["data.kind=text", "batch_size=1", f"model={tmp_path / 'bert'}"]
    words = [word for one in settings for word in ("--set", one)]
    says = {
        (
            "causal_lm",
        ): "BertForMaskedLM looks at the tokens that it is to find next; encoders take objective=masked_lm",
        (
            "masked_lm",
        ): "masked_lm finds tokens that are hidden, and none are; --set data.hide=0.15",
        (
            "causal_lm",
            "data.hide=0.5",
        ): "data.hide hides some; leave it out, or take objective=masked_lm",
    }
    for (objective, *more), answer in says.items():
        asked = [word for one in (f"objective={objective}", *more) for word in ("--set", one)]
        found = CliRunner().invoke(main, ["train", str(tmp_path / "run"), *words, *asked])
        assert found.exit_code == 3
        assert answer in found.output


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("FSMT", "gives its decoder something else than the document"),
        ("LED", "--backend torch trains it"),
        ("T5", "begins with; set decoder_start_token_id in its config.json"),
    ],
)
def test_encoder_decoders_that_would_learn_wrong_or_not_be_recorded_are_refused_at_once(
    name, says, t5, pairs, tmp_path
):
    import transformers

    heads = {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes = dict(zip(SIDES, (1, 32) * 2, strict=True)) | heads | {"d_model": 32}
    own = {"vocab_size": 128, "attention_window": 4}
    if name == "FSMT":
        own = {"langs": ["en", "de"], "src_vocab_size": 128, "tgt_vocab_size": 128}
    if name == "T5":
        sizes, own = {"d_model": 32, "d_ff": 32, "num_layers": 1, "num_heads": 2}, {}
    config = getattr(transformers, f"{name}Config")(**sizes, **own)
    module = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    data = {"kind": "pairs", "train": "train.jsonl", "validation": "validation.jsonl"}
    given = (module, "seq2seq_lm", data, {"tokenizer": str(t5), "batch_size": 2, "steps": 1})
    with pytest.raises((MismatchError, UnsupportedError), match=says):
        weighbridge.train(*given, target=tmp_path / "run")
