"""Experts that are looped over where they got a token, as transformers' DBRX and users' own modules do."""

from __future__ import annotations

import mlx.core as mx
import pytest
import torch
from torch.nn import Linear, ModuleList
from transformers import DbrxConfig, DbrxModel

import weighbridge
from weighbridge.converters.common.arrays import to_mlx, to_torch
from weighbridge.errors import UnsupportedError


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


def places(x, weights, chosen, number):
    token, place = torch.where(chosen == number)
    return token, lambda expert: expert(x[token]) * weights[token, place, None]


def by_numel(out, x, weights, chosen, number, expert):
    token, rows = places(x, weights, chosen, number)
    if token.numel() == 0:
        return out
    return out.index_add(0, token, rows(expert))


def by_any(out, x, weights, chosen, number, expert):
    mask = (chosen == number).any(-1)
    if not mask.any():
        return out
    share = (weights * (chosen == number)).sum(-1, keepdim=True)
    out[mask] += expert(x[mask]) * share[mask]
    return out


def by_count(out, x, weights, chosen, number, expert):
    mask = chosen[:, 0] == number
    if mask.sum().item() >= 1 and mask.sum() != 0:
        out = out + mask[:, None] * expert(x) * weights[:, :1]
    return out


def only_there(out, x, weights, chosen, number, expert):
    mask = (chosen == number).any(-1)
    return out + expert(x) if mask.any() else out


def from_three(out, x, weights, chosen, number, expert):
    mask = (chosen == number).any(-1)
    if mask.sum() > 2:
        out[mask] += expert(x[mask])
    return out


class Looping(torch.nn.Module):
    """Adds what experts make of the rows that chose them, skipping an expert that no row chose."""

    def __init__(self, step):
        super().__init__()
        self.step, self.router = step, Linear(4, 2)
        self.experts = ModuleList(Linear(4, 4) for _ in range(2))

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(1, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = self.step(out, x, weights, chosen, number, expert)
        return torch.nn.functional.dropout(out, 0.0, self.training)


@pytest.mark.parametrize("step", [by_numel, by_any, by_count])
def test_experts_that_are_skipped_where_they_got_no_row_are_as_in_torch(step, gradients_of):
    torch.manual_seed(0)
    module = Looping(step)
    captured = weighbridge.capture(module, inputs=torch.randn(5, 4), dynamic={"x": {0: "rows"}})
    for rows in (1, 7):  # one row leaves an expert without any
        x, weight = torch.randn(rows, 4), torch.randn(rows, 4)
        module.zero_grad()
        wanted = module(x)
        (wanted * weight).sum().backward()
        torch.testing.assert_close(to_torch(captured(to_mlx(x))), wanted.detach())
        _, found = gradients_of(
            captured, lambda out, w=weight: (out * to_mlx(w)).sum(), x=to_mlx(x)
        )
        for name, parameter in module.named_parameters():
            own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(to_torch(found[name]), own)
    if step is by_count:  # the quickest to record
        torch.testing.assert_close(to_torch(captured.eval()(to_mlx(x))), wanted.detach())


@pytest.mark.parametrize("step", [only_there, from_three])
def test_what_is_skipped_and_would_not_be_nothing_is_refused(step):
    with pytest.raises(UnsupportedError, match="decides by a tensor's values"):
        weighbridge.capture(Looping(step), inputs=torch.randn(5, 4))


def test_a_loop_that_ends_by_values_is_refused():
    class Halving(torch.nn.Module):
        def forward(self, x):
            while (x > 1).any():
                x = x * 0.5
            return x

    with pytest.raises(UnsupportedError, match="while"):
        weighbridge.capture(Halving(), inputs={"x": torch.randn(3, 4)})
