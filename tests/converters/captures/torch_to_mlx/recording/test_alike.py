"""A module that computes the same in train and eval mode is recorded once; any other one twice."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaModel

from weighbridge import capture
from weighbridge.converters.captures.torch_to_mlx import capturing
from weighbridge.converters.captures.torch_to_mlx.recording.alike import computes_alike, twin

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 96,
}


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, g):
        return g


class Module(nn.Module):
    def __init__(self, then):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.one, self.other = (nn.Parameter(torch.full((6,), it)) for it in (2.0, 3.0))
        self.kept = torch.ones(6), torch.zeros(6)
        self.register_buffer("first", torch.ones(6))
        self.register_buffer("second", torch.zeros(6))
        self.then = then

    def forward(self, x):
        return self.then(self.linear(x), self.training)


def without_gradient(x, training):
    with torch.set_grad_enabled(training):
        return x * 2


SAME = {
    "no mode": lambda x, training: x * 2,
    "nothing dropped": lambda x, training: nn.functional.dropout(x, 0.0, training),
    "a size asked in both": lambda x, training: x * 2 if x.shape[0] > 100 and training else x,
    "a setting first": lambda x, training: x * 2 if x is None and training else x,
}
OTHERWISE = {
    "dropout": lambda x, training: nn.functional.dropout(x, 0.1, training),
    "another number": lambda x, training: x * (2 if training else 3),
    "another operand": lambda x, training: (x + 1, x + 1)[training] * 2,
    "another output": lambda x, training: (x + 1, x + 2)[training],
    "gradients kept out": without_gradient,
    "detached": lambda x, training: x.detach() if training else x,
    "its own gradient": lambda x, training: Straight.apply(x),
    "values decide": lambda x, training: x * 2 if x.sum() > 0 else x,
    "a size": lambda x, training: x * 2 if training and x.shape[0] > 100 else x,
    "a length": lambda x, training: x * 2 if training and len(x) > 100 else x,
    "a number of elements": lambda x, training: x * 2 if training and x.numel() > 100 else x,
    "a computed size": lambda x, training: x * 2 if training and x.size(0) * 3 // 2 % 7 == 5 else x,
    "a size as a float": lambda x, training: x * 2 if training and float(x.shape[0]) > 99 else x,
    "the larger of two": lambda x, training: x * 2 if training and max(len(x), 4) > 99 else x,
    "a size times a float": lambda x, training: x * 2 if training and x.shape[0] * 0.5 > 99 else x,
    "its root": lambda x, training: x * 2 if training and math.sqrt(x.shape[0]) > 99 else x,
    "a plain number": lambda x, training: x * 2 if training and int(x.shape[0]) > 99 else x,
    "its digits": lambda x, training: x * 2 if training and len(f"{x.shape[0]}") > 2 else x,
    "a bit of it": lambda x, training: x * 2 if training and x.shape[0] & 8 else x,
    "a size looked up": lambda x, training: x * 2 if training and x.shape[0] in {100: 1} else x,
}


class Own(Module):
    def forward(self, x):
        return self.then(self, x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "then",
    [
        lambda own, x: x * (own.one if own.training else own.other),
        lambda own, x: x * (own.first if own.training else own.second),
        lambda own, x: x * own.kept[own.training],
        lambda own, x: x * torch.tensor(2.0 if own.training else 3.0),
        lambda own, x: (x,) if own.training else x,
        lambda own, x: {"a": x} if own.training else {"b": x},
    ],
    ids=["parameters", "buffers", "attributes", "values", "a tuple", "names"],
)
def test_another_tensor_of_the_module_or_another_form_is_seen(then, training):
    one, other = Own(then).train(not training), Own(then).train(training)
    assert not computes_alike(one, other, {"x": torch.randn(3, 6)})


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("then", "same"), [(it, True) for it in SAME.values()] + [(it, False) for it in OTHERWISE.values()],
    ids=[*SAME, *OTHERWISE],
)  # fmt: skip
def test_what_depends_on_the_mode_is_told(then, same, training):
    one, other = Module(then).train(not training), Module(then).train(training)
    assert computes_alike(one, other, {"x": torch.randn(3, 6)}) is same


def test_a_twin_shares_its_large_tensors_and_a_run_of_it_writes_none():
    module = nn.Sequential(nn.Linear(6, 300_000), nn.BatchNorm1d(300_000)).train()
    one, other = twin(module), twin(module)
    assert one[1].running_mean is module[1].running_mean
    assert computes_alike(one, other, {"input": torch.randn(3, 6)})
    assert not module[1].running_mean.any()
    assert not module[1].num_batches_tracked


@pytest.mark.parametrize(
    ("build", "recorded"),
    [
        (lambda: LlamaModel(LlamaConfig(**SIZES)), 1),
        (lambda: BertModel(BertConfig(**SIZES)), 2),
        (lambda: BertModel(BertConfig(**SIZES, hidden_dropout_prob=0.0)), 2),
        (lambda: nn.Sequential(nn.Embedding(96, 8), nn.Dropout(0.0), nn.Linear(8, 8)), 1),
        (lambda: nn.Sequential(nn.Embedding(96, 8), nn.Dropout(0.5), nn.Linear(8, 8)), 2),
    ],
    ids=["Llama", "BERT", "BERT, attention drops", "nothing drops", "drops"],
)
def test_a_module_that_does_the_same_in_both_modes_is_recorded_once(build, recorded, monkeypatch):
    count, plain = [], capturing.record
    monkeypatch.setattr(capturing, "record", lambda *given: count.append(1) or plain(*given))
    module, ids = build().train(), torch.randint(0, 96, (2, 7))
    captured = capture(module, inputs=[ids])
    captured.eval()
    assert len(count) == recorded
    with torch.no_grad():
        wanted = module.eval()(ids)
    found = captured(mx.array(ids.numpy()))
    if isinstance(wanted, dict):
        wanted, found = wanted["last_hidden_state"], found["last_hidden_state"]
    assert np.allclose(wanted.numpy(), np.array(found), atol=1e-5)
