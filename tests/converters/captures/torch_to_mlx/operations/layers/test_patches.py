"""Patches, channels in space, and products in groups, against torch."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

OPTIONS = {"kernel_size": (2, 3), "dilation": 2, "padding": 1, "stride": (1, 2)}
ENDS = torch.tensor([2, 2, 5, 6], dtype=torch.int32)


def test_patches_become_columns_and_images_again(agree):
    agree(
        {
            "columns": (partial(functional.unfold, **OPTIONS), (2, 3, 7, 8)),
            "columns of one image": (partial(functional.unfold, kernel_size=2), (3, 4, 5)),
            "image": (partial(functional.fold, output_size=(7, 8), **OPTIONS), (2, 18, 21)),
        }
    )


def test_channels_move_into_space_and_are_shuffled(agree):
    agree(
        {
            "into space": (partial(functional.pixel_shuffle, upscale_factor=2), (2, 8, 2, 3)),
            "out of space": (partial(functional.pixel_unshuffle, downscale_factor=2), (2, 3, 4, 6)),
            "shuffled": (partial(functional.channel_shuffle, groups=3), (2, 6, 4, 2)),
        }
    )


def test_experts_multiply_their_own_rows(agree):
    from transformers.integrations import moe  # noqa: F401 - registers the operation

    product = torch.ops.transformers.grouped_mm_fallback
    agree({"experts": (lambda x, w: product(x, w, ENDS), (6, 3), (4, 3, 5))}, rtol=4e-6)
    behind = {"behind the last": (lambda x, w: product(x, w, ENDS), (8, 3), (4, 3, 5))}
    agree(behind, rtol=4e-6)


def test_torchs_own_grouped_products_sum_as_their_shapes_say(agree):
    ends = torch.tensor([8, 8, 16, 24], dtype=torch.int32)
    shapes = {
        "rows": ((24, 8), (4, 8, 16)),
        "columns": ((4, 16, 8), (8, 24)),
        "summed over": ((16, 24), (24, 8)),
        "batches": ((4, 8, 16), (4, 16, 8)),
    }
    cases = {}
    for name, pair in shapes.items():
        offsets = None if name == "batches" else ends
        tensors = [torch.randn(shape).bfloat16() for shape in pair]
        cases[name] = (lambda a, b, offsets=offsets: torch._grouped_mm(a, b, offsets), *tensors)
    agree(cases, rtol=1e-2)
