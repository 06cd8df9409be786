"""Operations on what convolutions leave are done with channels last, and change no value."""

import mlx.core as mx
import pytest
import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx


class Residual(nn.Module):
    """A stem, a block with norms, a pooled way with a gate, and a scale of each channel."""

    def __init__(self, norm):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([norm(), norm()])
        self.scale = nn.Parameter(torch.randn(1, 8, 1, 1))

    def forward(self, x):
        first = torch.relu(self.norms[0](self.stem(x)))
        y = first + self.norms[1](self.conv(first)) * self.scale
        small = nn.functional.max_pool2d(y, 2)
        back = nn.functional.interpolate(torch.sigmoid(small), scale_factor=2)
        outer = torch.where(y > 0, y * back, first - 2)
        return {"outer": outer, "mean": outer.mean((2, 3)), "rows": outer[:, :, 0]}


NORMS = {
    "group": lambda: nn.GroupNorm(4, 8),
    "batch": lambda: nn.BatchNorm2d(8),
    "none": nn.Identity,
}


@pytest.mark.parametrize("norm", NORMS)
def test_a_residual_network_keeps_its_results(proven, norm):
    proven(Residual(NORMS[norm]), {"x": torch.randn(2, 3, 8, 6)}, ["channels_last"])


def test_results_are_the_same_to_the_bit():
    module, x = Residual(NORMS["group"]), torch.randn(2, 3, 8, 6)
    moved, plain = (
        capture(module, inputs={"x": x}, passes=passes)(x=to_mlx(x))
        for passes in (["channels_last"], [])
    )
    assert all(mx.array_equal(moved[name], plain[name]) for name in plain)


def test_chains_are_moved_once(steps):
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x):
            y = self.conv(x)
            return torch.tanh(torch.relu(y) + y) * 2

    names = steps(capture(Chain(), inputs={"x": torch.randn(2, 3, 4, 4)}))
    assert names.count("permute.default") == 2  # in, once for both uses, and out


def test_other_operations_and_other_axes_stay(steps):
    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x, other):
            y = self.conv(x)
            return y + other, y[0] + 1, y.flatten(2) * 2

    inputs = {"x": torch.randn(2, 3, 4, 4), "other": torch.randn(2, 4, 4, 4)}
    names = steps(capture(Other(), inputs=inputs))
    assert names.count("permute.default") == 2  # around the convolution


def test_pools_norms_and_convolutions_hand_their_axes_on(steps):
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8)]
    turned = [nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 4, 2), nn.Conv2d(4, 4, 1)]
    captured = capture(nn.Sequential(*layers, *turned), inputs={"input": torch.randn(2, 3, 8, 8)})
    assert steps(captured).count("permute.default") == 2  # in and out


def test_a_convolution_without_a_batch_stays(steps):
    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(3, 4, 1)

        def forward(self, x):
            return torch.relu(self.conv(x))

    assert "permute.default" not in steps(capture(Unbatched(), inputs={"x": torch.randn(3, 5)}))


def test_varying_sizes_and_other_ranks(proven):
    class Signals(nn.Module):
        def __init__(self):
            super().__init__()
            self.line, self.volume = nn.Conv1d(2, 3, 2), nn.Conv3d(2, 3, 2)

        def forward(self, line, volume):
            y, z = torch.relu(self.line(line)), torch.relu(self.volume(volume))
            return {"line": y + torch.tanh(y), "volume": z * torch.tanh(z)}

    inputs = {"line": torch.randn(2, 2, 7), "volume": torch.randn(2, 2, 3, 4, 5)}
    proven(Signals(), inputs, dynamic={"line": {0: "batch", 2: "time"}, "volume": {0: "batch"}})


def test_what_follows_a_module_takes_its_correction():
    module, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Tanh()), torch.randn(2, 3, 5, 5)
    captured = capture(module, inputs={"input": x})
    correction = torch.rand(2, 4, 5, 5)
    found, _ = captured.trace({"input": to_mlx(x)}, {"1": to_mlx(correction)})
    assert mx.allclose(found, to_mlx(correction.tanh()))
