"""Mirrors converters/runtimes/torch_adapters.py; the oracle is PEFT's own forward pass."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM

from weighbridge.converters.runtimes.torch_adapters import attach_adapter
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError

IDS = torch.tensor([[3, 17, 99, 4, 5, 60, 22, 81], [9, 1, 2, 77, 40, 40, 6, 3]])
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES = {
    "llama": {"target_modules": ["q_proj", "down_proj", "lm_head"]},
    "llama rank of the width": {"target_modules": ["k_proj"], "r": 48},
    "llama dora": {"target_modules": ["q_proj", "up_proj"], "use_dora": True},
    "qwen2 dora": {"target_modules": ["v_proj"], "use_dora": True, "use_rslora": True},
    "llama embeddings": {"target_modules": ["embed_tokens", "v_proj"]},
    "gemma2 embeddings": {"target_modules": ["embed_tokens"]},
    "gpt2": {"target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True},
    "gpt2 square": {"target_modules": ["attn.c_proj"], "fan_in_fan_out": True},
    "qwen3_moe": {"target_modules": ["o_proj"], "target_parameters": EXPERTS},
    "qwen3_moe router": {"target_modules": [], "target_parameters": ["mlp.gate.weight"]},
    "mixtral": {"target_modules": ["q_proj"], "target_parameters": EXPERTS[1:]},
    "gpt_oss": {"target_modules": [], "target_parameters": EXPERTS},
    "bert": {"target_modules": ["query", "dense", "word_embeddings"]},
}


def untied(module):
    """Return MODULE with an output layer of its own where it was tied to the embedding."""
    head = module.get_output_embeddings()
    if head is not None and head.weight is module.get_input_embeddings().weight:
        head.weight = nn.Parameter(torch.randn_like(head.weight))
        module.config.tie_word_embeddings = False
    return module


@pytest.fixture
def base(tiny):
    def load(kind):
        bare = kind in {"bert"}
        auto = AutoModel if bare else AutoModelForCausalLM
        options = {} if bare else {"attn_implementation": "eager"}
        return untied(auto.from_pretrained(tiny(kind), **options).float().eval())

    return load


def output(module):
    with torch.no_grad():
        result = module(IDS, use_cache=False)
    return (result["logits"] if "logits" in result else result["last_hidden_state"]).numpy()


def apart(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize("case", CASES)
def test_a_live_adapter_computes_what_peft_computes(base, with_peft, case):
    module = base(case.split()[0])
    before = output(module)
    theirs, updates = with_peft(module, **CASES[case])
    attach_adapter(module, updates)
    assert updates
    assert apart(output(module), output(theirs)) < 1e-6
    assert apart(output(module), before) > 1e-3


def test_parameters_keep_their_names_and_values(base, with_peft):
    module = base("qwen3_moe")
    before = copy.deepcopy(module.state_dict())
    attach_adapter(module, with_peft(module, **CASES["qwen3_moe"])[1])
    output(module)
    after = module.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_call_that_fails_leaves_no_sum_behind(base, with_peft):
    module = base("qwen3_moe")
    attach_adapter(module, with_peft(module, **CASES["qwen3_moe"])[1])
    experts = module.model.layers[1].mlp.experts
    with pytest.raises(TypeError):
        experts(torch.ones(1))
    assert "gate_up_proj" not in vars(experts)
    assert experts.gate_up_proj is experts._parameters["gate_up_proj"]


def low_rank(out, inner, lead=()):
    random = np.random.default_rng(0)
    return LowRank(random.normal(size=(*lead, 2, inner)), random.normal(size=(*lead, out, 2)))


def test_all_that_does_not_fit_is_listed():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    updates = {"0.weight": low_rank(3, 4), "1.weight": low_rank(5, 4), "7.weight": low_rank(5, 4)}
    with pytest.raises(MismatchError) as caught:
        attach_adapter(module, updates)
    assert list(caught.value.problems) == [
        "7.weight is no parameter",
        "0.weight: expected an update of [4, 3], found [3, 4]",
    ]
    assert not module[1]._forward_hooks


def test_tied_weights_are_refused_by_name(tiny):
    module = AutoModelForCausalLM.from_pretrained(tiny("gpt2")).eval()
    name = "transformer.wte.weight"
    shape = module.get_parameter(name).shape
    with pytest.raises(UnsupportedError, match=rf"{name}: tied.*weighbridge merge"):
        attach_adapter(module, {name: low_rank(*shape)})


@pytest.mark.parametrize(
    ("layer", "name", "update"),
    [
        (nn.Conv1d(4, 6, 3), "weight", low_rank(4, 3, (6,))),
        (nn.MultiheadAttention(4, 2), "out_proj.weight", low_rank(4, 4)),
        (nn.MultiheadAttention(4, 2), "in_proj_weight", low_rank(12, 4)),
    ],
)
def test_what_is_used_in_ways_of_its_own_is_refused_by_name(layer, name, update):
    with pytest.raises(UnsupportedError, match=name):
        attach_adapter(layer, {name: update})


def test_magnitudes_of_embeddings_are_refused():
    update = LowRank(np.ones((2, 3)), np.ones((5, 2)), magnitude=np.ones(5))
    with pytest.raises(UnsupportedError, match="DoRA on Embedding"):
        attach_adapter(nn.Embedding(5, 3), {"weight": update})
