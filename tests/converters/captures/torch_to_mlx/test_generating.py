"""Texts that captured language models go on with are transformers' own."""

import numpy as np
import pytest
import torch
import transformers

from tests.support.gain import realistic
from weighbridge import Generator
from weighbridge.errors import BadInputError, UnsupportedError

UNTIED = {"tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None}
SIZES = UNTIED | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 61,
    "max_position_embeddings": 64,
}
GPT2 = UNTIED | {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 61, "n_positions": 64}
WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
MODELS = {
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, SIZES),
    "gemma3, windows of 5": (
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig,
        SIZES | WINDOW,
    ),
    "gpt2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT2),
}
TEXT = [3, 5, 7, 11, 2, 13, 8]


def model(name):
    make, config, sizes = MODELS[name]
    module = make(config(**sizes)).eval()
    module.generation_config.eos_token_id = None
    return realistic(module, seed=1)


def theirs(module, count):
    found = module.generate(torch.tensor([TEXT]), max_new_tokens=count, do_sample=False)
    return found[0, len(TEXT) :].tolist()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_texts_are_those_of_transformers_past_every_window(name):
    module = model(name)
    wanted = theirs(module, 30)
    assert len(set(wanted)) > 3  # it does not repeat itself
    generator = Generator(module, tokens=40)
    assert generator.generate(TEXT, 30) == wanted
    assert generator.generate(TEXT, 30, stop=[wanted[4]]) == wanted[: wanted.index(wanted[4]) + 1]


def test_a_text_that_has_no_room_is_refused_and_the_module_stays_in_its_mode():
    module = model("gpt2").train()
    module.lm_head.eval()
    generator = Generator(module, tokens=9)
    assert module.training
    assert not module.lm_head.training
    assert len(generator.generate(TEXT, 2)) == 2
    for text, count in ((TEXT, 3), ([], 1)):
        with pytest.raises(BadInputError, match="needs 1 to 9 tokens"):
            generator.generate(text, count)


def test_what_is_no_text_of_the_model_is_refused_and_breaks_nothing():
    module = model("gpt2")
    with pytest.raises(BadInputError, match="texts of 1 to 64 tokens"):
        Generator(module, tokens=65)
    generator = Generator(module, tokens=12)
    for text in ([1.5], [[1, 2]], [61], [-1]):
        with pytest.raises(BadInputError):
            generator.generate(text, 2)
    assert generator.generate(np.array(TEXT), 3) == theirs(module, 3)


def test_a_model_that_keeps_something_else_is_refused():
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 61, "state_size": 4}
    module = transformers.MambaForCausalLM(transformers.MambaConfig(**sizes))
    with pytest.raises(UnsupportedError, match="keep"):
        Generator(module.eval())


def test_a_model_that_decides_by_how_far_a_text_is_is_refused():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    config = transformers.LlamaConfig(**SIZES, rope_parameters=rope)
    with pytest.raises(UnsupportedError, match="how far a text is"):
        Generator(transformers.LlamaForCausalLM(config).eval(), tokens=40)


def test_no_token_is_the_likeliest_of_logits_that_are_nan():
    module = model("gpt2")
    torch.nn.init.constant_(module.transformer.ln_f.weight, torch.nan)
    with pytest.raises(UnsupportedError, match="after 7 tokens are NaN"):
        Generator(module, tokens=12).generate(TEXT, 2)
