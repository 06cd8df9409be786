"""A capture is saved as a file of MLX's own, and takes a state dict whole or not at all."""

from __future__ import annotations

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.nn import functional

from weighbridge.converters.captures import capture
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError


class Half(Function):
    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, ids, scale):
        hidden = self.layers(self.table(ids).flatten(0, 1)) * scale["by"]
        return {"hidden": hidden, "half": (Half.apply(hidden), None)}


@pytest.fixture(scope="module")
def reader():
    inputs = {"ids": torch.ones(2, 3, dtype=torch.int64), "scale": {"by": torch.ones(4)}}
    return capture(Reader().eval(), inputs=inputs, dynamic={"ids": {0: "batch", 1: "words"}})


class Kinks(nn.Module):
    """Operations whose gradients are ours: they are left away in a file."""

    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv1d(4, 3, 2)
        self.memory = nn.GRU(3, 2, batch_first=True)

    def forward(self, x):
        y = functional.max_pool1d(self.convolution(x.mT), 2).relu().mT.clamp(0, 1)
        y = torch.where(y > 0.2, y, -y).masked_fill(y < 0, 0).maximum(y * 0.5)
        return self.memory(y)[0]


def test_a_saved_capture_computes_operations_with_gradients_of_their_own(tmp_path):
    captured = capture(Kinks(), inputs={"x": torch.randn(2, 9, 4)})
    captured.save(tmp_path / "kinks.mlxfn")
    x = mx.random.normal((2, 9, 4))
    found = mx.import_function(str(tmp_path / "kinks.mlxfn"))(x=x)[0]
    assert mx.allclose(found, captured(x=x), atol=1e-6)


class Larger(nn.Module):
    """An image, larger by interpolation, and a loss of classes, of which there are few."""

    def forward(self, x, classes):
        larger = functional.interpolate(x, scale_factor=2, mode="bilinear")
        return functional.interpolate(
            larger, size=(5, 3), mode="bicubic"
        ), functional.cross_entropy(larger, classes)


def test_a_saved_capture_interpolates_and_takes_classes(tmp_path):
    inputs = {"x": torch.randn(2, 3, 4, 4), "classes": torch.ones(2, 8, 8, dtype=torch.int64)}
    captured = capture(Larger(), inputs=inputs)
    captured.save(tmp_path / "larger.mlxfn")
    found = mx.import_function(str(tmp_path / "larger.mlxfn"))(
        **{name: mx.array(value.numpy()) for name, value in inputs.items()}
    )
    for ours, theirs in zip(found, Larger()(**inputs), strict=True):
        np.testing.assert_allclose(np.array(ours), theirs.numpy(), rtol=1e-5, atol=1e-6)


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(3, 4, batch_first=True)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return nn.utils.rnn.pad_packed_sequence(self.layer(packed)[0], batch_first=True)[0]


def test_a_saved_capture_packs_sequences(tmp_path):
    module, x, lengths = Packed(), torch.randn(3, 5, 3), torch.tensor([2, 5, 4])
    path = tmp_path / "packed.mlxfn"
    capture(module, inputs={"x": x, "lengths": lengths}).save(path)
    found = mx.import_function(str(path))(x=mx.array(x.numpy()), lengths=mx.array(lengths.numpy()))
    np.testing.assert_allclose(found[0], module(x, lengths).detach(), rtol=1e-5, atol=1e-6)


def test_a_saved_capture_has_the_weights_of_one_that_was_given_transposed_arrays(tmp_path):
    captured, x = capture(nn.Linear(3, 3), inputs={"input": torch.randn(2, 3)}), mx.ones((2, 3))
    captured.update({"weight": mx.random.normal((3, 3)).T})
    captured.save(tmp_path / "turned.mlxfn")
    found = mx.import_function(str(tmp_path / "turned.mlxfn"))(input=x)[0]
    assert mx.allclose(found, captured(input=x), atol=1e-6)


ALONE = """
import sys
import mlx.core as mx
run = mx.import_function(sys.argv[1])
given = mx.load(sys.argv[2])
found = run(**{"ids": given["ids"], "scale.by": given["by"]})
mx.savez(sys.argv[3], *found)
assert not {name for name in sys.modules if name.partition(".")[0] in ("torch", "weighbridge")}
"""


@pytest.mark.parametrize("shape", [(2, 5), (1, 8)])
def test_a_saved_capture_runs_in_a_process_that_has_mlx_alone(reader, tmp_path, shape):
    path = tmp_path / "reader.mlxfn"
    reader.save(path, sizes=[{"batch": 2, "words": 5}, {"batch": 1, "words": 8}])
    ids, by = mx.random.randint(0, 11, shape).astype(mx.int64), mx.random.normal((4,))
    mx.savez(str(tmp_path / "given.npz"), ids=ids, by=by)
    names = [str(path), str(tmp_path / "given.npz"), str(tmp_path / "found.npz")]
    subprocess.run([sys.executable, "-c", ALONE, *names], check=True, cwd=tmp_path)
    found = np.load(names[2])
    wanted = reader(ids, {"by": by})
    for name, array in {"arr_0": wanted["hidden"], "arr_1": wanted["half"][0]}.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    assert [file.name for file in tmp_path.glob("*.mlxfn")] == ["reader.mlxfn"]


def test_what_cannot_be_saved_is_refused_and_leaves_nothing(reader, tmp_path):
    with pytest.raises(BadInputError, match=r"name it \*\.mlxfn"):
        reader.save(tmp_path / "reader.bin", sizes=[{"batch": 2, "words": 5}])
    with pytest.raises(BadInputError, match="'words' of input ids varies"):
        reader.save(tmp_path / "reader.mlxfn", sizes=[{"batch": 2}])
    noisy = capture(nn.Dropout(0.5), inputs=torch.ones(3))
    with pytest.raises(UnsupportedError, match="draws random numbers"):
        noisy.save(tmp_path / "noisy.mlxfn")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(BadInputError, match="there is no folder"):
        reader.save(tmp_path / "none" / "reader.mlxfn")


def test_a_state_dict_is_taken_whole(reader):
    other = Reader().eval()
    reader.load_torch_state_dict(other.state_dict())
    for name, tensor in reader.torch_state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_a_state_dict_that_does_not_fit_is_refused_with_all_that_differs(reader):
    before = reader.torch_state_dict()
    state = Reader().state_dict()
    state["tabel.weight"] = state.pop("table.weight")
    state["layers.0.bias"] = torch.ones(5)
    with pytest.raises(MismatchError) as caught:
        reader.load_torch_state_dict(state)
    assert caught.value.problems == (
        "table.weight is missing",
        "layers.0.bias: expected [4], found [5]",
        "tabel.weight is unexpected, did you mean table.weight?",
    )
    assert all(torch.equal(before[n], t) for n, t in reader.torch_state_dict().items())
