"""What was converted opens in the loaders people use there, and computes the same.

The oracles are transformers' own classes on the source, and each library's own way of loading.
"""

import importlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file

from weighbridge.cli import main
from weighbridge.converters.sidefiles import SIDECAR
from weighbridge.tests.support.atlas import tiny

MESSAGES = (
    [{"role": "user", "content": "how far is it?"}],
    [
        {"role": "system", "content": "be brief."},
        {"role": "user", "content": "two and two"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "  and   three?  "},
    ],
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<pad>", "<s>", "</s>", "<|end|>", "<unk>", "<|system|>", "<|user|>", "<|assistant|>"]
STOPS = [2, 3]  # ids of </s> and <|end|>
NEAR = 1e-5  # of the largest logit: float32 summed in another order
BESIDE = {
    "LICENSE": b"do as you like\n",
    "README.md": "# t\xe4ny\r\n".encode(),
    "notes/a.txt": b"\0\1",
}


def convert(way, source, target, *options) -> str:
    """Run the command; return what it printed."""
    arguments = ["convert", way, str(source), str(target), "--check", "none", *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def tokenizer():
    """Return a tokenizer of letters and a few words, with a chat template and two ways to stop."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    signs = [*"abcdefghijklmnopqrstuvwxyz0123456789.,?!'▁"]
    pairs = [("t", "w"), ("tw", "o"), ("a", "n"), ("an", "d"), ("▁", "and")]
    words = [*SPECIAL, *signs, *("".join(pair) for pair in pairs)]
    ids = {word: index for index, word in enumerate(words)}
    inner = Tokenizer(models.BPE(ids, pairs, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    more = {"additional_special_tokens": ["<|end|>", *SPECIAL[5:]]}
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, chat_template=TEMPLATE, model_max_length=200, **names, **more
    )


def dress(folder: Path) -> None:
    """Give the checkpoint in FOLDER a tokenizer, two stops, and files that nobody reads."""
    tokenizer().save_pretrained(folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": STOPS}))
    (folder / "notes").mkdir()
    for name, content in BESIDE.items():
        (folder / name).write_bytes(content)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> SimpleNamespace:
    """Return a dressed llama: the source, in MLX, home again, and what was printed."""
    root = tmp_path_factory.mktemp("llama")
    tiny.make("llama", root / "source", own={"num_hidden_layers": 2})
    dress(root / "source")
    said = convert("torch-to-mlx", root / "source", root / "mlx")
    convert("mlx-to-torch", root / "mlx", root / "home")
    return SimpleNamespace(
        source=root / "source", mlx=root / "mlx", home=root / "home", said=said, root=root
    )


@pytest.fixture(scope="module")
def shifted(tmp_path_factory) -> SimpleNamespace:
    """Return a model whose norms are one less than MLX's, in half precision: it has a sidecar."""
    root = tmp_path_factory.mktemp("shifted")
    made = tiny.make("qwen3_next", root / "source")
    made.model.to(torch.bfloat16).save_pretrained(root / "source")
    convert("torch-to-mlx", root / "source", root / "mlx")
    convert("mlx-to-torch", root / "mlx", root / "home")
    return SimpleNamespace(source=root / "source", mlx=root / "mlx", home=root / "home")


@pytest.fixture(scope="module")
def ids() -> list[int]:
    """Return a prompt."""
    return [1, 9, 14, 21, 48, 30, 3, 12]


def transformers_model(folder: Path):
    """Return what transformers makes of FOLDER, nothing missing and nothing left over."""
    from transformers import AutoModelForCausalLM

    plain = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model, report = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True, **plain
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


def torch_logits(folder: Path, ids) -> np.ndarray:
    with torch.no_grad():
        return transformers_model(folder)(torch.tensor([ids])).logits.float().numpy()


def mlx_logits(model, ids) -> np.ndarray:
    import mlx.core as mx

    return np.array(model(mx.array([ids])).astype(mx.float32))


def near(found, wanted, bar=NEAR) -> bool:
    assert found.shape == wanted.shape
    return bool(np.abs(found - wanted).max() < bar * np.abs(wanted).max())


def contents(folder: Path) -> dict[str, tuple]:
    """Return dtype, shape and bytes of every weight."""
    found = load_file(folder / "model.safetensors")
    return {name: (a.dtype, a.shape, a.tobytes()) for name, a in found.items()}


# mlx-lm.


def test_mlx_lm_opens_it_and_computes_the_same(llama, ids):
    from mlx_lm import load

    model, _ = load(str(llama.mlx))
    assert near(mlx_logits(model, ids), torch_logits(llama.source, ids))


def test_mlx_lm_reads_the_same_tokenizer(llama):
    from mlx_lm import load
    from transformers import AutoTokenizer

    _, there = load(str(llama.mlx), lazy=True)
    here = AutoTokenizer.from_pretrained(llama.source)
    assert there.eos_token_ids == set(STOPS)
    assert (there.bos_token_id, there.eos_token_id, there.pad_token_id) == (1, 2, 0)
    for messages in MESSAGES:
        texts = [
            t.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            for t in (here, there)
        ]
        assert texts[0] == texts[1] != ""
        assert here.encode(texts[0]) == there.encode(texts[1])


def test_mlx_lm_generates_what_transformers_generates(llama):
    from mlx_lm import load, stream_generate
    from transformers import AutoTokenizer

    model, there = load(str(llama.mlx))
    here = AutoTokenizer.from_pretrained(llama.source)
    prompt = here.apply_chat_template(MESSAGES[0], add_generation_prompt=True, return_dict=False)
    found = [step.token for step in stream_generate(model, there, prompt, max_tokens=6)]
    start = torch.tensor([prompt])
    made = transformers_model(llama.source).generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=6, do_sample=False
    )
    assert found == made[0, len(prompt) :].tolist()


def test_generation_stops_where_the_source_stops(llama):
    """mlx-lm stops at the ids of config.json, transformers at those of generation_config.json."""
    import mlx.core as mx
    from mlx_lm import load, stream_generate

    model, there = load(str(llama.mlx))
    last = mx.array([[0.0] * 3 + [9.0] + [0.0] * 132])  # <|end|>, whatever was said before

    class Stopping:
        layers = model.layers

        def __call__(self, tokens, cache=None):
            return mx.broadcast_to(last, (*tokens.shape, 136))

    steps = list(stream_generate(Stopping(), there, [1, 9], max_tokens=6))
    assert [step.finish_reason for step in steps] == ["stop"]


def test_the_sidecar_disturbs_no_loader(shifted, ids, tmp_path):
    """mlx-lm computes with our directory what it computes with the checkpoint it was made from."""
    assert (shifted.mlx / SIDECAR).is_file()
    shutil.copy(shifted.source / "model.safetensors", tmp_path)
    shutil.copy(shifted.mlx / "config.json", tmp_path)
    found, wanted = (loaded(place) for place in (shifted.mlx, tmp_path))
    assert np.array_equal(mlx_logits(found, ids), mlx_logits(wanted, ids))


def loaded(folder: Path):
    """Return what mlx-lm makes of FOLDER, strictly; in float32: no experts in bfloat16 on a CPU."""
    import mlx.core as mx
    from mlx_lm.utils import load_model

    model, _ = load_model(folder)
    model.set_dtype(mx.float32)
    return model


# transformers.


def test_transformers_opens_what_came_home_with_a_sidecar(shifted, ids):
    assert contents(shifted.home) == contents(shifted.source)
    assert np.array_equal(torch_logits(shifted.home, ids), torch_logits(shifted.source, ids))


def test_transformers_opens_what_came_home(llama, ids):
    assert contents(llama.home) == contents(llama.source)
    assert np.array_equal(torch_logits(llama.home, ids), torch_logits(llama.source, ids))


def test_transformers_reads_the_same_tokenizer(llama):
    same_tokenizer(llama.home, llama.source)


def same_tokenizer(folder: Path, source: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    found, wanted = (AutoTokenizer.from_pretrained(place) for place in (folder, source))
    assert found.get_vocab() == wanted.get_vocab()
    assert found.special_tokens_map == wanted.special_tokens_map
    for messages in MESSAGES:
        ids = [t.apply_chat_template(messages, return_dict=False) for t in (found, wanted)]
        assert ids[0] == ids[1] != []
    stops = [GenerationConfig.from_pretrained(place).eos_token_id for place in (folder, source)]
    assert stops == [STOPS, STOPS]


def test_what_mlx_lm_converted_comes_home(llama, ids):
    """Without a manifest: where it comes from is worked out from its class and transformers."""
    from mlx_lm import convert as mlx_lm_convert

    mlx_lm_convert(str(llama.source), str(llama.root / "theirs"))
    convert("mlx-to-torch", llama.root / "theirs", llama.root / "theirs-home")
    assert contents(llama.root / "theirs-home") == contents(llama.source)
    found = torch_logits(llama.root / "theirs-home", ids)
    assert np.array_equal(found, torch_logits(llama.source, ids))
    same_tokenizer(llama.root / "theirs-home", llama.source)


def loader(package: str, name: str = "load"):
    """Return the function NAME of PACKAGE; skip where what it needs is not installed.

    It is fetched here, for a conversion leaves packages unloaded until somebody asks for a name.
    """
    try:
        return getattr(importlib.import_module(package), name)
    except ImportError as error:
        pytest.skip(f"{package} cannot be imported here: {error}")


# Encoders.


@pytest.fixture(scope="module")
def bert(tiny_bert_dir, tmp_path_factory) -> SimpleNamespace:
    root = tmp_path_factory.mktemp("bert")
    convert("torch-to-mlx", tiny_bert_dir, root / "mlx")
    convert("mlx-to-torch", root / "mlx", root / "home")
    return SimpleNamespace(source=tiny_bert_dir, mlx=root / "mlx", home=root / "home")


def test_sentence_transformers_opens_what_came_home(bert):
    from sentence_transformers import SentenceTransformer

    words = ["the time of day", "only people, no numbers: 12"]
    found, wanted = (
        SentenceTransformer(str(place), device="cpu").encode(words)
        for place in (bert.home, bert.source)
    )
    assert np.array_equal(found, wanted)


def test_mlx_embeddings_opens_it(bert):
    model, reader = loader("mlx_embeddings")(str(bert.mlx))
    same_states(model, bert, reader.encode("the time of day"))


def test_the_class_of_mlx_embeddings_takes_it(bert):
    """The same class and strict load, without the imports that the package has besides."""
    import mlx.core as mx

    from weighbridge.converters.libraries import find

    config = json.loads((bert.mlx / "config.json").read_text())
    target = find(config, "mlx-embeddings")
    model = target.load(config, mx.load(str(bert.mlx / "model.safetensors")))
    same_states(model, bert, [2, 9, 17, 30, 3])


def same_states(model, bert, ids) -> None:
    """Hold the hidden states of an mlx-embeddings MODEL against transformers'."""
    import mlx.core as mx
    from transformers import AutoModel

    found = model(mx.array([ids]), attention_mask=mx.ones((1, len(ids)))).last_hidden_state
    with torch.no_grad():
        wanted = AutoModel.from_pretrained(bert.source)(torch.tensor([ids])).last_hidden_state
    assert near(np.array(found), wanted.numpy())


def test_mlx_vlm_opens_it(tmp_path):
    """Strictly: it refuses what is missing, left over or of another shape."""
    load_model = loader("mlx_vlm.utils", "load_model")
    made = tiny.make("mllama", tmp_path / "source")
    convert("torch-to-mlx", tmp_path / "source", tmp_path / "mlx")
    model = load_model(tmp_path / "mlx")
    found = np.array(model.language_model.lm_head.weight)
    assert np.array_equal(found, made.model.lm_head.weight.detach().numpy())


# What lies beside the weights.


def test_side_files_travel_byte_for_byte(llama):
    names = {path.relative_to(llama.source) for path in llama.source.rglob("*") if path.is_file()}
    names -= {Path("model.safetensors")}
    assert len(names) >= len(BESIDE) + 4
    for name in names - {Path("config.json")}:
        wanted = (llama.source / name).read_bytes()
        assert (llama.mlx / name).read_bytes() == wanted
        assert (llama.home / name).read_bytes() == wanted


def test_rewritten_fields_are_said_recorded_and_undone(llama):
    before, there, after = (
        json.loads((place / "config.json").read_text())
        for place in (llama.source, llama.mlx, llama.home)
    )
    recorded = json.loads((llama.mlx / "weighbridge.json").read_text())["config"]
    keys = {key for key in {**before, **there} if before.get(key, ...) != there.get(key, ...)}
    assert {
        key for part in ("added", "changed", "removed") for key in recorded.get(part, ())
    } == keys
    assert recorded["changed"]["eos_token_id"] == [2, STOPS]
    assert all(key in llama.said for key in keys)
    assert "config.json: changed eos_token_id" in llama.said
    assert after == before
