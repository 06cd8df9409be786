"""What torch.export cannot record as it stands is recorded as what it means."""

from __future__ import annotations

import copy

import torch
from torch import nn

from weighbridge.converters.captures import capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx


def test_a_batch_norm_keeps_the_plain_average_over_batches(assert_same):
    norm = nn.BatchNorm1d(3, momentum=None).train()
    batches = [torch.randn(4, 3, 5) for _ in range(3)]
    norm(batches[0])
    captured, theirs = capture(norm, inputs={"input": batches[1]}), copy.deepcopy(norm)
    for batch in batches[1:]:
        assert_same(captured(input=to_mlx(batch)), theirs(batch), rtol=1e-5)
    kept = captured.torch_state_dict()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(torch.as_tensor(kept[name]), tensor, rtol=1e-5, atol=1e-6)
