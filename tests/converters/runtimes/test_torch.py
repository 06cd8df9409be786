"""Mirrors converters/runtimes/torch.py; the oracles are transformers' own loader and PEFT."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn
from transformers import AutoModelForCausalLM, BertModel

from weighbridge.converters.adapters import read_adapter, write_adapter
from weighbridge.converters.checkpoints import open_checkpoint
from weighbridge.converters.checkpoints.arrays import FileArrays
from weighbridge.converters.common.policy import Policy
from weighbridge.converters.models import Model, Port, Signature
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.converters.runtimes import load
from weighbridge.converters.runtimes.fitting import load_weights
from weighbridge.converters.runtimes.streamed.modules import open_module
from weighbridge.converters.runtimes.torch import build_module, call
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError, UnsupportedError

NAMES = [
    f"encoder.layer.{n}.attention.self.{p}.weight" for n in range(2) for p in ("query", "value")
]


@pytest.fixture
def inputs():
    generator = np.random.default_rng(0)
    mask = np.ones((2, 6), np.int64)
    mask[1, 4:] = 0
    return {"input_ids": generator.integers(5, 60, (2, 6)), "attention_mask": mask}


def as_tensors(inputs):
    return {name: torch.from_numpy(array) for name, array in inputs.items()}


def test_a_directory_runs_as_transformers_runs_it(tiny_bert_dir, inputs):
    theirs = BertModel.from_pretrained(tiny_bert_dir).eval()(**as_tensors(inputs)).last_hidden_state
    ours = load(open_model(tiny_bert_dir), "torch").run(inputs)["last_hidden_state"]
    assert np.array_equal(ours, theirs.detach().numpy())


def test_a_live_adapter_runs_as_peft_runs_it(tiny_bert_dir, inputs, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = BertModel.from_pretrained(tiny_bert_dir).eval()
    width = base.config.hidden_size
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["query", "value"], lora_dropout=0.0)
    peft = get_peft_model(base, config).eval()
    generator = np.random.default_rng(1)
    updates = {}
    for name in NAMES:
        a = generator.normal(size=(3, width)).astype(np.float32)
        b = generator.normal(size=(width, 3)).astype(np.float32)
        updates[name] = LowRank(a, b, 2.0)
        layer = peft.base_model.model.get_submodule(name.removesuffix(".weight"))
        layer.lora_A["default"].weight.data = torch.from_numpy(a)
        layer.lora_B["default"].weight.data = torch.from_numpy(b)
    keys = ["attention.self.query", "attention.self.value"]
    parameters = {"rank": 3, "scale": 2.0, "dropout": 0.0, "keys": keys}
    write_adapter(
        tmp_path / "a",
        updates,
        config={"fine_tune_type": "lora", "num_layers": -1, "lora_parameters": parameters},
    )
    theirs = peft(**as_tensors(inputs)).last_hidden_state.detach().numpy()
    model = open_model(tiny_bert_dir).with_adapter(read_adapter(tmp_path / "a"))
    ours = load(model, "torch").run(inputs)["last_hidden_state"]
    assert np.abs(ours - theirs).max() < 1e-5 * np.abs(theirs).max()
    bare = load(open_model(tiny_bert_dir), "torch").run(inputs)["last_hidden_state"]
    assert np.abs(bare - theirs).max() > 1e-2


def test_a_correction_replaces_what_a_site_returned(tiny_bert_dir, inputs):
    runner = load(open_model(tiny_bert_dir), "torch")
    plain = runner.trace(inputs)
    site = "encoder.layer.0.intermediate.dense"
    corrected = runner.trace(inputs, {site: np.zeros_like(plain.sites[site])})
    assert np.array_equal(corrected.sites[site], plain.sites[site]), (
        "recorded before its own correction"
    )
    after = "encoder.layer.0.intermediate.intermediate_act_fn"
    assert not corrected.sites[after].any(), "gelu(0) is 0"


def test_perfect_corrections_change_nothing(tiny_bert_dir, inputs):
    runner = load(open_model(tiny_bert_dir), "torch")
    plain = runner.trace(inputs)
    again = runner.trace(inputs, plain.sites)
    assert all(np.array_equal(again.sites[site], plain.sites[site]) for site in plain.sites)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_the_policy_sets_the_dtype_of_the_whole_run(tiny_bert_dir, inputs, dtype):
    out = load(open_model(tiny_bert_dir), "torch", Policy(compute=dtype)).run(inputs)
    assert out["last_hidden_state"].dtype.name == dtype


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_16_bits_compute_what_transformers_own_loader_in_16_bits_does(tiny, kind, dtype):
    model, ids = open_model(tiny(kind)), {"input_ids": torch.arange(96)[None] % 60}
    names = tuple(port.name for port in model.signature.outputs)
    theirs = AutoModelForCausalLM.from_pretrained(
        tiny(kind), dtype=dtype, attn_implementation="eager"
    ).eval()
    wanted = call(theirs, ids, names)
    for build in (build_module, open_module):
        found = call(build(model, dtype), ids, names)
        assert all(torch.equal(found[name], wanted[name]) for name in names), build


def test_a_capture_in_16_bits_turns_by_the_angles_of_transformers(tiny):
    ids = np.arange(96)[None] % 60
    theirs = AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype="bfloat16").eval()
    cosines, _ = theirs.model.rotary_emb(
        torch.zeros(1, dtype=torch.bfloat16), torch.arange(96)[None]
    )
    captured = load(open_model(tiny("llama")), "mlx", Policy(compute="bfloat16"))
    sites = captured.trace({"input_ids": ids}).sites
    off = sites["model.rotary_emb"].astype(np.float32) - cosines.float().numpy()  # the first output
    assert np.abs(off).max() <= 2**-8  # one rounding of a number below 1


def test_missing_weights_are_listed_together(tiny_bert_dir, tmp_path):
    import shutil

    from safetensors.numpy import load_file, save_file

    folder = shutil.copytree(tiny_bert_dir, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    lost = [NAMES[0], "embeddings.LayerNorm.bias"]
    save_file({k: v for k, v in tensors.items() if k not in lost}, folder / "model.safetensors")
    with pytest.raises(MismatchError) as caught:
        build_module(open_model(folder))
    assert all(name in str(caught.value) for name in lost)


def test_an_unknown_runtime_names_the_known_ones(tiny_bert_dir):
    with pytest.raises(UnsupportedError, match="torch, mlx, reference, coreml"):
        load(open_model(tiny_bert_dir), "tensorflow")


class Twice(nn.Module):
    """Runs one layer two times."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


def live(module):
    """Return a model of a user's own MODULE, four numbers in and four out."""
    ports = [(Port(name, "float32", ("batch", 4), "hidden"),) for name in "xy"]
    return Model("own", "torch", None, {}, factory=module, declared=Signature(*ports))


def test_a_second_call_of_a_module_is_another_site():
    module, x = Twice(), np.ones((2, 4), np.float32)
    sites = load(live(module), "torch").trace({"x": x}).sites
    with torch.no_grad():
        once = module.layer(torch.from_numpy(x))
        twice = module.layer(once)
    assert np.array_equal(sites["layer"], once.numpy())
    assert np.array_equal(sites["layer@1"], twice.numpy())


def test_a_site_is_what_its_module_returned_whatever_is_written_over_it():
    class InPlace(nn.Sequential):
        def forward(self, x):
            return super().forward(x)

    module = InPlace(nn.Linear(4, 4), nn.ReLU(inplace=True)).eval()
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    sites = load(live(module), "torch").trace(inputs).sites
    with torch.no_grad():
        wanted = module[0](torch.from_numpy(inputs["x"])).numpy()
    assert (sites["0"] == wanted).all()
    assert (sites["1|in"] == wanted).all()


def test_nothing_is_recorded_after_a_trace():
    runner = load(live(Twice()), "torch")
    sites = runner.trace({"x": np.ones((2, 4), np.float32)}).sites
    before = dict(sites)
    runner.run({"x": np.zeros((2, 4), np.float32)})
    assert sites == before
    assert not runner.module.layer._forward_hooks
    assert not runner.module.layer._forward_pre_hooks


def test_a_users_module_is_run_in_another_dtype_and_stays_as_it_was():
    module = Twice().train()
    assert build_module(live(module), "float64").layer.weight.dtype == torch.float64
    assert module.layer.weight.dtype == torch.float32
    assert module.training


def test_a_view_stands_in_for_no_more_of_a_weight_than_it_shows(tmp_path):
    class Viewed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(torch.ones(4, 3))
            self.register_buffer("first", self.table.detach()[:2])

    save_file({"first": np.ones((2, 3), np.float32)}, tmp_path / "model.safetensors")
    arrays = FileArrays(open_checkpoint(tmp_path))
    with pytest.raises(MismatchError) as caught:
        load_weights(Viewed(), arrays, where="own")
    assert any("table" in problem for problem in caught.value.problems)


def test_weights_that_do_not_fit_a_users_module_are_listed_together(tmp_path):
    tensors = {"layer.weight": np.zeros((3, 4), np.float32), "head": np.zeros(2, np.float32)}
    save_file(tensors, tmp_path / "own.safetensors")
    arrays = FileArrays(open_checkpoint(tmp_path / "own.safetensors"))
    with pytest.raises(MismatchError, match="own does not fit Twice") as refused:
        load_weights(Twice(), arrays, where="own")
    assert list(refused.value.problems) == [
        "layer.bias is missing",
        "head is unexpected",
        "layer.weight: expected [4, 4], found [3, 4]",
    ]
