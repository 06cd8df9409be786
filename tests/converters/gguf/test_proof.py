"""Rules are found by value; what the values do not tell is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.converters.gguf.models import FAMILIES
from tests.converters.gguf.toys import checkpoint, like, normal
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.gguf import GgufFile
from weighbridge.converters.gguf.names import pair
from weighbridge.converters.gguf.proof import prove
from weighbridge.converters.gguf.rules import interleaved

WANTED = {
    "llama": {"same", "heads interleaved"},
    "qwen3": {"same"},
    "gemma": {"same", "plus one"},
    "gpt2": {"same", "transposed"},
    "mixtral": {"same", "heads interleaved"},
    "qwen3_moe": {"same"},
}
HF_Q, HF_NORM = "model.layers.{}.self_attn.q_proj.{}", "model.layers.{}.input_layernorm.weight"


def proved(file, source, *, strict):
    return prove(pair(file, source.headers, "here"), file, source, strict=strict)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_the_base_proves_every_rule_of_every_family(any_family, kind):
    found = proved(GgufFile(any_family.like(kind)), open_checkpoint(any_family.base), strict=True)
    assert found.problems == ()
    assert {rule.name for rule in found.rules.values()} == WANTED[any_family.family]
    assert found.near == 0
    assert found.rounded == 0 or kind not in ("F32", "BF16")


@pytest.mark.parametrize("kind", ["BF16", "Q8_0", "Q4_0"])
def test_a_tuned_model_is_near_enough_to_find_the_same_rules(any_family, kind):
    base = proved(GgufFile(any_family.like()), open_checkpoint(any_family.base), strict=True)
    found = proved(GgufFile(any_family.like(kind)), open_checkpoint(any_family.tuned), strict=False)
    assert found.problems == ()
    assert found.rules == base.rules


def test_a_tuned_model_is_not_the_base(llama):
    found = proved(GgufFile(llama.like()), open_checkpoint(llama.tuned), strict=True)
    assert len(found.problems) == 7  # one for every kind of projection
    assert found.problems[0].startswith("blk.*.")
    assert "not what --base has" in found.problems[0]


def test_another_model_is_refused_tensor_by_tensor(tmp_path):
    file = like(tmp_path / "a.gguf", {"token_embd.weight": normal(6, 4)})
    other = checkpoint(tmp_path / "b", {"model.embed_tokens.weight": normal(6, 4, seed=1)})
    found = proved(file, other, strict=False)
    assert "token_embd.weight: far from it under every rule" in found.problems[0]


def test_one_strange_layer_among_good_ones_is_seen(tmp_path):
    good = {f"blk.{i}.attn_q.weight": normal(8, 4, seed=i) for i in range(2)}
    ours = {HF_Q.format(0, "weight"): good["blk.0.attn_q.weight"]}
    ours[HF_Q.format(1, "weight")] = normal(8, 4, seed=9)
    found = proved(like(tmp_path / "a.gguf", good), checkpoint(tmp_path / "b", ours), strict=False)
    assert len(found.problems) == 1


def heads(tmp_path, bias: np.ndarray):
    """Return a file whose q_proj has its heads interleaved, and what it was made of."""
    weight = normal(8, 4)
    stored = {"weight": interleaved(weight, 2), "bias": interleaved(bias, 2)}
    ours = {HF_Q.format(0, leaf): array for leaf, array in (("weight", weight), ("bias", bias))}
    named = {f"blk.0.attn_q.{leaf}": array for leaf, array in stored.items()}
    return like(tmp_path / "a.gguf", named), checkpoint(tmp_path / "b", ours)


@pytest.mark.parametrize("bias", [np.zeros(8, np.float32), normal(8)], ids=["zeros", "random"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_bias_that_tells_nothing_goes_with_its_weight(tmp_path, bias, strict):
    found = proved(*heads(tmp_path, bias), strict=strict)
    assert found.problems == ()
    assert {rule.name for rule in found.rules.values()} == {"heads interleaved"}


def test_values_that_fit_two_rules_are_refused(tmp_path):
    ones = np.ones((8, 4), np.float32)
    file = like(tmp_path / "a.gguf", {"blk.0.attn_q.weight": ones})
    found = proved(file, checkpoint(tmp_path / "b", {HF_Q.format(0, "weight"): ones}), strict=True)
    assert "more than one rule (same, heads interleaved)" in found.problems[0]


@pytest.mark.parametrize("offset", [0, 1])
def test_a_norm_of_ones_is_still_told_from_one_plus_it(tmp_path, offset):
    ones = np.ones(8, np.float32)
    file = like(tmp_path / "a.gguf", {"blk.0.attn_norm.weight": ones + offset})
    found = proved(file, checkpoint(tmp_path / "b", {HF_NORM.format(0): ones}), strict=False)
    assert [rule.name for rule in found.rules.values()] == [["same", "plus one"][offset]]


@pytest.mark.parametrize("shape", [(6, 6), (6, 8)])
def test_square_or_not_a_transposition_is_found(tmp_path, shape):
    array = normal(*shape)
    file = like(tmp_path / "a.gguf", {"blk.0.attn_output.weight": array.T})
    ours = checkpoint(tmp_path / "b", {"model.layers.0.self_attn.o_proj.weight": array})
    assert [rule.name for rule in proved(file, ours, strict=False).rules.values()] == ["transposed"]


def test_the_halves_of_fused_experts_are_told_apart(tmp_path):
    fused = normal(3, 8, 4)
    halves = {"blk.0.ffn_gate_exps.weight": fused[:, :4], "blk.0.ffn_up_exps.weight": fused[:, 4:]}
    ours = checkpoint(tmp_path / "b", {"model.layers.0.mlp.experts.gate_up_proj": fused})
    found = proved(like(tmp_path / "a.gguf", halves), ours, strict=True)
    assert {name: rule.name for name, rule in found.rules.items()} == {
        "blk.0.ffn_gate_exps.weight": "first half",
        "blk.0.ffn_up_exps.weight": "second half",
    }


def test_rows_without_a_token_are_cut(tmp_path):
    array = normal(9, 4)
    file = like(tmp_path / "a.gguf", {"token_embd.weight": array[:7]})
    ours = checkpoint(tmp_path / "b", {"model.embed_tokens.weight": array})
    assert [rule.name for rule in proved(file, ours, strict=True).rules.values()] == ["first rows"]


def test_every_family_is_tried():
    assert set(WANTED) == set(FAMILIES)
