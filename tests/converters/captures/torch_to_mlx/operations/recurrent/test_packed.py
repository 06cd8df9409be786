"""Packed sequences stay padded in a capture, and give what torch gives."""

import mlx.core as mx
import pytest
import torch
from mlx import nn as mlx_nn
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx
from weighbridge.errors import MismatchError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections")
OPTIONS = {
    "LSTM": (nn.LSTM, {"bidirectional": True, "num_layers": 2}),
    "projected LSTM": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
    "GRU": (nn.GRU, {"bidirectional": True, "bias": False}),
    "RNN": (nn.RNN, {"nonlinearity": "relu", "num_layers": 2}),
}


class Classifier(nn.Module):
    """Token ids, packed, through a recurrent layer; classes from the last hidden state and the mean."""

    def __init__(self, layer, total=False, enforce_sorted=False, batch_first=True, **options):
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.layer = layer(4, 5, batch_first=batch_first, **options)
        size = self.layer.proj_size or 5
        self.head = nn.Linear(2 * size * (1 + self.layer.bidirectional), 3)
        self.total, self.enforce_sorted = total, enforce_sorted

    def forward(self, ids, lengths):
        first = self.layer.batch_first
        packed = pack_padded_sequence(ids, lengths, first, enforce_sorted=self.enforce_sorted)
        embedded = PackedSequence(self.embedding(packed.data), *packed[1:])
        output, state = self.layer(embedded)
        hidden = state[0] if isinstance(state, tuple) else state
        total = ids.shape[int(first)] if self.total else None
        padded, back = pad_packed_sequence(output, first, padding_value=0.5, total_length=total)
        last = hidden.reshape(self.layer.num_layers, -1, *hidden.shape[1:])[-1]
        features = torch.cat([padded.mean(int(first)), torch.cat(list(last), dim=-1)], dim=-1)
        return self.head(features), padded, back


def arrays(ids, lengths):
    return {"ids": to_mlx(ids), "lengths": to_mlx(torch.tensor(lengths))}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_packed_classifiers_agree_at_other_lengths(assert_same, gradients_of, name, batch_first):
    layer, options = OPTIONS[name]
    module = Classifier(layer, batch_first=batch_first, **options)
    axes = {0: "batch", 1: "time"} if batch_first else {0: "time", 1: "batch"}
    ids = torch.randint(11, (3, 6) if batch_first else (6, 3))
    captured = capture(
        module,
        inputs={"ids": ids, "lengths": torch.tensor([4, 6, 1])},
        dynamic={"ids": axes, "lengths": {0: "batch"}},
    )
    for lengths in ([4, 6, 1], [9, 2, 9, 5], [1, 1]):
        shape = (len(lengths), max(lengths))
        ids = torch.randint(11, shape if batch_first else shape[::-1])
        module.zero_grad()
        expected = module(ids, torch.tensor(lengths))
        (expected[0].square().sum() + expected[1].sin().sum()).backward()
        found = captured(**arrays(ids, lengths))
        for ours, theirs in zip(found, expected, strict=True):
            assert_same(ours, theirs, 2e-6)
        _, gradients = gradients_of(
            captured,
            lambda y: y[0].square().sum() + mx.sin(y[1]).sum(),
            **arrays(ids, lengths),
        )
        for key, parameter in module.named_parameters():
            assert_same(gradients[key], parameter.grad, 1e-5)


def test_sorted_lengths_and_a_total_length_of_its_own(assert_same):
    module = Classifier(nn.LSTM, total=True, enforce_sorted=True)
    ids = torch.randint(11, (2, 6))
    captured = capture(module, inputs={"ids": ids, "lengths": torch.tensor([4, 2])})
    found = captured(**arrays(ids, [5, 3]))
    for ours, theirs in zip(found, module(ids, torch.tensor([5, 3])), strict=True):
        assert_same(ours, theirs, 2e-6)


class FixedLengths(nn.Module):
    def __init__(self, lengths):
        super().__init__()
        self.layer, self.lengths = nn.GRU(4, 5, batch_first=True), lengths

    def forward(self, x):
        packed = pack_padded_sequence(x, self.lengths, True, enforce_sorted=False)
        return pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def test_lengths_that_the_module_fixes(assert_same):
    module, x = FixedLengths([2, 6]), torch.randn(2, 6, 4)
    captured = capture(module, inputs={"x": x})
    assert_same(captured(x=to_mlx(x)), module(x), 2e-6)


def test_an_initial_state_is_taken_for_the_right_sequences(assert_same):
    class WithState(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.GRU(4, 5)

        def forward(self, x, lengths, start):
            packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
            return self.layer(packed, start)[1]

    module, x, start = WithState(), torch.randn(6, 2, 4), torch.randn(1, 2, 5)
    inputs = {"x": x, "lengths": torch.tensor([2, 6]), "start": start}
    captured = capture(module, inputs=inputs)
    found = captured(**{name: to_mlx(value) for name, value in inputs.items()})
    assert_same(found, module(**inputs), 2e-6)


@pytest.mark.compiled
def test_sequences_that_do_not_fill_the_input_are_refused_where_torch_would_cut_it():
    module, ids = Classifier(nn.LSTM), torch.randint(11, (2, 6))
    captured = capture(module, inputs={"ids": ids, "lengths": torch.tensor([6, 2])})
    with pytest.raises(MismatchError, match="total_length"):
        captured(**arrays(ids, [5, 2]))
    compiled = mx.compile(lambda **inputs: captured(**inputs)[0], inputs=captured.state)
    assert mx.isnan(compiled(**arrays(ids, [5, 2]))).all()
    assert mx.allclose(compiled(**arrays(ids, [6, 2])), captured(**arrays(ids, [6, 2]))[0])


def test_what_takes_packed_data_as_a_whole_is_refused_by_name():
    class Mean(nn.Module):
        def forward(self, x, lengths):
            return pack_padded_sequence(x, lengths).data.mean()

    inputs = {"x": torch.randn(6, 2, 4), "lengths": torch.tensor([6, 2])}
    with pytest.raises(UnsupportedError, match=r"aten.mean.default takes the data of a packed"):
        capture(Mean(), inputs=inputs)


@pytest.mark.compiled
def test_packed_training_compiles():
    module, ids = Classifier(nn.LSTM), torch.randint(11, (2, 6))
    captured = capture(module, inputs={"ids": ids, "lengths": torch.tensor([6, 2])})
    given = arrays(ids, [6, 3])
    step = mlx_nn.value_and_grad(captured, lambda **inputs: captured(**inputs)[0].sum())
    compiled = mx.compile(step, inputs=captured.state, outputs=captured.state)
    assert mx.allclose(compiled(**given)[0], step(**given)[0], rtol=1e-6)
