"""Where a step computes: what is asked for, or one line that says why not."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from weighbridge.errors import BadInputError, UnsupportedError
from weighbridge.trainers.runs.loop import computing, make_step
from weighbridge.trainers.steps.devices import device_for, random_state, set_random_state

HAS_GPU = torch.cuda.is_available() or torch.backends.mps.is_available()
MLX_GPU = mx.default_device() != mx.Device(mx.cpu)


def losses(step, batches):
    return [step.advance([batch], 0.01)().loss for batch in batches]


@pytest.fixture
def series(series_task):
    task = series_task()
    return task, [task.splits["train"].batch(range(n, n + 8)) for n in (0, 8, 16)]


def test_auto_is_a_gpu_where_there_is_one(series, series_config):
    assert make_step("torch", series[0], series_config()).device == device_for("auto").type
    assert (device_for("auto").type == "cpu") != HAS_GPU


@pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_by_pytorch(series, series_config):
    with pytest.raises(BadInputError, match="device gpu: PyTorch sees none here"):
        make_step("torch", series[0], series_config(device="gpu"))


@pytest.mark.skipif(MLX_GPU, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused_by_mlx(series_config):
    with (
        pytest.raises(BadInputError, match="device gpu: MLX sees none here"),
        computing("mlx", series_config(device="gpu")),
    ):
        pass


def test_mlx_computes_on_the_cpu_in_the_block_alone(series_config):
    before = mx.default_device()
    with computing("mlx", series_config(device="cpu")):
        assert mx.default_device() == mx.Device(mx.cpu)
    assert mx.default_device() == before


def test_random_numbers_go_on_where_they_were():
    device = device_for("auto")
    state = random_state(device)
    drawn = [torch.rand(4, device=device), torch.rand(4)]
    set_random_state(state, device)
    assert all(map(torch.equal, drawn, [torch.rand(4, device=device), torch.rand(4)]))


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU")
def test_a_gpu_trains_as_the_cpu_does(series, series_config):
    task, batches = series
    sides = [make_step("torch", task, series_config(device=it)) for it in ("cpu", "gpu")]
    found = [losses(step, batches) for step in sides]
    assert np.allclose(*found, atol=1e-5)
    states = [step.state() for step in sides]
    sides[1].restore(states[1])
    assert losses(sides[1], batches) != found[1]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # its own
def test_a_compiled_step_of_pytorch_trains_as_a_plain_one(series, series_config):
    task, batches = series
    sides = [
        make_step("torch", task, series_config(device="cpu", compile=it)) for it in (True, None)
    ]
    assert np.allclose(*(losses(step, batches) for step in sides), rtol=1e-6)


def test_a_compiled_step_does_not_compute_values_again(series, series_config):
    with pytest.raises(UnsupportedError, match="leave out compile or checkpoint"):
        make_step("torch", series[0], series_config(compile=True, checkpoint=["hidden"]))
