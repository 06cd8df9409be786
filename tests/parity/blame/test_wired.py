"""Kinds of faults where parts of a computation are not recorded: a scaled core of normed heads, half a gate."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from weighbridge.parity.blame.diagnosis import diagnose
from weighbridge.parity.blame.evidence import INPUT, Observation

LENGTH, HEADS, SIZE = 9, 4, 8
SITE = f"attn.o_proj{INPUT}"


def drawn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def normed_attention(factor, *, later=0, causal=True):
    """Return what PyTorch computes of heads normed after their projection, and what is recorded."""
    torch.manual_seed(0)
    rates = 100.0 ** -(torch.arange(SIZE // 2, dtype=torch.float64) / (SIZE // 2))
    angles = torch.arange(LENGTH + later)[:, None] * torch.cat([rates, rates])
    cosine, sine = angles.cos()[None], angles.sin()[None]
    queries, keys = drawn(1, HEADS, LENGTH, SIZE), drawn(1, 2, LENGTH, SIZE)
    values = drawn(1, LENGTH, 2 * SIZE)
    q = apply_rotary_pos_emb(queries, queries, cosine[:, later:], sine[:, later:])[0]
    k = apply_rotary_pos_emb(keys, keys, cosine[:, :LENGTH], sine[:, :LENGTH])[1]
    v = values.reshape(1, LENGTH, 2, SIZE).transpose(1, 2)
    mixed = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=factor, enable_gqa=True)
    recording = {
        "rotary_emb": cosine[:, :LENGTH] ** 0,  # of layers of another kind, which turn nothing
        "rotary_emb@1": cosine[:, :LENGTH],
        "attn.q_proj": drawn(1, LENGTH, HEADS * SIZE),
        "attn.k_proj": drawn(1, LENGTH, 2 * SIZE),
        "attn.v_proj": values,
        "attn.q_norm": queries,
        "attn.k_norm": keys,
    }
    arrays = {path: array.numpy() for path, array in recording.items()}
    return mixed.transpose(1, 2).reshape(1, LENGTH, -1).numpy(), arrays


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ({"factor": 0.11}, "attention"),
        ({"factor": 0.1, "later": 3}, "position"),
        ({"factor": 0.1, "causal": False}, "mask"),
    ],
)
def test_attention_of_normed_heads_with_a_scale_of_its_own_is_seen_through(fault, kind):
    wanted, recording = normed_attention(0.1)
    found = normed_attention(**fault)[0].astype(np.float32)
    assert diagnose(Observation(SITE, found, wanted, 1e-7, recording=recording))[0] == kind


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (lambda gate, x: silu(x) * gate, "gate"),
        (lambda gate, x: gate * x, "activation"),
        (lambda gate, x: torch.relu(gate) * x, "activation"),
        (lambda gate, x: silu(gate) * x.roll(1, 1).sin(), "unknown"),
    ],
)
def test_a_gate_is_seen_where_it_is_half_of_what_a_projection_gives(wrong, kind):
    torch.manual_seed(0)
    both, x = drawn(1, LENGTH, 24), drawn(1, LENGTH, 12)
    gate = both[..., 12:]
    recording = {"mixer.in_proj": both.numpy()}
    wanted, found = (silu(gate) * x).numpy(), wrong(gate, x).float().numpy()
    it = Observation(f"mixer.out_proj{INPUT}", found, wanted, 1e-7, recording=recording)
    assert diagnose(it)[0] == kind
