"""Views, joining, indexing, writing and creation against torch."""

from __future__ import annotations

import torch
from torch.nn import functional

ROWS = torch.tensor([[0, 2], [1, 1]])
AXIS1 = torch.tensor([2, 0, 2])
CASES = {
    "view": lambda x: x.view(6, -1),
    "reshape of a permutation": lambda x: x.permute(2, 0, 1).reshape(4, 6),
    "transpose": lambda x: x.transpose(-1, 0),
    "mT": lambda x: x.mT,
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:, None, :1].expand(-1, 5, -1, 4),
    "expand_as": lambda x: x[:1].expand_as(x),
    "unsqueeze": lambda x: x.unsqueeze(-1).unsqueeze(1),
    "squeeze": lambda x: x[:, :1].squeeze(1).unsqueeze(0).squeeze(),
    "squeeze of what is not one": lambda x: x.squeeze(1),
    "squeeze of no axes": lambda x: x[:1, :1, :1].squeeze(()),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(-1, (2, 2)),
    "movedim": lambda x: x.movedim((0, 1), (2, 0)),
    "slice": lambda x: x[:, 1:, ::2],
    "slice from behind": lambda x: x[:, -2:, :-1],
    "slice outside": lambda x: x[:, 1:99],
    "select": lambda x: x[:, -1],
    "narrow": lambda x: x.narrow(2, 1, 2),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "tril": lambda x: x.tril(-1),
    "triu": lambda x: x.triu(1),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "diag_embed": lambda x: torch.diag_embed(x, 1, 0, 2),
    "cat": lambda x: torch.cat([x, x[:, :1]], 1),
    "cat with nothing": lambda x: torch.cat([torch.zeros(0), x[0, 0]]),
    "cat of dtypes": lambda x: torch.cat([x, torch.ones(2, 3, 1, dtype=torch.int64)], -1),
    "stack": lambda x: torch.stack([x, 2 * x], -2),
    "split": lambda x: x.split(3, -1),
    "split by sizes": lambda x: x.split([1, 2], 1),
    "chunk": lambda x: x.chunk(3, -1),
    "tensor_split": lambda x: x.tensor_split(3, -1),
    "unbind": lambda x: x.unbind(1),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "roll": lambda x: x.roll((1, -1), (0, 2)),
    "roll flat": lambda x: x.roll(2),
    "flip": lambda x: x.flip(0, -1),
    "overlapping": lambda x: x.clone().as_strided((2, 3, 2), (6, 2, 1), 1),
    "overlapping, transposed": lambda x: x.clone().transpose(0, 2).as_strided((4, 3), (2, 1)),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[1, 0], indexing="ij"),
    "pad": lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5),
    "pad by cutting": lambda x: functional.pad(x, (-1, 1)),
    "reflect": lambda x: functional.pad(x, (2, 1), mode="reflect"),
    "replicate": lambda x: functional.pad(x, (2, 3), mode="replicate"),
    "circular": lambda x: functional.pad(x, (2, 1), mode="circular"),
    "circular by cutting": lambda x: functional.pad(x, (-1, 2), mode="circular"),
    "reflect by cutting": lambda x: functional.pad(x, (-1, 2), mode="reflect"),
    "replicate by cutting": lambda x: functional.pad(x, (2, -1), mode="replicate"),
    "pixel_shuffle": lambda x: functional.pixel_shuffle(x.reshape(1, 4, 2, 3), 2),
    "index by a list": lambda x: x[:, AXIS1],
    "index by two lists": lambda x: x[ROWS.clamp(max=1), AXIS1[:2]],
    "index apart": lambda x: x[ROWS.clamp(max=1), :, ROWS],
    "index of the last axes": lambda x: x[:, ROWS, ROWS],
    "gather": lambda x: x.gather(1, ROWS[:, :, None].expand(2, 2, 3)),
    "gather of none": lambda x: x[0, 0].gather(0, torch.zeros(1, 0, dtype=torch.long)),
    "gather of one": lambda x: x[0, 0].gather(0, torch.tensor(1)),
    "take_along_dim": lambda x: torch.take_along_dim(x, ROWS[:, :, None], 1),
    "index_select": lambda x: x.index_select(2, AXIS1),
    "masked_fill": lambda x: x.masked_fill(torch.ones(3, 1).tril().bool(), 2.0),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, torch.arange(24.0)),
    "assignment": lambda x: assigned(x, (slice(None), 1), 3.0),
    "assignment of a tensor": lambda x: assigned(x, (slice(None), slice(0, 2)), x[:, 1:]),
    "assignment by index": lambda x: assigned(x, (slice(None), AXIS1[:2]), x[:, :2] * 2),
    "assignment by indices": lambda x: assigned(x, (torch.tensor([0, 1]), AXIS1[:2]), x[0, :2]),
    "assignment by mask": lambda x: assigned(x, (x[:, 0, 0] > 0,), 7.0),
    "scatter": lambda x: x.scatter(1, ROWS[:, :, None].expand(2, 2, 4)[:, :1], x[:, 1:2] * 3),
    "scatter a value": lambda x: x.scatter(2, ROWS[:, None], 5.0),
    "scatter_add": lambda x: x.scatter_add(1, ROWS[:, :, None].expand(2, 2, 4), 2 * x[:, 1:]),
    "scatter_reduce": lambda x: x.scatter_reduce(2, ROWS[:, None], 2 * x[:, :1, :2], "amax"),
    "index_add": lambda x: x.index_add(1, AXIS1, x, alpha=2),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([2, 0]), x[:, :2] * 2),
    "index_fill": lambda x: x.index_fill(2, AXIS1, 9.0),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :1] * 2, 1, 1, 2),
    "select_scatter": lambda x: x.select_scatter(x[:, 0] * 2, 1, -1),
    "detach": lambda x: x * x.detach(),
    "einsum": lambda x: torch.einsum("b i k, b j k -> b i j", x, x),
    "interpolate": lambda x: functional.interpolate(x, scale_factor=2.0),
    "interpolate linearly": lambda x: functional.interpolate(x, 7, mode="linear"),
    "interpolate between corners": lambda x: functional.interpolate(
        x, 7, mode="linear", align_corners=True
    ),
}
CREATIONS = {
    "arange": lambda x: torch.arange(x.shape[-1]) + x,
    "arange by steps": lambda x: torch.arange(1, 9, 2) * x[0],
    "arange of floats": lambda x: torch.arange(0, 1, 0.1),
    "zeros and ones": lambda x: (torch.zeros(2, 3), torch.ones(3, dtype=torch.int64)),
    "full": lambda x: (torch.full((2,), 3), torch.full((2,), torch.inf), torch.full_like(x, 2)),
    "like": lambda x: (torch.zeros_like(x, dtype=torch.bool), torch.ones_like(x)),
    "new": lambda x: (x.new_zeros(2), x.new_ones((1, 2)), x.new_full((2,), 1.5)),
    "eye": lambda x: (torch.eye(3), torch.eye(2, 3)),
    "linspace": lambda x: torch.linspace(0, 1, 5),
    "one_hot": lambda x: functional.one_hot(ROWS, 4),
    "tensor": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "fill": lambda x: x.clone().fill_(2.0),
}


def assigned(x, key, value):
    x = x.clone()
    x[key] = value
    return x


OF_INTEGERS = ("transpose", "slice", "flip", "repeat", "cat", "gather", "roll")


def test_rearrangements(agree):
    agree({name: (function, (2, 3, 4)) for name, function in CASES.items()})


def test_creations(agree):
    agree({name: (function, (2, 4)) for name, function in CREATIONS.items()})


def test_rearrangements_of_integers(agree):
    agree({name: (CASES[name], torch.arange(24).reshape(2, 3, 4)) for name in OF_INTEGERS})


def test_a_tensor_without_axes_has_views_too(agree):
    views = ("flatten", "squeeze", "ravel")
    cases = {name: (getattr(torch.Tensor, name), ()) for name in views}
    agree(
        cases
        | {
            "reshape": (lambda x: (x.reshape(1), x.unsqueeze(0)), ()),
            "expand": (lambda x: x.expand(2, 3), ()),
            "unfold": (lambda x: x.unfold(0, 1, 1), ()),
        }
    )


def test_an_embedding_sends_no_gradient_to_its_padding_row(agree):
    ids = torch.tensor([[0, 2, 2], [1, 0, 4]])
    agree(
        {
            "padded": (lambda table: functional.embedding(ids, table, padding_idx=0), (5, 3)),
            "plain": (lambda table: functional.embedding(ids, table), (5, 3)),
        }
    )
