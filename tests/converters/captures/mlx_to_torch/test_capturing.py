"""MLX modules as modules of torch: names, sizes that vary, and what is refused."""

from __future__ import annotations

import copy
import itertools
import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from mlx import nn
from mlx.utils import tree_flatten

import weighbridge
from weighbridge.converters.captures.mlx_to_torch import capture_mlx, census_mlx
from weighbridge.errors import BadInputError, UnsupportedError


class Network(nn.Module):
    """A convolution with a stride, a mean over time, and a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 8, 3, stride=2, padding=1)
        self.layers = [nn.Linear(8, 8), nn.Linear(8, 4)]
        self.layers[0].freeze()

    def __call__(self, series: mx.array, scale: float = 1.0) -> dict[str, Any]:
        hidden = nn.relu(self.conv(series))
        batch, length, width = hidden.shape
        flat = self.layers[0](hidden.reshape(batch * length, width)).reshape(batch, length, width)
        return {"steps": flat, "mean": self.layers[1](flat.mean(1)) * scale, "count": 2}


@pytest.fixture(scope="module")
def network() -> Network:
    made = Network()
    mx.eval(made.parameters())
    return made


def series(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def captured(network: Network) -> Any:
    dynamic = {"series": {0: "batch", 1: "length"}}
    return weighbridge.capture(
        network, inputs={"series": series(2, 6, 3)}, dynamic=dynamic, to="torch"
    )


def test_parameters_keep_names_shapes_values_and_whether_they_are_trained(
    network: Network, captured: Any
) -> None:
    wanted = dict(tree_flatten(network.parameters()))
    state = captured.state_dict()
    assert set(state) == set(wanted)
    assert all(np.array_equal(state[name].numpy(), np.array(it)) for name, it in wanted.items())
    trained = {name for name, it in captured.named_parameters() if it.requires_grad}
    assert trained == {name for name, _ in tree_flatten(network.trainable_parameters())}


@pytest.mark.parametrize("shape", [(2, 6, 3), (1, 1, 3), (3, 11, 3), (4, 8, 3)])
def test_sizes_that_were_not_traced_give_what_mlx_gives(
    network: Network, captured: Any, shape: tuple[int, ...]
) -> None:
    x = series(*shape)
    wanted, found = network(mx.array(x)), captured(torch.tensor(x))
    assert found["count"] == 2
    for name in ("steps", "mean"):
        np.testing.assert_allclose(found[name].detach(), wanted[name], rtol=1e-5, atol=1e-6)


def test_weights_trained_in_torch_go_back_to_mlx(network: Network, captured: Any) -> None:
    changed = copy.deepcopy(captured)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.mul_(1.5)
    again = Network()
    again.load_weights(changed.mlx_weights())
    x = series(2, 6, 3)
    found, wanted = changed(series=torch.tensor(x))["mean"], again(mx.array(x))["mean"]
    np.testing.assert_allclose(found.detach(), wanted, rtol=1e-5, atol=1e-6)


def test_the_module_is_left_as_it_was(network: Network, captured: Any) -> None:
    before = dict(tree_flatten(network.parameters()))
    capture_mlx(network, inputs=[series(2, 6, 3)])
    now = dict(tree_flatten(network.parameters()))
    assert all(now[name] is it for name, it in before.items())
    assert mx.fast.rms_norm.__name__ == "rms_norm"
    assert not hasattr(mx.fast.rms_norm, "__wrapped__")


def test_inputs_of_another_shape_or_name_are_refused(captured: Any) -> None:
    with pytest.raises(BadInputError, match=r"series: expected the shape \[any, any, 3\]"):
        captured(torch.zeros(2, 6, 4))
    with pytest.raises(BadInputError, match="the module takes series; it was called with other"):
        captured(other=torch.zeros(2, 6, 3))


class Quantized(nn.Module):
    """An embedding that is its own head, a layer, and experts, all quantized."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 64)
        self.layer = nn.Linear(64, 64)

    def __call__(self, ids: mx.array) -> mx.array:
        return self.embed.as_linear(self.layer(self.embed(ids).astype(mx.float32)))


@pytest.mark.parametrize("mode", ["affine", "mxfp4"])
def test_quantized_weights_stay_codes_or_become_dense(mode: str) -> None:
    module = Quantized()
    nn.quantize(module, **({"bits": 4, "group_size": 32} | {"mode": mode}))
    ids = mx.array([[1, 2, 3], [4, 5, 6]])
    wanted = np.array(module(ids).astype(mx.float32))
    given = {"inputs": [ids], "dynamic": {"ids": {1: "length"}}}
    codes, dense = (capture_mlx(module, **given, quantized=it) for it in ("codes", "dense"))
    for captured in (codes, dense):
        found = captured(torch.tensor([[1, 2, 3], [4, 5, 6]])).detach().numpy()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())
    own = dict(tree_flatten(module.parameters()))
    assert codes.state_dict()["layer.weight"].dtype == torch.uint32
    assert set(codes.state_dict()) == set(own)
    assert set(dense.state_dict()) == {"embed.weight", "layer.weight", "layer.bias"}
    assert dense.state_dict()["layer.weight"].shape == (64, 64)
    assert "Matmul" in dense.census().operations
    made = {dense.graph.dtypes[value] for node in dense.graph.nodes for value in node.outputs}
    assert made == {"float32"}
    assert not {"QuantizedMatmul", "Dequantize"} & dense.census().operations.keys()


class Random(nn.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return (
            nn.Dropout(0.5)(x)
            + mx.linalg.svd(mx.eye(3), stream=mx.cpu)[1]
            + mx.hadamard_transform(x)
        )


def test_what_cannot_run_in_torch_is_named_all_at_once() -> None:
    with pytest.raises(UnsupportedError) as raised:
        capture_mlx(Random(), inputs=[np.ones((2, 4), np.float32)[:, :3]])
    text = str(raised.value)
    assert all(name in text for name in ("SVD", "Hadamard", "RandomBits (random numbers"))
    found = census_mlx(Random(), inputs=[np.ones((2, 3), np.float32)])
    assert found.operations["SVD"] == 1


class Drawn(nn.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return x + mx.random.normal(x.shape)


def test_random_numbers_are_refused_and_stay_drawable() -> None:
    with pytest.raises(UnsupportedError, match="RandomBits \\(random numbers would be drawn once"):
        capture_mlx(Drawn(), inputs=[np.ones((2, 3), np.float32)], dynamic={"x": {0: "n"}})
    assert np.isfinite(np.array(mx.random.normal((2,)))).all()


class Failing(nn.Module):
    def __call__(self, x: mx.array) -> mx.array:
        raise KeyError("weights")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Failing(), r"cannot trace the module: .*KeyError: 'weights'"),
        (nn.Sequential(mx.to_fp8), "no form for the primitive ToFP8"),
    ],
)
def test_what_cannot_be_traced_is_told_in_a_line(module: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        capture_mlx(module, inputs=[np.ones((2, 3), np.float32)])


def test_a_batch_norm_in_training_is_refused() -> None:
    norm = nn.BatchNorm(3)
    with pytest.raises(UnsupportedError, match=r"writes to .*running_mean.*call eval\(\) first"):
        capture_mlx(norm, inputs=[np.ones((2, 3), np.float32)])
    norm.eval()
    capture_mlx(norm, inputs=[np.ones((2, 3), np.float32)])


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = self.other = nn.Linear(3, 3)

    def __call__(self, x: mx.array) -> mx.array:
        return self.one(self.other(x))


def test_a_module_under_two_names_is_refused_by_both() -> None:
    with pytest.raises(UnsupportedError, match=r"(one and other|other and one) of Shared are one"):
        capture_mlx(Shared(), inputs=[np.ones((2, 3), np.float32)])


def test_one_activation_in_two_places_is_captured() -> None:
    relu = nn.ReLU()
    capture_mlx(nn.Sequential(nn.Linear(3, 3), relu, relu), inputs=[np.ones((2, 3), np.float32)])


class Branches(nn.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return x * 2 if x.shape[0] > 3 else mx.exp(x)


class Halves(nn.Module):
    def __call__(self, x: mx.array) -> mx.array:
        return x[: x.shape[0] // 2]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Branches(), "computes different things at n=2 and at n=5"),
        (Halves(), "Slice is called with"),
    ],
)
def test_what_depends_on_sizes_in_another_way_is_refused(module: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        capture_mlx(module, inputs=[np.ones((2, 3), np.float32)], dynamic={"x": {0: "n"}})


class Decides(nn.Module):
    """What it computes, a function of an array and a weight, decides by a size."""

    def __init__(self, computes: Any) -> None:
        super().__init__()
        self.weight, self.computes = mx.array([1.5]), computes

    def __call__(self, x: mx.array) -> mx.array:
        return self.computes(x, self.weight)


@pytest.mark.parametrize(
    ("computes", "held"),
    [
        (lambda x, w: (x * w)[:, : min(x.shape[1], 12)].sum(1), (1, 12)),
        (lambda x, w: (x * w)[:, : min(x.shape[1], 12)].mean(1), (1, 12)),
        (lambda x, w: (x * w).sum(1) / max(x.shape[1], 12), (1, 12)),
        (lambda x, w: x * w if x.shape[1] < 100 else x * 2, (1, 99)),
        (lambda x, w: x * w if x.shape[1] > 3 else x * 2, (4, None)),
        (lambda x, w: x * w if x.shape[1] < 100 else w * (x + 0), (1, None)),
        (lambda x, w: x * w if x.shape[1] < 20 else w * x if x.shape[1] < 200 else x, (1, 199)),
    ],
)
def test_a_size_beyond_which_a_module_computes_other_values_is_refused(
    computes: Any, held: tuple[int, int | None]
) -> None:
    module, (least, largest) = Decides(computes), held
    ones = np.ones((2, 5), np.float32)  # alike, so that a mean of fewer is the same on them
    captured = capture_mlx(module, inputs=[ones], dynamic={"x": {0: "batch", 1: "length"}})
    for size in (1, 2, 3, 4, 8, 12, 13, 20, 99, 100, 199, 200, 1000):
        x = series(2, size)
        if least <= size <= (largest or size):
            found, wanted = captured(torch.tensor(x)).detach(), module(mx.array(x))
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
            continue
        way = f"up to {largest}" if size > least else f"down to {least}"
        with pytest.raises(BadInputError, match=f"x: axis 1 has the size {size}, .* {way} "):
            captured(torch.tensor(x))


@pytest.mark.parametrize(
    ("decides", "limit"),
    [
        (lambda b, s: b * s > 1000, "batch * length"),
        (lambda b, s: b + s > 300, "batch + length"),
        (lambda b, s: b * s > 5_000_000, "batch * length"),
        (lambda b, s: s <= b, "batch - length"),
        (lambda b, s: s > 100 * b, "batch / length"),
    ],
)
def test_a_branch_by_two_sizes_together_limits_both_and_nothing_else(
    decides: Any, limit: str
) -> None:
    module = Decides(lambda x, w: x * w + 1 if decides(*x.shape[:2]) else x * w)
    captured = capture_mlx(
        module, inputs=[series(2, 13, 1)], dynamic={"x": {0: "batch", 1: "length"}}
    )
    assert [*captured.ports.limits] == [limit]
    for sizes in itertools.product((1, 2, 3, 7, 20, 150, 300), (1, 2, 5, 50, 110, 290, 333, 1000)):
        x = series(*sizes, 1)
        if decides(*sizes):
            with pytest.raises(BadInputError, match=f"decides by {re.escape(limit)}"):
                captured(torch.tensor(x))
        else:
            wanted = module(mx.array(x))
            np.testing.assert_allclose(captured(torch.tensor(x)).detach(), wanted, rtol=1e-5)


def test_a_branch_that_no_two_sizes_tell_is_refused() -> None:
    module = Decides(lambda x, w: x * w if x.shape[0] != x.shape[1] else x * w + 1)
    with pytest.raises(UnsupportedError, match=r"different things at batch=.*leave the size fixed"):
        capture_mlx(module, inputs=[series(2, 13)], dynamic={"x": {0: "batch", 1: "length"}})


def test_rounding_to_16_bits_hides_no_branch() -> None:
    module = Decides(lambda x, w: x * w if x.shape[1] < 30 else x * w * 1.001)
    module.set_dtype(mx.bfloat16)
    captured = capture_mlx(
        module, inputs=[mx.ones((1, 5), mx.bfloat16)], dynamic={"x": {1: "length"}}
    )
    assert captured.ports.limits["length"].largest == 29


def test_numbers_rounded_to_16_bits_are_no_branch() -> None:
    module = Decides(lambda x, w: nn.gelu_approx(x * w if x.shape[1] > 1 else w * x))
    module.set_dtype(mx.bfloat16)
    captured = capture_mlx(
        module, inputs=[mx.ones((1, 5), mx.bfloat16)], dynamic={"x": {1: "length"}}
    )
    assert captured.ports.limits == {}


def test_a_branch_is_compared_with_mlx_only_on_an_example_of_several_values() -> None:
    module = Decides(lambda x, w: x * 2 if x.shape[1] < 30 else x * 2 + 0)
    dynamic = {"x": {1: "length"}}
    captured = capture_mlx(module, inputs=[np.zeros((1, 5), np.int32)], dynamic=dynamic)
    assert captured.ports.limits["length"].largest == 29
    captured = capture_mlx(module, inputs=[np.arange(5)[None]], dynamic=dynamic)
    assert captured.ports.limits == {}


def test_arguments_that_do_not_fit_are_refused(network: Network) -> None:
    x = series(2, 6, 3)
    for inputs, dynamic, message in (
        ([x, 1.0, 2], None, "cannot be called so"),
        ({"other": x}, None, "cannot be called so"),
        ([[x]], None, "a list of arrays"),
        ([x], {"other": {0: "n"}}, "no input other"),
        ([x], {"series": {5: "n"}}, "no axis 5"),
        ([x], {"series": {0: "n", 1: "n"}}, "n is one size"),
    ):
        with pytest.raises(BadInputError, match=message):
            capture_mlx(network, inputs=inputs, dynamic=dynamic)
    with pytest.raises(UnsupportedError, match="is in mlx already: say to='torch'"):
        weighbridge.capture(network, inputs=[x])
    with pytest.raises(UnsupportedError, match="the targets are 'mlx' and 'torch'"):
        weighbridge.capture(network, inputs=[x], to="jax")


class Asking(nn.Module):
    """A layer that notes where MLX computes when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seen: list[mx.Device] = []

    def __call__(self, x: mx.array) -> mx.array:
        self.seen.append(mx.default_device())
        return self.layer(x)


def test_what_is_compared_with_torch_is_computed_on_the_cpu_whatever_the_device_is(monkeypatch):
    now = [mx.Device(mx.gpu)]  # a build without one has the name all the same
    monkeypatch.setattr(mx, "default_device", lambda: now[0])
    monkeypatch.setattr(mx, "set_default_device", lambda it: now.__setitem__(0, it))
    module = Asking()
    capture_mlx(module, inputs=[mx.ones((2, 4))])
    assert module.seen
    assert all(it == mx.Device(mx.cpu) for it in module.seen)
    assert now == [mx.Device(mx.gpu)]
