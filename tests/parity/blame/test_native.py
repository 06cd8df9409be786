"""Faults of a native class are named by site and kind: one forward of it, submodule by submodule.

The oracle is transformers' Llama; the candidate is mlx-lm's, with one method exchanged.
"""

from __future__ import annotations

import mlx.core as mx
import mlx_lm.models.llama as native
import pytest
import torch
from mlx_lm.models.activations import swiglu
from mlx_lm.models.base import scaled_dot_product_attention
from transformers import LlamaConfig, LlamaForCausalLM

from weighbridge.converters.common.policy import Policy
from weighbridge.converters.models import open as open_model
from weighbridge.converters.runtimes.native.sites import watching
from weighbridge.jobs.api import convert
from weighbridge.jobs.checking import compare
from weighbridge.parity.blame.blame import Recordings, blame
from weighbridge.parity.blame.pairing import Paired, paired_sites
from weighbridge.parity.check.candidate import Candidate
from weighbridge.parity.check.check import check
from weighbridge.parity.goldens.recorder import Recorder, record
from weighbridge.parity.probes.probes import make_probes
from weighbridge.parity.weights.fingerprints import explain
from weighbridge.parity.weights.sketches.sketch import sketches
from weighbridge.parity.weights.weights import base_weights
from weighbridge.tests.support.planted.classes import FAULTS as PLANTED
from weighbridge.tests.support.planted.classes import planted
from weighbridge.tests.support.planted.sources import source

pytestmark = pytest.mark.heavy
SIZES = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def attention(*, offset=0, exchanged=False, masked=True, factor=1.0):
    """Return mlx-lm's attention with a fault."""

    def call(self, x, mask=None, cache=None):
        batch, length, _ = x.shape
        parts = [self.q_proj(x), self.k_proj(x), self.v_proj(x)]
        if exchanged:
            parts[1], parts[2] = parts[2], parts[1]
        counts = (self.n_heads, self.n_kv_heads, self.n_kv_heads)
        queries, keys, values = (
            part.reshape(batch, length, count, -1).transpose(0, 2, 1, 3)
            for part, count in zip(parts, counts, strict=True)
        )
        queries, keys = self.rope(queries, offset=offset), self.rope(keys)
        mixed = scaled_dot_product_attention(
            queries,
            keys,
            values,
            cache=None,
            scale=self.scale * factor,
            mask=mask if masked else None,
        )
        return self.o_proj(mixed.transpose(0, 2, 1, 3).reshape(batch, length, -1))

    return call


def without_first_residual(self, x, mask=None, cache=None):
    h = self.self_attn(self.input_layernorm(x), mask, cache)
    return h + self.mlp(self.post_attention_layernorm(h))


def without_second_residual(self, x, mask=None, cache=None):
    h = x + self.self_attn(self.input_layernorm(x), mask, cache)
    return self.mlp(self.post_attention_layernorm(h))


def norm_after(self, x, mask=None, cache=None):
    h = x + self.input_layernorm(self.self_attn(x, mask, cache))
    return h + self.mlp(self.post_attention_layernorm(h))


def other_half(self, x):
    return self.down_proj(swiglu(self.up_proj(x), self.gate_proj(x)))


def no_activation(self, x):
    return self.down_proj(self.gate_proj(x) * self.up_proj(x))


def skipped(self, x, mask=None, cache=None):
    return x


LAYERS = {f"model.layers.{number}" for number in range(2)}
FAULTS = {
    "first residual lost": (native.TransformerBlock, without_first_residual, "residual", ""),
    "second residual lost": (native.TransformerBlock, without_second_residual, "residual", ""),
    "norm after attention": (native.TransformerBlock, norm_after, "order", ""),
    "layer skipped": (native.TransformerBlock, skipped, "skipped", ""),
    "wrong half of the gate": (native.MLP, other_half, "gate", ".mlp"),
    "no activation": (native.MLP, no_activation, "activation", ".mlp"),
    "positions of queries": (native.Attention, attention(offset=3), "position", ".self_attn"),
    "keys for values": (
        native.Attention,
        attention(exchanged=True),
        "swapped projections",
        ".self_attn",
    ),
    "no causal mask": (native.Attention, attention(masked=False), "mask", ".self_attn"),
    "scale of scores": (native.Attention, attention(factor=1.1), "attention", ".self_attn"),
}


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    """Return runner, probes, recordings of the reference and explanations of the weights."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            gain = 1.5 / parameter.shape[-1] ** 0.5 if parameter.ndim == 2 else 0.2
            parameter.mul_(parameter.ndim == 1).add_(gain * torch.randn_like(parameter))
    model.save_pretrained(folder / "torch")
    convert(folder / "torch", folder / "mlx", to="mlx", check="none")
    reference = open_model(str(folder / "torch"))
    candidate = Candidate(open_model(str(folder / "mlx")), "mlx", Policy())
    probes = [it for it in make_probes(reference.signature, tokenizer=None) if it.name == "short"]
    weights = base_weights(reference)
    explanations = explain(sketches(weights), candidate.weights, reference_arrays=weights.read)
    recorded = Recorder(reference, probes).sites("stored", probes)
    return candidate.structure, probes, recorded, explanations


def faults_of(sides):
    runner, probes, (reference, own), explanations = sides
    paired = Paired(runner, paired_sites(explanations))
    return blame(Recordings(probes, reference, own), paired, explanations=explanations)


def test_a_right_class_is_blamed_for_nothing(sides):
    assert faults_of(sides) == []


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_class_is_named_by_site_and_kind(sides, monkeypatch, name):
    owner, call, kind, below = FAULTS[name]
    monkeypatch.setattr(owner, "__call__", call)
    found = faults_of(sides)
    assert {(it.site, it.kind) for it in found} == {(layer + below, kind) for layer in LAYERS}


def test_classes_are_as_before_after_a_recording(sides):
    runner = sides[0]
    before = [type(child) for _, child in runner.module.named_modules()]
    with watching(runner.module, {}) as sites:
        runner.module(mx.array([[1, 2, 3]]))
    assert [type(child) for _, child in runner.module.named_modules()] == before
    assert {"model.layers.0.mlp.down_proj", "model.layers.0.mlp.down_proj|in"} <= sites.keys()


def test_a_site_has_the_name_of_its_class_whatever_its_files_call_it(tmp_path):
    saved = source("mixtral", tmp_path / "torch", seed=3, dtype="float32")
    names = open_model(str(saved)).checkpoint.headers
    assert any(".block_sparse_moe." in name for name in names)  # its class calls it mlp
    convert(saved, tmp_path / "mlx", to="mlx", check="none")
    with planted(PLANTED["expert numbers"], tmp_path / "mlx"):
        verdict = compare(record(open_model(str(saved))), open_model(str(tmp_path / "mlx")))
    found = {(it.site, it.kind) for it in verdict.faults}
    assert found == {(f"model.layers.{n}.mlp.experts", "expert") for n in range(4)}


def test_a_fault_of_the_shared_expert_alone_is_named(tmp_path):
    saved = source("qwen3_next", tmp_path / "torch", seed=3, dtype="float32")
    convert(saved, tmp_path / "mlx", to="mlx", check="none")
    with planted(PLANTED["the other half of the gate"], tmp_path / "mlx"):
        verdict = check(open_model(str(saved)), open_model(str(tmp_path / "mlx")), quick=True)
    found = {(it.site, it.kind) for it in verdict.faults}
    assert found == {(f"model.layers.{n}.mlp.shared_expert", "gate") for n in range(4)}
