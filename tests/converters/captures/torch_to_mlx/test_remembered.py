"""A class is recorded once in a process for each configuration; its weights are taken every time."""

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from weighbridge.converters.captures.torch_to_mlx import remembered
from weighbridge.converters.captures.torch_to_mlx.remembered import capture_once, described

SIZES = {"vocab_size": 17, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
IDS = torch.ones((3, 5), dtype=torch.long)
DYNAMIC = {"input_ids": {0: "batch", 1: "sequence"}}


def bert(seed=0, **changes):
    torch.manual_seed(seed)
    module = BertModel(BertConfig(**{**SIZES, "intermediate_size": 9, **changes})).eval()
    for weight in module.parameters():
        weight.data = torch.randn_like(weight) * 0.5
    return module


@pytest.fixture
def recorded(monkeypatch):
    """Begin with nothing recorded; list what is."""
    made, capture_torch = [], remembered.capture_torch
    monkeypatch.setattr(remembered, "KEPT", remembered.KEPT.copy())
    remembered.KEPT.clear()

    def noted(module, **about):
        made.append(module)
        return capture_torch(module, **about)

    monkeypatch.setattr(remembered, "capture_torch", noted)
    return made


def error(module, dynamic=DYNAMIC):
    """Return how far what is captured of MODULE is from it."""
    found = capture_once(module, inputs={"input_ids": IDS}, dynamic=dynamic)
    ids = torch.arange(14).reshape(2, 7)
    with torch.no_grad():
        wanted = module(input_ids=ids).last_hidden_state.numpy()
    outputs = found(input_ids=mx.array(ids.numpy()))
    return np.abs(np.array(outputs["last_hidden_state"]) - wanted).max()


def test_other_weights_take_the_same_recording(recorded):
    assert error(bert(0)) < 1e-5
    assert error(bert(1)) < 1e-5
    assert len(recorded) == 1


def test_another_configuration_is_recorded_again(recorded):
    assert error(bert()) < 1e-5
    assert error(bert(layer_norm_eps=0.1)) < 1e-5
    assert len(recorded) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_norm_eps": 0.1},
        {"hidden_act": "relu"},
        {"num_attention_heads": 4},
        {"max_position_embeddings": 64},
    ],
    ids=lambda it: next(iter(it)),
)
def test_each_setting_is_described(changes):
    assert {*described(bert(**changes))} != {*described(bert())}


def test_what_a_module_computed_or_was_set_to_is_described():
    def llama(scale=1.0):
        sizes = {**SIZES, "num_key_value_heads": 2, "intermediate_size": 9}
        module = LlamaModel(LlamaConfig(**sizes)).eval()
        module.rotary_emb.inv_freq *= scale
        return module

    assert {*described(llama())} == {*described(llama())}
    assert {*described(llama(0.5))} != {*described(llama())}
    changed = bert()
    changed.encoder.layer[0].output.LayerNorm.eps = 0.5
    found = [tuple(described(it)) for it in (bert(), changed, bert().train(), bert().double())]
    assert len({*found}) == 4
    assert tuple(described(bert(seed=1))) == found[0]


def test_the_oldest_recording_is_forgotten(recorded, monkeypatch):
    monkeypatch.setattr(remembered, "MOST", 1)
    for width in (2, 3, 2):
        capture_once(torch.nn.Linear(width, 2), inputs={"input": torch.ones(2, width)})
    assert len(recorded) == 3
