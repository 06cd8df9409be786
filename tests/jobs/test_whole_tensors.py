"""Whole tensors of an adapter are rounded once, measured, and compared with what was trained."""

from __future__ import annotations

import json
import shlex

import ml_dtypes
import mlx.core as mx
import pytest
import torch
from click.testing import CliRunner
from mlx_lm import utils
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from weighbridge import jobs
from weighbridge.cli import main
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.errors import MismatchError, UnsupportedError
from weighbridge.jobs.converting import written

HEAD = "lm_head.weight"
LLAMA = LlamaConfig(
    vocab_size=160, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip
LARGE, SMALL = 0.05, 1e-5  # beside weights of 0.02, in bfloat16


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(LLAMA).to(torch.bfloat16).save_pretrained(folder)
    return folder


def trained_head(base, size):
    """Return the head of BASE in float32, every element of it moved by about SIZE."""
    head = load_file(base / "model.safetensors")[HEAD].float()
    return head + size * torch.randn(head.shape, generator=torch.Generator().manual_seed(3))


def narrow(head):
    return head.numpy().astype(ml_dtypes.bfloat16).tobytes()


def by_peft(base, folder, head):
    """Write HEAD as PEFT does, beside an update of a projection."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    live = get_peft_model(model, config)
    with torch.no_grad():
        for name, tensor in live.named_parameters():
            if "lora_B" in name:
                tensor.normal_(std=0.3)
            if "modules_to_save" in name:
                tensor.copy_(head)
    live.save_pretrained(folder)


def by_mlx(base, folder, head):
    """Write HEAD as mlx-lm does after a full fine-tune."""
    folder.mkdir()
    config = {"fine_tune_type": "full", "num_layers": 1, "lora_parameters": None}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file({HEAD: head}, folder / "adapters.safetensors", metadata={"format": "mlx"})


WRITERS = pytest.mark.parametrize("write", [by_peft, by_mlx])


@WRITERS
def test_a_tensor_that_is_rounded_away_is_refused_and_leaves_nothing(write, base, tmp_path):
    write(base, tmp_path / "a", trained_head(base, SMALL))
    with pytest.raises(MismatchError, match="would be rounded away") as caught:
        jobs.merge(str(base), tmp_path / "a", tmp_path / "merged")
    assert caught.value.problems[0].startswith(f"{HEAD}: its change is ")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_what_is_rounded_away_by_force_does_not_pass(base, tmp_path):
    by_mlx(base, tmp_path / "a", trained_head(base, SMALL))
    options = jobs.Options(force=True)
    outcome = jobs.merge(str(base), tmp_path / "a", tmp_path / "merged", options=options)
    assert outcome.status == "UNVERIFIED"
    said = outcome.verdict.stage("fingerprints").detail
    assert said.endswith("1 of 1 updates are rounded away, which --force allowed")


@WRITERS
def test_a_tensor_that_survives_is_rounded_once_measured_and_passes(write, base, tmp_path):
    head = trained_head(base, LARGE)
    write(base, tmp_path / "a", head)
    outcome = jobs.merge(str(base), tmp_path / "a", tmp_path / "merged")
    made = load_file(tmp_path / "merged" / "model.safetensors")[HEAD]
    assert torch.equal(made, head.to(torch.bfloat16))
    assert outcome.verdict.status == "PASS"
    told = outcome.facts["merged"][HEAD]
    own = load_file(base / "model.safetensors")[HEAD].double().ravel()
    wanted, real = head.double().ravel() - own, made.double().ravel() - own
    assert told["gain"] == pytest.approx(float(real @ wanted / (wanted @ wanted)), rel=1e-12)
    assert told["size"] == head.numel()


@WRITERS
def test_numbers_that_the_dtype_of_the_base_does_not_have_are_refused(write, base, tmp_path):
    head = trained_head(base, LARGE)
    head[3, 4] = 3.4e38  # infinite in bfloat16
    write(base, tmp_path / "a", head)
    with pytest.raises(UnsupportedError, match=rf"do not fit .* {HEAD} \(bfloat16\)"):
        jobs.merge(str(base), tmp_path / "a", tmp_path / "merged")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_live_adapter_keeps_what_was_trained(base, tmp_path):
    """What the check compares with is not rounded, or a merge would be held against itself."""
    head = trained_head(base, LARGE)
    by_mlx(base, tmp_path / "a", head)
    live = open_model(f"{base}+{tmp_path / 'a'}")
    assert live.checkpoint.read(HEAD).tobytes() == head.numpy().tobytes()
    settled, survival = written(live)  # as it is written
    assert settled.checkpoint.read(HEAD).tobytes() == narrow(head)
    assert list(survival) == [HEAD]


@pytest.fixture(scope="module")
def coded(base, tmp_path_factory):
    """Return BASE in 4 bits, as mlx-lm quantizes it: every matrix, the head among them."""
    folder = tmp_path_factory.mktemp("coded")
    model, config = utils.load_model(base)
    model, config = utils.quantize_model(model, config, group_size=16, bits=4, mode="nvfp4")
    utils.save_model(folder, model)
    utils.save_config(config, config_path=folder / "config.json")
    return folder


def test_a_whole_tensor_is_stored_in_codes_as_the_base_stores_it(base, coded, tmp_path):
    """Its codes are MLX's own for what was trained, and no tensor but those of the adapter changes."""
    head = trained_head(base, LARGE)
    by_peft(base, tmp_path / "a", head)
    done = verb("merge", coded, tmp_path / "a", tmp_path / "merged")
    assert done.exit_code == 0, done.output
    own, made = (mx.load(str(it / "model.safetensors")) for it in (coded, tmp_path / "merged"))
    codes = mx.quantize(mx.array(head.numpy()), group_size=16, bits=4, mode="nvfp4")
    for part, array in zip(("weight", "scales"), codes, strict=True):
        assert mx.array_equal(made[f"lm_head.{part}"], array)
    changed = {name.rpartition(".")[0] for name in own if not mx.array_equal(own[name], made[name])}
    assert changed == {"lm_head", "model.layers.0.self_attn.q_proj"}


def test_a_whole_tensor_that_codes_would_lose_is_refused_with_commands_that_run(
    base, coded, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    by_peft(base, tmp_path / "a", trained_head(base, 5e-4))
    done = verb("merge", coded, "a", "merged")
    assert done.exit_code == 3
    said = " ".join(done.output.split())
    assert "would round the adapter away in 1 of 2 layers" in said
    command = said.partition("PyTorch: weighbridge ")[2].partition(")")[0]
    assert verb(*shlex.split(command)).exit_code == 0


@pytest.mark.parametrize("wide", ["norm", "q_proj"])
def test_what_a_base_in_sixteen_bits_keeps_in_float32_stays_so_under_a_merge(base, wide, tmp_path):
    """Reference and result round the sums alone: each to the dtype that its weight has in the base."""
    mixed = tmp_path / "mixed"
    model = AutoModelForCausalLM.from_pretrained(base)
    for name, parameter in model.named_parameters():
        if wide in name:
            parameter.data = parameter.data.float() * (1 + 0.1 * torch.rand(parameter.shape))
    model.save_pretrained(mixed)
    by_peft(mixed, tmp_path / "a", trained_head(base, LARGE))
    done = verb("merge", mixed, tmp_path / "a", tmp_path / "merged")
    assert done.exit_code == 0, done.output


def verb(*words):
    return CliRunner().invoke(main, list(map(str, words)))
