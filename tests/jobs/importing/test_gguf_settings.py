"""GGUF files whose tokens, lengths or positions are not those of the directory are refused, both ways."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import tokenizers
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.converters.gguf.models import SIZES, like_file, module, saved
from tests.jobs.importing.test_gguf import convert
from tests.jobs.test_export_gguf_quantized import export
from weighbridge.converters.gguf import GgufFile
from weighbridge.converters.gguf.metadata.positions import divisors
from weighbridge.converters.gguf.metadata.settings import differences, unwindowed

TOKENS = [f"t{i}" for i in range(49)] + ["né\u0120"]  # as `like_file` has them
MERGES = [("t", "1"), ("t", "2")]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return a Llama with the tokenizer of its files."""
    folder = saved(module("llama"), tmp_path_factory.mktemp("settings") / "base")
    vocabulary = {token: number for number, token in enumerate([*TOKENS, "t", "1", "2"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, MERGES))
    (folder / "tokenizer.json").write_text(tokenizer.to_str())
    settings = {"eos_token": "t2", "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def agree(writer, **other):
    """Add to WRITER what the base says, but for what is OTHER."""
    tokens = [*TOKENS, "t", "1", "2"]
    said = {"tokens": tokens, "merges": ["t 1", "t 2"], "length": 32, "turned": 8} | other
    writer.kv_data[0].pop("tokenizer.ggml.tokens")
    writer.add_token_list(said["tokens"])
    writer.add_token_merges(said["merges"])
    writer.add_context_length(said["length"])
    writer.add_rope_dimension_count(said["turned"])
    writer.add_eos_token_id(said.get("eos", 2))
    writer.add_add_bos_token(said.get("begins", True))
    if "divisors" in said:
        writer.add_tensor("rope_freqs.weight", said["divisors"])


def swapped(items, one, other):
    items = list(items)
    items[one], items[other] = items[other], items[one]
    return items


FAULTS = {
    "2 tokens are others; id 3 is 't4', in tokenizer.json 't3'": {
        "tokens": swapped([*TOKENS, "t", "1", "2"], 3, 4)
    },
    "1 tokens are others; id 52 is not there": {"tokens": [*TOKENS, "t", "1"]},
    "merge 0 is 't 2', in tokenizer.json 't 1'": {"merges": ["t 2", "t 1"]},
    "it has 1 merges, tokenizer.json 2": {"merges": ["t 1"]},
    "llama.context_length is 64, max_position_embeddings 32": {"length": 64},
    "llama.rope.dimension_count is 4, config.json turns 8 numbers of each head": {"turned": 4},
    "eos_token_id is 7, in the files of base [2]": {"eos": 7},
    "add_bos_token is False, in tokenizer_config.json True": {"begins": False},
    "rope_freqs.weight is there": {"divisors": np.ones(4, np.float32)},
}


def test_a_file_that_says_the_same_is_taken_both_ways(base, tmp_path):
    file = like_file(tmp_path / "same.gguf", "llama", base, "F16", extra=agree)
    convert(file, tmp_path / "mlx", base, "--check", "none")
    export(base, tmp_path / "out.gguf", file)


def test_every_contradiction_is_listed_both_ways(base, tmp_path):
    other = {key: value for fault in FAULTS.values() for key, value in fault.items()}
    for message, fault in FAULTS.items():
        file = like_file(
            tmp_path / "x.gguf", "llama", base, "F16", extra=lambda it, f=fault: agree(it, **f)
        )
        assert message in convert(file, tmp_path / "mlx", base, "--check", "none", code=3)
    file = like_file(
        tmp_path / "all.gguf", "llama", base, "F16", extra=lambda it: agree(it, **other)
    )
    said = export(base, tmp_path / "out.gguf", file, code=3)
    assert said.count("others;") == said.count("context_length is 64") == said.count("merge") == 1
    assert not (tmp_path / "mlx").exists()
    assert not (tmp_path / "out.gguf").exists()


def test_a_file_that_turns_whole_heads_is_refused_for_a_config_that_turns_a_part(base, tmp_path):
    like = shutil.copytree(base, tmp_path / "like")
    config = json.loads((like / "config.json").read_text())
    config["rope_parameters"] = {**config["rope_parameters"], "partial_rotary_factor": 0.5}
    (like / "config.json").write_text(json.dumps(config))
    file = like_file(tmp_path / "x.gguf", "llama", base, "F16")
    said = convert(file, tmp_path / "mlx", like, "--check", "none", code=3)
    assert "rope.dimension_count is not there, which then is every one, config.json turns 4" in said


def test_divisors_of_frequencies_have_to_be_those_of_the_scaling(base, tmp_path):
    like = shutil.copytree(base, tmp_path / "like")
    config = json.loads((like / "config.json").read_text()) | {"rope_parameters": LLAMA3}
    (like / "config.json").write_text(json.dumps(config))
    right = divisors(8, 1e4, LLAMA3).astype(np.float32)
    for made, code in ((right, 0), (right[::-1].copy(), 3)):
        file = like_file(
            tmp_path / "x.gguf",
            "llama",
            base,
            "F16",
            extra=lambda it, d=made: agree(it, divisors=d),
        )
        said = convert(file, tmp_path / "mlx", like, "--check", "none", "--force", code=code)
        assert ("rope_freqs.weight is not what the llama3 scaling" in said) == bool(code)


def test_divisors_are_those_by_which_transformers_scales():
    config = transformers.LlamaConfig(**SIZES | {"head_dim": 32}, rope_parameters=LLAMA3)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1e4 ** -(np.arange(0, 32, 2) / 32)
    assert np.allclose(plain / scaled.numpy(), divisors(32, 1e4, LLAMA3), rtol=1e-6)


def test_spaces_and_pieces_are_told_as_llama_cpp_writes_them(base, tmp_path):
    """Placeholders of unused ids and added tokens with other spaces are no other tokens."""
    like = shutil.copytree(base, tmp_path / "like")
    document = json.loads((like / "tokenizer.json").read_text())
    document["added_tokens"] = [{"id": 53, "content": "\u2581<end>", "special": True}]
    (like / "tokenizer.json").write_text(json.dumps(document))
    tokens = [*TOKENS, "t", "1", "2", "<end>", "[PAD54]"]
    file = like_file(
        tmp_path / "x.gguf", "llama", base, "F16", extra=lambda it: agree(it, tokens=tokens)
    )
    convert(file, tmp_path / "mlx", like, "--check", "none")


THETAS = {
    name: {"rope_type": "default", "rope_theta": theta}
    for name, theta in (("full_attention", 1e6), ("sliding_attention", 1e4))
}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("theta", "refused"), [(1e6, False), (1e4, True)])
def test_the_rotary_base_is_that_of_whole_attention(order, theta, refused, tmp_path):
    folder = saved(module("llama"), tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "gemma3_text", "rope_parameters": dict(list(THETAS.items())[::order])}
    file = like_file(
        tmp_path / "base.gguf", "llama", folder, extra=lambda it: it.add_rope_freq_base(theta)
    )
    said = [it for it in differences(GgufFile(file), config) if "freq_base" in it]
    assert said == (["llama.rope.freq_base is 10000, rope_theta 1e+06"] if refused else [])


@pytest.mark.parametrize(("says", "count"), [(False, 1), (True, 0)])
def test_shares_of_experts_that_llama_cpp_always_scales_are_scaled(says, count, tmp_path):
    folder = saved(module("qwen3_moe"), tmp_path / "base")
    file = like_file(tmp_path / "base.gguf", "qwen3_moe", folder)
    config = json.loads((folder / "config.json").read_text()) | {"norm_topk_prob": says}
    found = [it for it in differences(GgufFile(file), config) if "norm_topk_prob" in it]
    assert len(found) == count


@pytest.mark.parametrize(
    ("config", "written", "told"),
    [
        ({}, 0, True),
        ({}, 16, False),
        ({"use_sliding_window": False}, 0, False),
        ({"sliding_window": 32}, 0, False),
    ],
)
def test_a_window_that_the_file_has_not_is_told(config, written, told, tmp_path):
    folder = saved(module("llama"), tmp_path / "base")
    extra = (lambda it: it.add_sliding_window(written)) if written else lambda _: None
    file = like_file(tmp_path / "base.gguf", "llama", folder, extra=extra)
    says = {"model_type": "mistral", "sliding_window": 16, "max_position_embeddings": 32} | config
    assert ("window of 16 tokens" in unwindowed(GgufFile(file), says)) == told
