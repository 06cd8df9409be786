"""Norms, rotary positions, attention and GELU run in MLX's fused forms, and give torch's results."""

import copy
import io

import mlx.core as mx
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    GPT2Config,
    GPT2Model,
    GPTNeoXConfig,
    GPTNeoXModel,
    LlamaConfig,
    LlamaModel,
    T5Config,
    T5EncoderModel,
)

from tests.support.gain import realistic
from weighbridge.converters.captures import AdapterSpec, capture
from weighbridge.converters.captures.torch_to_mlx.dtypes import to_mlx, to_torch
from weighbridge.converters.captures.torch_to_mlx.passes.table import PASSES

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 29,
}
GROUPED = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
IDS = torch.tensor([[3, 5, 7, 2, 11, 13, 17], [1, 2, 3, 4, 5, 6, 7]])
LEFT = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1]])
DYNAMIC = {"input_ids": {0: "batch", 1: "sequence"}}
PADDED = {**DYNAMIC, "attention_mask": DYNAMIC["input_ids"]}


def llama(**changes):
    return realistic(LlamaModel(LlamaConfig(**{**GROUPED, **changes})).eval())


def bert():
    return realistic(BertModel(BertConfig(**SIZES)).eval())


def gemma():
    layers = ["sliding_attention", "full_attention"]
    config = Gemma3TextConfig(**GROUPED, sliding_window=3, layer_types=layers)
    return realistic(Gemma3TextModel(config).eval())


def gpt2():
    config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=29, use_cache=False)
    return realistic(GPT2Model(config).eval())


def t5():
    config = T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=29)
    return realistic(T5EncoderModel(config).eval())


def partly_rotary():
    return realistic(GPTNeoXModel(GPTNeoXConfig(**SIZES, rotary_pct=0.5, use_cache=False)).eval())


MODELS = {
    "llama": (llama, {"rms_norm": 5, "rope": 4, "attention": 0, "rsqrt": 0, "neg": 0}),
    "gemma": (gemma, {"rms_norm": 13, "rope": 4, "attention": 1}),
    "gpt2": (gpt2, {"gelu": 2, "tanh": 0, "attention": 0}),
    "bert": (bert, {"gelu": 2, "layer_norm": 5}),
    "t5": (t5, {"rms_norm": 5, "attention": 2, "attention_mask": 0}),
    "gpt_neox": (partly_rotary, {"rope": 4}),
}


def short(names):
    return [name.removeprefix("weighbridge.").split(".")[0] for name in names]


@pytest.mark.parametrize("name", MODELS)
def test_models_run_in_fused_forms_and_agree(name, proven, steps):
    make, wanted = MODELS[name]
    names = short(steps(proven(make(), {"input_ids": IDS})))
    assert {word: names.count(word) for word in wanted} == wanted


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_rows_that_see_nothing_are_zero_as_in_torch(name, proven, steps):
    inputs = {"input_ids": IDS, "attention_mask": LEFT}
    names = short(steps(proven(MODELS[name][0](), inputs, dynamic=PADDED)))
    assert names.count("attention") == 2
    assert names.count("attention_mask") == 1  # made once, for both layers


def test_a_causal_mask_is_recognised_for_all_sizes(steps, assert_same):
    module = llama(num_hidden_layers=1)
    captured = capture(module, inputs={"input_ids": IDS}, dynamic=DYNAMIC)
    assert not {"attention", "attention_mask", "expand"} & set(short(steps(captured)))
    for length in (1, 2, 9):
        ids = torch.arange(3 * length).reshape(3, length)
        found = captured(input_ids=to_mlx(ids))["last_hidden_state"]
        assert_same(found, module(input_ids=ids).last_hidden_state, 2e-5)


def test_each_pass_alone_changes_no_result(proven):
    module = llama(num_hidden_layers=1, hidden_act="gelu_new")
    for name in PASSES:
        proven(module, {"input_ids": IDS}, [name], without=False)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_outputs_of_submodules_stay_visible(name):
    make, _ = MODELS[name]
    captured = [capture(make(), inputs={"input_ids": IDS}, passes=p) for p in (None, ())]
    assert set(captured[0].sites) == set(captured[1].sites)


def test_adapters_find_their_weights_after_passes():
    captured = capture(llama(), inputs={"input_ids": IDS})
    captured.insert_adapters({"layers.0.self_attn.q_proj.weight": AdapterSpec(2, 1.0)})
    assert "lora_a" in captured.parameters()["layers"][0]["self_attn"]["q_proj"]


def test_bfloat16_is_as_near_to_float32_as_torch_is(steps):
    exact = llama()
    narrow = llama().bfloat16()
    captured = capture(narrow, inputs={"input_ids": IDS})
    assert short(steps(captured)).count("rms_norm") == 5
    with torch.no_grad():
        exact.load_state_dict({k: v.float() for k, v in narrow.state_dict().items()})
        wanted = exact(input_ids=IDS).last_hidden_state
        theirs = narrow(input_ids=IDS).last_hidden_state.float()
    ours = to_torch(captured(input_ids=to_mlx(IDS))["last_hidden_state"]).float()
    assert (ours - wanted).square().mean() < 1.5 * (theirs - wanted).square().mean()


class Rotated(nn.Module):
    """Rotary positions that do not begin at 0, or belong to another axis, are not MLX's."""

    def __init__(self, start, axis, frequencies=(1.0, 0.1)):
        super().__init__()
        self.start, self.axis = start, axis
        self.weight = nn.Parameter(torch.randn(2 * len(frequencies)))
        self.register_buffer("frequencies", torch.as_tensor(frequencies), persistent=False)

    def forward(self, x):
        x = x * self.weight
        positions = torch.arange(self.start, self.start + x.shape[self.axis])[:, None]
        angles = positions.float() * self.frequencies
        angles = torch.cat([angles, angles], -1)
        if self.axis == 1:
            angles = angles[:, None]
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return {"x": x * cosines + turned * sines}


@pytest.mark.parametrize(("start", "axis", "fused"), [(0, 2, 1), (1, 2, 0), (0, 1, 0)])
def test_only_positions_from_zero_along_the_right_axis_are_rope(start, axis, fused, proven, steps):
    names = short(steps(proven(Rotated(start, axis), {"x": torch.randn(2, 5, 5, 4)})))
    assert names.count("rope") == fused


def test_one_head_beside_one_position_is_not_taken_for_positions(proven, steps):
    names = short(steps(proven(Rotated(0, 1), {"x": torch.randn(2, 5, 1, 4)})))
    assert "rope" not in names


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rotations_by_powers_are_as_near_to_the_truth_without_reading_wavelengths(dtype):
    module = Rotated(0, 2, 1 / 500000 ** (torch.arange(32) / 32))
    module.weight.data = module.weight.data.to(dtype)
    x = torch.randn(1, 1, 4096, 64).to(dtype)
    captured = capture(module, inputs={"x": x})
    found, drawn = captured(x=to_mlx(x))["x"], io.StringIO()
    mx.export_to_dot(drawn, found)
    assert drawn.getvalue().count("Divide") == 0  # of one by each wavelength
    with torch.no_grad():
        exact = copy.deepcopy(module).double()(x.double())["x"]
        theirs, ours = (it.double() - exact for it in (module(x)["x"], to_torch(found)))
    assert ours.square().mean() < 1.01 * theirs.square().mean()
