"""Names: every tensor of either side has its counterpart, or is named."""

from __future__ import annotations

import pytest

from tests.converters.gguf.toys import like, normal
from weighbridge.converters.checkpoints import Header, open_checkpoint
from weighbridge.converters.gguf import GgufFile
from weighbridge.converters.gguf.names import pair
from weighbridge.errors import UnsupportedError


def test_every_tensor_of_every_family_has_its_place(any_family):
    file, headers = GgufFile(any_family.like()), open_checkpoint(any_family.tuned).headers
    found = pair(file, headers, "tuned")
    assert found.problems == ()
    used = {member for members in found.sources.values() for member in members}
    assert used | set(found.heads) | set(found.dropped) == set(headers)
    assert set(found.sources) | set(found.copied) == set(file.tensors)


def test_experts_are_stacked_by_their_numbers(mixtral):
    headers = open_checkpoint(mixtral.tuned).headers
    backwards = dict(sorted(headers.items(), reverse=True))
    found = pair(GgufFile(mixtral.like()), backwards, "tuned")
    members = found.sources["blk.1.ffn_gate_exps.weight"]
    assert [name.split("experts.")[1][0] for name in members] == ["0", "1", "2"]


def paired(tmp_path, arrays, names):
    file = like(tmp_path / "a.gguf", dict.fromkeys(arrays, normal(4, 4)))
    return pair(file, {name: Header("F32", (4, 4)) for name in names}, "tuned")


def test_everything_without_a_counterpart_is_named(tmp_path):
    found = paired(
        tmp_path,
        ["token_embd.weight", "blk.0.attn_q.weight"],
        ["model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight", "model.odd.weight"],
    )
    homeless = "model.layers.0.self_attn.k_proj.weight would be blk.0.attn_k.weight, which"
    assert found.problems == (
        f"{homeless} a.gguf does not have",
        "model.odd.weight has no name in llama.cpp's table for llama",
        "blk.0.attn_q.weight of a.gguf: no tensor of tuned is it",
    )


def test_a_missing_expert_is_named(tmp_path):
    names = [f"model.layers.0.block_sparse_moe.experts.{i}.w1.weight" for i in (0, 3)]
    found = paired(tmp_path, ["blk.0.ffn_gate_exps.weight"], names)
    assert found.problems == ("blk.0.ffn_gate_exps.weight: experts [1, 2] are missing",)


def test_two_tensors_for_one_place_are_named(tmp_path):
    names = ["model.embed_tokens.weight", "transformer.wte.weight"]
    found = paired(tmp_path, ["token_embd.weight"], names)
    assert found.problems == (f"{names[0]} and {names[1]} would both be token_embd.weight",)


def test_fused_experts_are_two_tensors_there(tmp_path):
    fused = "model.layers.0.mlp.experts.gate_up_proj"
    found = paired(tmp_path, ["blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"], [fused])
    assert set(found.sources.values()) == {(fused,)}
    assert found.problems == ()


def test_an_expert_with_a_number_without_end_takes_no_memory(tmp_path):
    name = "model.layers.0.block_sparse_moe.experts.{}.w1.weight"
    names = [name.format(number) for number in (0, 999_999, "9" * 5000)]
    found = paired(tmp_path, ["blk.0.ffn_gate_exps.weight"], names)
    assert any("experts [1, 2, 3" in problem for problem in found.problems)
    assert max(map(len, found.problems)) < 6000


@pytest.mark.parametrize("prefix", ["model.", "model.language_model.", "language_model.model.", ""])
def test_the_prefix_of_a_head_does_not_matter(tmp_path, prefix):
    name = f"{prefix}layers.0.self_attn.q_proj.weight"
    assert paired(tmp_path, ["blk.0.attn_q.weight"], [name]).sources == {
        "blk.0.attn_q.weight": (name,)
    }


def test_buffers_and_other_senses_are_left_out_by_name(tmp_path):
    names = [
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.visual.blocks.0.attn.qkv.weight",
    ]
    found = paired(tmp_path, ["token_embd.weight"], names)
    assert found.problems == ()
    assert found.dropped == {names[1]: "a buffer", names[2]: "belongs to the mmproj file"}


def test_what_is_made_from_the_configuration_is_copied(tmp_path):
    found = paired(
        tmp_path, ["rope_freqs.weight", "token_embd.weight"], ["model.embed_tokens.weight"]
    )
    assert found.copied == ("rope_freqs.weight",)


@pytest.mark.parametrize("head", [True, False])
def test_a_head_of_its_own_is_taken_from_the_embedding_where_there_is_none(tmp_path, head):
    names = ["model.embed_tokens.weight", *(["lm_head.weight"] if head else [])]
    found = paired(tmp_path, ["token_embd.weight", "output.weight"], names)
    assert found.sources["output.weight"] == (names[-1],)


def test_an_unknown_architecture_is_refused(tmp_path):
    file = like(tmp_path / "a.gguf", {"token_embd.weight": normal(4, 4)})
    path = file.path
    path.write_bytes(path.read_bytes().replace(b"llama", b"novel"))
    file = GgufFile(path)
    with pytest.raises(UnsupportedError, match=r"(?s)novel.*convert_hf_to_gguf"):
        pair(file, {}, "tuned")
