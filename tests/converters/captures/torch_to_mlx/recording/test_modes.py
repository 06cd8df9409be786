"""Train and eval mode of one captured module: as in torch, on one set of parameters."""

from __future__ import annotations

import gc
import threading
import weakref

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn as mlx_nn
from mlx import optimizers
from mlx.utils import tree_flatten
from torch import nn

from weighbridge.converters.captures import AdapterSpec, capture
from weighbridge.converters.captures.torch_to_mlx import exporting
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.errors import BadInputError, UnsupportedError

ROWS = {"input": {0: "rows"}}


def network():
    module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        module[1].running_mean.normal_()
        module[1].weight.uniform_(0.5, 1.5)
    return module


@pytest.fixture
def recordings(monkeypatch):
    """Return the modes that were recorded so far."""
    seen = []

    def export(module, *args, **kwargs):
        seen.append(vars(module)["training"])  # reading it would count
        return original(module, *args, **kwargs)

    original = exporting.torch.export.export
    monkeypatch.setattr(exporting.torch.export, "export", export)
    return seen


@pytest.mark.parametrize("recorded", [True, False], ids=["from train", "from eval"])
def test_dropout_drops_in_train_mode_alone(recorded):
    module = nn.Sequential(nn.Dropout(0.5)).train(recorded)
    captured = capture(module, inputs={"input": torch.ones(64, 64)})
    ones = mx.ones((64, 64))
    assert captured.training is recorded
    for mode in (True, False, True):
        captured.train(mode)
        assert set(np.unique(captured(input=ones)).tolist()) == ({0.0, 2.0} if mode else {1.0})


def test_train_and_eval_have_one_set_of_parameters_and_buffers_as_in_torch(assert_same):
    module = network().train()
    captured = capture(module, inputs={"input": torch.randn(4, 3)}, dynamic=ROWS)
    optimizer, ours = torch.optim.SGD(module.parameters(), 0.05), optimizers.SGD(0.05)
    for rows in (4, 7, 5):
        x, y = torch.randn(rows, 3), torch.randn(rows, 2)
        module.train()
        optimizer.zero_grad()
        nn.functional.mse_loss(module(x), y).backward()
        optimizer.step()
        captured.train()
        step = mlx_nn.value_and_grad(captured, lambda a, b: ((captured(input=a) - b) ** 2).mean())
        ours.update(captured, step(to_mlx(x), to_mlx(y))[1])
        assert_same(captured.eval()(input=to_mlx(x)), module.eval()(x), 5e-6)
    found = dict(tree_flatten(captured.parameters()))
    for name, expected in module.state_dict().items():
        np.testing.assert_allclose(to_torch(found[name]), expected, rtol=1e-5, atol=2e-6)
    assert found["1.num_batches_tracked"].item() == 3
    network().load_state_dict(captured.torch_state_dict(), strict=True)


def test_adapters_work_in_both_modes(assert_same):
    module = network().train()
    captured = capture(module, inputs={"input": torch.randn(4, 3)}, dynamic=ROWS)
    captured.insert_adapters({"0.weight": AdapterSpec(2)})
    captured.update({"0": {"lora_b": mx.random.normal((2, 8))}})
    with torch.no_grad():
        delta = captured.adapter_updates()["0.weight"].delta()
        module[0].weight += torch.from_numpy(delta).float()
    x = torch.randn(6, 3)
    for mode in (False, True):
        assert_same(captured.train(mode)(input=to_mlx(x)), module.train(mode)(x), 5e-6)


def test_the_other_mode_is_recorded_once_and_when_it_is_asked_for(recordings):
    captured = capture(network().eval(), inputs={"input": torch.randn(4, 3)})
    captured.eval()
    assert recordings == [False]
    captured.train().eval().train()
    assert recordings == [False, True]


def test_a_module_that_never_asks_for_its_mode_is_recorded_once(recordings):
    module = nn.Sequential(nn.Linear(3, 8), nn.LayerNorm(8), nn.GELU())
    captured = capture(module, inputs={"input": torch.randn(4, 3)}, modes="both")
    captured.eval().train()
    assert recordings == [True]


def test_both_modes_are_recorded_at_once_where_wanted(recordings):
    capture(network(), inputs={"input": torch.randn(4, 3)}, modes="both")
    assert recordings == [True, False]


def test_a_capture_of_one_mode_refuses_the_other_with_what_to_do():
    captured = capture(network().eval(), inputs={"input": torch.randn(4, 3)}, modes="one")
    captured.eval()
    with pytest.raises(UnsupportedError, match=r"eval mode alone, .*call \.train\(\) on the torch"):
        captured.train()
    assert captured.training is False


def test_a_module_that_cannot_be_copied_refuses_the_other_mode():
    module = network().eval()
    module.lock = threading.Lock()
    captured = capture(module, inputs={"input": torch.randn(4, 3)})
    with pytest.raises(UnsupportedError, match="cannot be copied"):
        captured.train()


def test_an_unknown_choice_of_modes_is_refused():
    with pytest.raises(BadInputError, match="'lazy', 'both', 'one'"):
        capture(network(), inputs={"input": torch.randn(4, 3)}, modes="all")


def test_neither_the_module_nor_its_weights_are_kept_for_the_other_mode():
    module = network()
    captured = capture(module, inputs={"input": torch.randn(4, 3)})
    gone = [weakref.ref(module), *map(weakref.ref, module.parameters())]
    del module
    gc.collect()
    assert not any(reference() for reference in gone)
    assert captured.eval()(input=mx.ones((4, 3))).shape == (4, 2)


def test_a_module_that_holds_a_capture_sets_its_mode():
    class Holder(mlx_nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

    captured = capture(nn.Sequential(nn.Dropout(0.5)), inputs={"input": torch.ones(8, 8)})
    Holder(captured).eval()
    assert np.unique(captured(input=mx.ones((8, 8)))).tolist() == [1.0]
