"""A PyTorch module whose weights are on disk computes what it does with all of them in memory."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
import torch

from weighbridge.converters.adapters import Adapter
from weighbridge.converters.checkpoints.formats.safetensors import SafetensorsFile
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes.streamed import modules, tensors
from weighbridge.converters.runtimes.streamed.modules import open_module, tensors_of
from weighbridge.converters.runtimes.streamed.together import READINGS, together
from weighbridge.converters.runtimes.torch import build_module
from weighbridge.converters.values import LowRank
from weighbridge.errors import UnsupportedError
from weighbridge.parity.probes.probes import make_probes
from weighbridge.parity.reference.float64 import true_float64
from weighbridge.parity.reference.reference import (
    float64_module,
    float64_outputs,
    module_outputs,
    stored_as,
)
from weighbridge.parity.reference.unused import unneeded
from weighbridge.tests.support.gain import realistic

KINDS = ["llama", "mixtral", "bert", "t5", "gpt2", "qwen3", "vit"]


@pytest.fixture
def model(fixtures, request):
    return open_model(fixtures / request.param / "model")


def in_memory(monkeypatch):
    monkeypatch.setattr(modules, "in_memory", lambda _: True)


def same(one, other):
    return all(np.array_equal(a[k], b[k]) for a, b in zip(one, other, strict=True) for k in a)


@pytest.mark.parametrize("model", KINDS, indirect=True)
def test_outputs_have_the_same_bits_as_with_the_whole_model_in_memory(model, monkeypatch):
    probes = make_probes(model.signature, tokenizer=None)

    def run():
        wide = float64_outputs(float64_module(model), model.signature, probes)
        narrow = stored_as(model, "float32", "bfloat16")
        return wide + module_outputs(narrow, model.signature, probes, "float32")

    streamed = run()
    in_memory(monkeypatch)
    assert same(streamed, run())


@pytest.mark.heavy
def test_positions_that_a_class_computes_and_never_saves_are_computed(tmp_path, monkeypatch):
    from transformers import MarianConfig, MarianMTModel

    layers = {"encoder_layers": 1, "decoder_layers": 1, "vocab_size": 40, "decoder_vocab_size": 40}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "pad_token_id": 0}
    config = MarianConfig(d_model=16, max_position_embeddings=32, **layers, **heads)
    realistic(MarianMTModel(config)).save_pretrained(tmp_path)
    model = open_model(tmp_path)
    ids = torch.arange(12).reshape(2, 6)
    outputs = [open_module(model)(input_ids=ids, decoder_input_ids=ids).logits]
    in_memory(monkeypatch)
    outputs.append(open_module(model)(input_ids=ids, decoder_input_ids=ids).logits)
    own = MarianMTModel.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert all(torch.equal(it, own(input_ids=ids, decoder_input_ids=ids).logits) for it in outputs)


@pytest.mark.parametrize("model", ["mixtral", "t5"], indirect=True)
def test_rows_at_a_time_differ_by_no_more_than_float64_rounds(model, monkeypatch):
    probes = make_probes(model.signature, tokenizer=None, quick=True)
    [whole] = float64_outputs(float64_module(model), model.signature, probes)
    monkeypatch.setattr(tensors, "BLOCK", 1024)
    [rows] = float64_outputs(float64_module(model), model.signature, probes)
    assert all(np.allclose(rows[name], whole[name], rtol=1e-12, atol=1e-13) for name in whole)


@pytest.mark.parametrize("model", ["llama", "mixtral"], indirect=True)
def test_all_probes_share_one_reading_of_the_weights(model, monkeypatch):
    read = [0]
    stream = SafetensorsFile.stream

    def counted(self, *args):
        for view in stream(self, *args):
            read[0] += view.nbytes
            yield view

    module = open_module(model)
    size = sum(header.nbytes for header in model.checkpoint.headers.values())
    monkeypatch.setattr(SafetensorsFile, "stream", counted)
    module_outputs(module, model.signature, make_probes(model.signature, tokenizer=None), "float32")
    assert 0 < read[0] <= size


@pytest.mark.parametrize("model", KINDS, indirect=True)
def test_no_weight_stays_in_memory(model):
    module = open_module(model)
    module_outputs(
        module, model.signature, make_probes(model.signature, tokenizer=None, quick=True), "float32"
    )
    assert len(tensors_of(module)) == len(list(module.parameters()))
    assert not vars(module)[READINGS]._pieces


@pytest.mark.parametrize("model", ["mixtral"], indirect=True)
def test_a_weight_is_read_wherever_it_lies_among_arguments(model):
    module = open_module(model, "float64")
    weight = next(it for it in module.parameters() if it.ndim == 2)
    wanted = weight.all()
    pair = namedtuple("pair", "one other")
    given = (weight, [weight, (1, weight)], pair(weight, 2), {"five": (5,)})
    one, (two, (number, three)), (four, _), sizes = tensors.read_in(given)
    assert all(type(it) is torch.Tensor and it.equal(wanted) for it in (one, two, three, four))
    assert (number, sizes) == (1, {"five": (5,)})
    assert torch.cat([weight, weight]).equal(torch.cat([wanted, wanted]))


@pytest.mark.parametrize("model", ["mixtral"], indirect=True)
def test_one_expert_is_read_without_the_others(model):
    whole, module = build_module(model), open_module(model)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    experts = tensors_of(module)[name]
    assert experts.weight.apart
    assert torch.equal(experts[1], whole.get_parameter(name)[1])


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_the_census_sees_what_runs_in_threads_of_their_own(model):
    def narrow():
        return torch.from_numpy(np.ones(2, np.float32)) * 2

    module = float64_module(model)
    with pytest.raises(UnsupportedError, match="float32"), true_float64():
        together(module, [narrow, narrow])


@pytest.mark.parametrize("model", ["llama"], indirect=True)
def test_an_adapter_is_live_on_a_base_that_is_on_disk(model, tmp_path, monkeypatch):
    name = "model.layers.0.self_attn.q_proj.weight"
    shape, draw = model.checkpoint.headers[name].shape, np.random.default_rng(0).normal
    update = LowRank(draw(size=(2, shape[1])), draw(size=(shape[0], 2)), 0.5)
    live = replace(model, adapter=Adapter(tmp_path, "peft", {name: update}, {}))
    probes = make_probes(model.signature, tokenizer=None, quick=True)

    def run(model, storage="stored"):
        module = stored_as(model, "float64", storage)
        return float64_outputs(module, model.signature, probes)

    [bare], [streamed], [merged] = run(model), run(live), run(live, "bfloat16")
    in_memory(monkeypatch)
    assert same([streamed, merged], run(live) + run(live, "bfloat16"))
    assert math.isclose(abs(streamed["logits"] - bare["logits"]).max(), 0) is False


@pytest.mark.parametrize("model", ["mixtral"], indirect=True)
def test_an_adapter_of_experts_is_live_in_every_probe_that_runs_among_others(model, tmp_path):
    draw = np.random.default_rng(0).normal
    updates = {
        name: LowRank(draw(size=(2, head.shape[1])), draw(size=(head.shape[0], 2)))
        for name, head in model.checkpoint.headers.items()
        if "layers.0" in name and "experts" in name
    }
    live = replace(model, adapter=Adapter(tmp_path, "peft", updates, {}))
    probes = make_probes(model.signature, tokenizer=None)

    def run(probes):
        return float64_outputs(stored_as(live, "float64", "stored"), model.signature, probes)

    assert same(run(probes), [row for probe in probes for row in run([probe])])


@pytest.mark.parametrize("model", ["bert", "llama"], indirect=True)
def test_what_no_output_needs_is_the_same(model, monkeypatch):
    [probe] = make_probes(model.signature, tokenizer=None, quick=True)
    streamed = unneeded(model, probe)
    in_memory(monkeypatch)
    assert streamed == unneeded(model, probe)
