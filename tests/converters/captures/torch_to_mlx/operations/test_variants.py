"""Overloads that Python seldom reaches: torch's own rewriting, or a direct call, makes them."""

from __future__ import annotations

import pytest
import torch

aten = torch.ops.aten
INTEGERS = torch.tensor([[-7, -3, 0], [2, 5, 9]])
BOOLEANS = torch.tensor([[True, False, True], [False, False, True]])
UNARY = [
    "absolute", "arcsinh", "arctan", "fix", "negative", "sgn", "hardshrink", "softshrink", "isneginf",
    "isposinf", "fliplr", "flipud", "t_copy", "alias_copy", "alias", "lift", "lift_fresh",
    "lift_fresh_copy", "msort", "trace", "var", "std", "var_mean", "std_mean", "zeros_like",
]  # fmt: skip
BINARY = ["arctan2", "inner", "ger", "kron", "vdot", "type_as"]
TENSORS = [
    "clamp_max",
    "clamp_min",
    "divide",
    "true_divide",
    "multiply",
    "subtract",
    "rsub",
    "ne",
    "ge",
    "le",
]
SCALARS = ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "ne"]
CASES = {
    "scalar logic": lambda i: (i & 3, aten.__or__.Scalar(i, 3), aten.__xor__.Scalar(i, 5)),
    "bitwise scalars": lambda i: [getattr(aten, f"bitwise_{n}").Scalar(i, 6) for n in ("and", "or", "xor")],
    "tensor logic": lambda i: (aten.__or__.Tensor(i, i - 3), aten.__xor__.Tensor(i, i - 3)),
    "shifts": lambda i: (aten.bitwise_left_shift.Tensor(i, i * 0 + 2), aten.bitwise_right_shift.Tensor(i, i * 0 + 1)),
    "any and all": lambda i: (aten.all.dim(i, 0), aten.all.dims(i, [0, 1]), aten.any.dims(i, [1])),
    "remainder of a scalar": lambda i: aten.remainder.Scalar_Tensor(7, i * 2 + 1),
    "truncated division": lambda i: aten.div.Scalar_mode(i, 2, rounding_mode="trunc"),
    "max of two": lambda i: aten.max.other(i, -i),
    "take": lambda i: aten.take(i, torch.tensor([0, 5, 2])),
    "diag": lambda i: (aten.diag(i, 1), aten.diag(i[0])),
    "meshgrid": lambda i: aten.meshgrid([i[0], i[1]]),
    "argsort": lambda i: aten.argsort.stable(i, stable=True, dim=-1, descending=True),
    "filled places": lambda i: aten.index_fill.int_Tensor(i, 1, torch.tensor([0, 2]), torch.tensor(4)),
}  # fmt: skip
FLOATS = {
    "clip": lambda x: (aten.clip(x, -0.5, 0.5), aten.clip.Tensor(x, x.abs() * 0 - 0.5)),
    "softmax": lambda x: (aten._softmax(x, -1, False), aten._log_softmax(x, 0, False)),
    "safe softmax": lambda x: aten._safe_softmax(x.masked_fill(x > -9, -torch.inf), -1),
    "unsafe": lambda x: (
        aten._unsafe_view(x, [2, 12]),
        aten._unsafe_index.Tensor(x, [None, torch.tensor([2, 0])]),
        aten._unsafe_index_put(x, [torch.tensor([1])], x[:1] * 2),
        aten.unsafe_chunk(x, 2, -1),
        aten.unsafe_split.Tensor(x, 3, -1),
        aten.unsafe_split_with_sizes(x, [1, 3], -1),
    ),
    "copies": lambda x: (
        aten.view_copy(x, [-1]),
        aten.permute_copy(x, [2, 0, 1]),
        aten.expand_copy(x[:, :1], [2, 5, 4]),
        aten.unsqueeze_copy(x, 1),
        aten.select_copy.int(x, 1, -1),
        aten.slice_copy.Tensor(x, 2, 1, 3),
        aten.split_copy.Tensor(x, 2, -1),
        aten.split_with_sizes_copy(x, [1, 2], 1),
        aten.unbind_copy.int(x, 1),
        aten.diagonal_copy(x, 0, 1, 2),
    ),
    "joining": lambda x: (aten.concat([x, x]), aten.concatenate([x, x], 1)),
    "squeezing": lambda x: aten.squeeze.dims(x[:1, :, :1], [0, 2]),
    "tile": lambda x: aten.tile(x, [2, 1, 3]),
    "numbers": lambda x: aten.scalar_tensor(2.5) * x,
    "empty": lambda x: [aten.fill.Scalar(e, 1.0) for e in (x.new_empty(2), torch.empty_like(x))],
    "matrix sums": lambda x: (
        aten.addbmm(x[0, :, :3], x[..., :3], x[:, :, 1:]),
        aten.addmv(x[0, :, 0], x[0], x[1, 0], beta=0.5, alpha=2),
        aten.addr(x[0], x[0, :, 0], x[1, 0]),
        aten.mv(x[0], x[1, 0]),
        aten.linalg_matmul(x, x.mT),
    ),
    "lerp": lambda x: aten.lerp.Tensor(x, 2 * x, x.sigmoid()),
    "masked": lambda x: aten.masked_fill.Tensor(x, x > 0, torch.tensor(2.0)),
    "norms": lambda x: (aten.norm.Scalar(x, 2), aten.norm.ScalarOpt_dim(x, 1, [-1])),
    "spreads": lambda x: (
        aten.std.correction(x, [0], correction=0),
        aten.var_mean.correction(x, [1], correction=1),
        aten.std_mean.dim(x, [2], True),
    ),
    "native layer norm": lambda x: aten.native_layer_norm(x, [4], x[0, 0], None, 1e-5)[0],
    "native group norm": lambda x: aten.native_group_norm(x, None, None, 2, 3, 4, 1, 1e-5),
    "native batch norm": lambda x: aten._native_batch_norm_legit_no_training(
        x, None, None, x[0, :, 0].detach() * 0, x[0, :, 0].detach() * 0 + 2, 0.1, 1e-5
    ),
    "distance": lambda x: torch.nn.functional.pairwise_distance(x[0], x[1]),
    "inactive dropout": lambda x: (
        aten.dropout(x, 0.5, False),
        aten.feature_dropout(x, 0.5, False),
    ),
    "padding": lambda x: (
        aten.constant_pad_nd(x, [1, 1], 2.0),
        aten.reflection_pad1d(x, [1, 2]),
        aten.replication_pad1d(x, [1, 2]),
        aten.reflection_pad2d(x, [1, 2, 1, 0]),
        aten.replication_pad2d(x, [1, 2, 1, 0]),
    ),
    "batch norm": lambda x: aten.batch_norm(
        x, x[0, :, 0], None, torch.zeros(3), torch.ones(3), False, 0.1, 1e-5, False
    ),
    "complex": lambda x: aten.view_as_real(
        aten.complex(x, x) * aten.view_as_complex(x.reshape(2, 3, 2, 2)).repeat(1, 1, 2)
    ),
}
VOLUMES = {
    "pools": lambda x: (
        aten.max_pool3d(x, [2, 2, 1]),
        aten.avg_pool3d(x, [2, 1, 2]),
        aten.adaptive_avg_pool3d(x, [2, 1, 3]),
        aten.adaptive_avg_pool2d(x[0], [3, 2]),
        aten._adaptive_avg_pool2d(x[0], [1, 2]),
        aten._adaptive_avg_pool3d(x, [1, 2, 1]),
    ),
    "convolutions": lambda x: (
        aten.conv3d.padding(x, torch.ones(2, 3, 2, 2, 2), padding="same"),
        aten.conv2d.padding(x[0], torch.ones(2, 4, 2, 3), padding="valid"),
        aten.conv_transpose3d.input(x, torch.ones(3, 2, 2, 1, 2), stride=[2, 1, 1]),
        aten.convolution(
            x, torch.ones(2, 3, 2, 2, 2), None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1
        ),
    ),
    "interpolations": lambda x: (
        aten.upsample_nearest2d.vec(x[0], [7, 5], None),
        aten.upsample_nearest3d.vec(x, None, [2.0, 2.0, 1.0]),
        aten.upsample_bilinear2d.vec(x[0], [7, 5], False, None),
        aten.upsample_trilinear3d.vec(x, [5, 6, 3], True, None),
        aten._upsample_nearest_exact1d.vec(x[0, 0], [7], None),
        aten._upsample_nearest_exact2d.vec(x[0], [7, 5], None),
        aten._upsample_nearest_exact3d.vec(x, [5, 6, 3], None),
        aten.reflection_pad3d(x, [1, 1, 1, 0, 0, 1]),
        aten.replication_pad3d(x, [1, 1, 1, 0, 0, 1]),
    ),
}


def test_names_of_unary_functions(agree):
    agree({name: (getattr(aten, name).default, (3, 3)) for name in UNARY})


def test_names_of_inverse_functions(agree):
    x = torch.linspace(1.1, 3, 6)
    agree({name: (getattr(aten, name).default, x) for name in ("acosh", "arccosh")}, rtol=1e-5)
    names = ("arcsin", "arccos", "arctanh")
    agree({name: (getattr(aten, name).default, 1 / x) for name in names}, rtol=1e-5)


def test_names_of_binary_functions(agree):
    agree({name: (getattr(aten, name).default, (4,), (4,)) for name in BINARY})


def test_overloads_of_tensors_and_scalars(agree):
    agree({name: (getattr(aten, name).Tensor, (2, 3), (2, 3)) for name in TENSORS})
    cases = {n: (lambda x, n=n: getattr(aten, n).Scalar(x, 2), INTEGERS) for n in SCALARS}
    agree(cases)


def test_functions_of_integers(agree):
    agree({name: (function, INTEGERS) for name, function in CASES.items()})


def test_functions_of_floats(agree):
    agree({name: (function, (2, 3, 4)) for name, function in FLOATS.items()}, rtol=1e-5)


def test_functions_of_volumes(agree):
    agree({name: (function, (2, 3, 4, 4, 3)) for name, function in VOLUMES.items()}, rtol=1e-5)


def test_losses_by_their_old_names(agree):
    classes = torch.tensor([2, 0, 1])
    agree(
        {
            "nll_loss": (lambda x: aten.nll_loss(x, classes), (3, 4)),
            "nll_loss2d": (
                lambda x: aten.nll_loss2d(x[..., None], classes[:, None, None]),
                (3, 4, 1),
            ),
        }
    )


def test_a_recurrent_layer_of_relus(agree):
    layer = torch.nn.RNN(3, 4, nonlinearity="relu")
    agree({"rnn": (layer, (5, 2, 3))})


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(4, 5000),
        torch.rand_like,
        lambda x: torch.bernoulli(x * 0 + 0.5),
        lambda x: torch.randint(5, (4, 5000)) / 4,
        lambda x: torch.randint(-2, 3, (4, 5000)) / 4 + 0.5,
        lambda x: torch.randint_like(x, 5) / 4,
        lambda x: torch.bernoulli(x, 0.5),
        lambda x: torch.randn(4, 5000) / 12 + 0.5,
        lambda x: torch.randn_like(x) / 12 + 0.5,
        lambda x: torch.randn((4, 5000), generator=None) / 12 + 0.5,
    ],
)
def test_random_arrays_have_the_mean_of_torch(draw, drawn):
    assert drawn(draw, torch.zeros(4, 5000)).mean() == pytest.approx(0.5, abs=0.02)


def test_feature_dropout_drops_whole_channels(drawn):
    found = drawn(lambda x: torch.feature_dropout(x, 0.5, True), torch.ones(8, 50, 3))
    assert set(found.reshape(-1, 3).sum(1).tolist()) == {0.0, 6.0}
