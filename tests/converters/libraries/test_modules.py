"""What modules a class has, against what PEFT and mlx-lm put an adapter on."""

from __future__ import annotations

import json

import pytest
import torch

from weighbridge.converters.checkpoints import Header
from weighbridge.converters.libraries import find
from weighbridge.converters.libraries.modules import describe, described, mlx_kinds
from weighbridge.errors import BadInputError, UnsupportedError

SIZES = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "moe_intermediate_size": 20,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 50,
    "num_experts": 3,
    "num_local_experts": 3,
    "num_experts_per_tok": 2,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
LLAMA = {"model_type": "llama", **SIZES}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    **SIZES,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "rope_theta": 1e4,
    "max_position_embeddings": 32,
}
GPT_OSS = {"model_type": "gpt_oss", **SIZES, "layer_types": ["full_attention"] * 2}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 2, "vocab_size": 20}
T5 = {
    "model_type": "t5",
    "num_layers": 2,
    "d_model": 12,
    "d_kv": 4,
    "num_heads": 2,
    "d_ff": 20,
    "vocab_size": 20,
    "architectures": ["T5ForConditionalGeneration"],
}
BERT = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 12,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 22,
    "architectures": ["BertForMaskedLM"],
}
ALL = [LLAMA, QWEN3_MOE, GPT_OSS, GPT2, T5, BERT]


def alive(config):
    """Return the class of transformers for CONFIG with values in it."""
    import transformers

    from weighbridge.converters.libraries.transformers import torch_class, transformers_config

    return getattr(transformers, torch_class(config))(transformers_config(config))


# PEFT warns of tied layers, of Conv1D, and of patterns that it made itself.
TALKATIVE = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")


def kind(config):
    return config["model_type"]


@pytest.mark.parametrize("config", ALL, ids=kind)
def test_names_and_shapes_are_those_of_the_live_module(config):
    found = described(config)
    state = alive(config).state_dict()
    assert found.headers == {
        name: Header("F32", tuple(tensor.shape)) for name, tensor in state.items()
    }


@pytest.mark.parametrize("config", ALL, ids=kind)
def test_tied_names_share_one_memory_in_the_live_module(config):
    found = described(config)
    state = alive(config).state_dict()
    places = {name: tensor.data_ptr() for name, tensor in state.items() if tensor.numel()}
    shared = {name for name, at in places.items() if list(places.values()).count(at) > 1}
    assert found.tied == shared
    assert all(places[alias] == places[name] for alias, name in found.ties.items())


@TALKATIVE
@pytest.mark.parametrize("config", ALL, ids=kind)
def test_kinds_say_which_axis_the_factors_of_peft_lie_along(config):
    peft = pytest.importorskip("peft")
    found = described(config)
    for at, word in sample(found).items():
        factors = peft_factors(peft, alive(config), at, word, rank=2)
        rows, columns = found.headers[weight(found, at)].shape[-2:]
        inputs, outputs = IN_OUT[word](rows, columns)
        stacked = 2 * (found.headers[weight(found, at)].shape[0] if "experts" in word else 1)
        assert [tuple(factor.shape) for factor in factors] == [
            (stacked, inputs),
            (outputs, stacked),
        ], at


# For each kind, inputs and outputs as PEFT counts them, from the last two axes of the weight.
IN_OUT = {
    "linear": lambda rows, columns: (columns, rows),
    "experts": lambda rows, columns: (columns, rows),
    "conv1d": lambda rows, columns: (rows, columns),
    "experts_in_out": lambda rows, columns: (rows, columns),
    "embedding": lambda rows, columns: (rows, columns),
}


def weight(modules, at):
    return at if at in modules.headers else f"{at}.weight"


def sample(modules):
    """Return one module of each kind and shape."""
    found = {
        (word, modules.headers[weight(modules, at)]): (at, word)
        for at, word in modules.kinds.items()
    }
    return dict(found.values())


def peft_factors(peft, model, at, word, rank):
    """Return the two factors that PEFT puts on the module AT."""
    where = "target_parameters" if "experts" in word else "target_modules"
    own = {where: [at], "fan_in_fan_out": word == "conv1d"}
    own |= {"target_modules": []} if where == "target_parameters" else {}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=rank, **own))
    found = {n: p for n, p in wrapped.named_parameters() if "lora_" in n}
    return [
        next(p for n, p in found.items() if f"{letter}." in n.replace("embedding_", ""))
        for letter in ("lora_A", "lora_B")
    ]


@TALKATIVE
@pytest.mark.parametrize("config", ALL, ids=kind)
def test_everything_that_peft_adapts_of_its_own_has_a_kind(config):
    peft = pytest.importorskip("peft")
    model = alive(config)
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    found = [(n, module) for n, module in wrapped.named_modules() if hasattr(module, "lora_A")]
    targets = {adapted(name, module) for name, module in found}
    assert targets
    known = described(config)
    routers = {name for name in targets if len(known.headers.get(name, ((), ()))[1]) == 2}
    assert targets - routers <= known.kinds.keys()  # matrices without a Linear are plain parameters


def adapted(name, module):
    """Return what PEFT's MODULE wraps: a module, or the one parameter of experts that it is for."""
    path = name.removeprefix("base_model.model.").replace(".base_layer", "")
    return ".".join([path, *filter(None, [getattr(module, "parameter_name", "")])])


def test_a_convolution_is_no_expert():
    assert not set(described({"model_type": "wav2vec2", **WAV2VEC2}).kinds.values()) & {"experts"}


WAV2VEC2 = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "conv_dim": [8, 8],
    "conv_kernel": [3, 3],
    "conv_stride": [2, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embedding_groups": 2,
    "num_conv_pos_embeddings": 4,
}


def test_the_class_can_be_named():
    found = described(BERT, "BertModel")
    assert (found.name, found.prefix) == ("BertModel", "bert")
    assert "encoder.layer.0.attention.self.query" in found.kinds
    assert not found.ties


def test_an_answer_that_was_kept_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path))
    first = describe(GPT2)
    [kept] = tmp_path.iterdir()
    assert json.loads(kept.read_text().partition("\n")[2])["prefix"] == "transformer"
    assert describe(GPT2) == first == described(GPT2)


def test_an_unknown_type_is_refused():
    with pytest.raises(UnsupportedError, match="unheard-of"):
        describe({"model_type": "unheard-of"})


def test_a_config_that_builds_nothing_is_refused():
    with pytest.raises(BadInputError, match=r"config\.json"):
        describe({**LLAMA, "num_hidden_layers": "two"})


@pytest.mark.parametrize("config", [LLAMA, QWEN3_MOE], ids=kind)
def test_mlx_kinds_are_what_mlx_lm_puts_adapters_on(config):
    import mlx.utils
    from mlx_lm.tuner.utils import linear_to_lora_layers

    target = find(config, "mlx-lm")
    model = target.build(config)
    found = mlx_kinds(target, config)
    inner = {"rank": 2, "scale": 1.0, "dropout": 0.0}
    linear_to_lora_layers(model, -1, inner)
    flat = dict(mlx.utils.tree_flatten(model.parameters()))
    adapted = {name.removesuffix(".lora_a") for name in flat if name.endswith(".lora_a")}
    # mlx-lm looks into layers alone; heads and embeddings are named in ``keys``
    assert adapted == {name for name in found if name.startswith("model.layers.")}
    three = {name for name in adapted if flat[f"{name}.lora_a"].ndim == 3}
    assert three == {name for name, word in found.items() if word == "experts"}
    assert found["model.embed_tokens"] == "embedding"


def test_meta_tensors_take_no_memory():
    large = {**LLAMA, "hidden_size": 8184, "num_hidden_layers": 3, "intermediate_size": 28672}
    found = described(large)
    assert sum(header.nbytes for header in found.headers.values()) > 5e9
    assert all(isinstance(header, Header) for header in found.headers.values())
    assert torch.empty(0).device.type == "cpu"
