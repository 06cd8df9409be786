"""Experts that are looped over where they got a token, as transformers' DBRX does."""

from __future__ import annotations

import mlx.core as mx
import torch
from transformers import DbrxConfig, DbrxModel

import weighbridge


def test_experts_compute_every_token_of_every_row():
    torch.manual_seed(0)
    ffn = {"ffn_hidden_size": 8, "moe_num_experts": 4, "moe_top_k": 2}
    attention = {"kv_n_heads": 1, "rope_theta": 1e4, "clip_qkv": 8.0}
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1, "vocab_size": 11, "use_cache": False}
    model = DbrxModel(DbrxConfig(ffn_config=ffn, attn_config=attention, **sizes)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    ids = torch.randint(11, (2, 4))
    captured = weighbridge.capture(model, inputs={"input_ids": ids})
    found = captured(input_ids=mx.array(ids.numpy()))["last_hidden_state"]
    wanted = model(input_ids=ids).last_hidden_state.detach()
    torch.testing.assert_close(torch.tensor(found.tolist()), wanted, rtol=1e-4, atol=1e-4)
