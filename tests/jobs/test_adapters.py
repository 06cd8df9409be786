"""Adapters from one dialect to the other, from a shell: live outputs, coverage, refusals, provenance."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace

import mlx.core as mx
import numpy as np
import peft
import pytest
import torch
import transformers
from click.testing import CliRunner
from mlx_lm.utils import load_model, quantize_model, save_config, save_model
from safetensors.numpy import load_file, save_file

from weighbridge.cli import main
from weighbridge.converters.adapters import destinations
from weighbridge.verbs.options import DESTINATIONS

LLAMA = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 16}
T5 = {"vocab_size": 64, "d_model": 32, "d_ff": 48, "d_kv": 8, "num_layers": 2, "num_heads": 4}
BERT = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
CASES = {
    "llama": ("llama", LLAMA, {"target_modules": ["q_proj", "v_proj", "down_proj"]}),
    "patterns": (
        "llama",
        LLAMA,
        {
            "target_modules": ["q_proj", "v_proj"],
            "rank_pattern": {"v_proj": 2},
            "alpha_pattern": {"q_proj": 5},
            "use_rslora": True,
        },
    ),
    "dora": ("llama", LLAMA, {"target_modules": ["q_proj", "o_proj"], "use_dora": True}),
    "embedding": ("llama", LLAMA, {"target_modules": ["embed_tokens", "k_proj"]}),
    "experts": (
        "qwen3_moe",
        LLAMA | EXPERTS,
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        },
    ),
    "bert": (
        "bert",
        BERT | {"num_hidden_layers": 2, "max_position_embeddings": 64},
        {"target_modules": ["query", "value"]},
    ),
    "t5": ("t5", T5, {"target_modules": ["q", "v", "wo"]}),
}
CLASSES = {"bert": transformers.AutoModel, "t5": transformers.AutoModelForSeq2SeqLM}
OTHERS = [pytest.param(name, marks=pytest.mark.heavy) for name in CASES if name != "llama"]


def invoke(*arguments, code=0):
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


def made(folder, name):
    """Write base and adapter of the case NAME into FOLDER, by transformers and PEFT."""
    family, sizes, options = CASES[name]
    torch.manual_seed(0)
    auto = CLASSES.get(family, transformers.AutoModelForCausalLM)
    model = auto.from_config(transformers.CONFIG_MAPPING[family](**sizes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:  # norms and biases matter
                parameter.add_(0.1 * torch.randn(parameter.shape))
    model.save_pretrained(folder / "base")
    tuned = peft.get_peft_model(model, peft.LoraConfig(**({"r": 4, "lora_alpha": 6} | options)))
    with torch.no_grad():
        for key, parameter in tuned.named_parameters():
            if "magnitude" in key:
                parameter.mul_(1 + 0.2 * torch.rand(parameter.shape))
            elif "lora_" in key:
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    with warnings.catch_warnings():  # PEFT says that it saves embeddings too
        warnings.simplefilter("ignore", UserWarning)
        tuned.save_pretrained(folder / "peft")
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """Return a folder with a base, its 4-bit sibling, and an adapter of PEFT's."""
    folder = made(tmp_path_factory.mktemp("llama"), "llama")
    model, config = quantize_model(*load_model(folder / "base"), group_size=32, bits=4)
    save_model(folder / "q4", model)
    save_config(config, config_path=folder / "q4" / "config.json")
    invoke("convert", "peft-to-mlx", folder / "peft", folder / "mlx", "--base", folder / "base")
    return folder


def verdict(folder):
    return json.loads((folder / "weighbridge.json").read_text())["verdict"]


def stages(folder):
    return {stage["name"]: stage["status"] for stage in verdict(folder)["stages"]}


def same_tensors(one, other):
    found, wanted = load_file(one), load_file(other)
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", ["llama", *OTHERS])
def test_an_adapter_goes_to_mlx_and_home_and_computes_the_same(tmp_path, name):
    folder = made(tmp_path, name)
    base, written, home = folder / "base", folder / "mlx", folder / "home"
    invoke("convert", "peft-to-mlx", folder / "peft", written, "--base", base)
    invoke("convert", "mlx-to-peft", written, home, "--base", base)
    for result in (written, home):
        assert stages(result)["live"] == "pass"
        figures = verdict(result)["provenance"]["figures"]
        assert 0 < figures["conversion"] <= 1e-6
        assert figures["effect"] > 1e-2
        assert 0 < figures["frameworks"] <= 1e-6


@pytest.mark.parametrize("name", ["llama", pytest.param("experts", marks=pytest.mark.heavy)])
def test_there_and_back_gives_the_same_bytes(tmp_path, name):
    folder = made(tmp_path, name)
    base = folder / "base"
    fast = ("--base", base, "--check", "none")
    invoke("convert", "peft-to-mlx", folder / "peft", folder / "mlx", *fast)
    invoke("convert", "mlx-to-peft", folder / "mlx", folder / "home", *fast)
    same_tensors(
        folder / "home" / "adapter_model.safetensors", folder / "peft" / "adapter_model.safetensors"
    )


def test_that_the_base_has_the_weights_of_the_quantized_sibling_is_proven(llama, tmp_path):
    output = invoke(
        *("convert", "mlx-to-peft", llama / "mlx", tmp_path / "out", "--base", llama / "base"),
        *("--trained-on", llama / "q4"),
    )
    assert "16 of 16 layers identical" in " ".join(output.split())
    assert stages(tmp_path / "out")["base"] == "pass"
    figures = verdict(tmp_path / "out")["provenance"]["figures"]
    assert figures["change of base"] > 100 * figures["conversion"] > 0


def test_an_adapter_goes_home_from_a_quantized_base_alone(llama, tmp_path):
    other = shutil.copytree(llama / "mlx", tmp_path / "mlx")
    (other / "weighbridge.json").unlink()
    invoke("convert", "mlx-to-peft", other, tmp_path / "out", "--base", llama / "q4")
    assert stages(tmp_path / "out") == {
        "base": "skipped",
        "pairs": "pass",
        "layout": "pass",
        "live": "pass",
    }


def test_another_base_than_the_one_recorded_is_refused(llama, tmp_path):
    other = shutil.copytree(llama / "base", tmp_path / "other")
    tensors = load_file(other / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.weight"] *= np.float32(1.5)
    save_file(tensors, other / "model.safetensors", metadata={"format": "pt"})
    output = invoke(
        "convert", "mlx-to-peft", llama / "mlx", tmp_path / "out", "--base", other, code=3
    )
    assert "of 6 weights of the base are not those" in output
    assert not (tmp_path / "out").exists()


def test_a_quantized_model_that_is_no_sibling_is_refused(llama, tmp_path):
    torch.manual_seed(7)
    config = transformers.CONFIG_MAPPING["llama"](**LLAMA)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "other")
    invoke(
        *("convert", "mlx-to-peft", llama / "mlx", tmp_path / "out", "--base", tmp_path / "other"),
        *("--trained-on", llama / "q4"),
        code=3,
    )
    assert not (tmp_path / "out").exists()


def spoiled(adapter, target, change):
    """Copy ADAPTER to TARGET, its tensors CHANGEd."""
    shutil.copytree(adapter, target)
    tensors = load_file(target / "adapters.safetensors")
    change(tensors)
    save_file(tensors, target / "adapters.safetensors")
    return target


def drop(tensors):
    tensors.pop("model.layers.0.self_attn.q_proj.lora_b")


def poison(tensors):
    tensors["model.layers.1.self_attn.v_proj.lora_a"][0, 0] = np.nan


def narrow(tensors):
    for half, axis in (("lora_a", 1), ("lora_b", 0)):
        name = f"model.layers.0.self_attn.q_proj.{half}"
        tensors[name] = np.ascontiguousarray(tensors[name].take(range(3), axis))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop, "model.layers.0.self_attn.q_proj.lora_b is missing"),
        (poison, "model.layers.1.self_attn.v_proj"),
        (narrow, "rank 3, but adapter_config.json says 4"),
    ],
)
@pytest.mark.parametrize("verb", ["convert", "merge"])
def test_a_broken_adapter_is_refused_and_nothing_is_written(llama, tmp_path, change, said, verb):
    broken = spoiled(llama / "mlx", tmp_path / "broken", change)
    out, base = tmp_path / "out", llama / "base"
    arguments = {
        "convert": ("convert", "mlx-to-peft", broken, out, "--base", base),
        "merge": ("merge", base, broken, out),
    }
    assert said in invoke(*arguments[verb], code=3)
    assert not out.exists()


def test_alpha_of_zero_is_refused(llama, tmp_path):
    adapter = shutil.copytree(llama / "peft", tmp_path / "peft")
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"lora_alpha": 0}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    output = invoke("merge", llama / "base", adapter, tmp_path / "out", code=3)
    assert "lora_alpha" in output


def test_the_wrong_direction_names_the_right_one(llama, tmp_path):
    output = invoke(
        "convert", "peft-to-mlx", llama / "mlx", tmp_path / "out", "--base", llama / "base", code=3
    )
    assert "mlx-to-peft" in output


def test_the_base_is_the_one_that_the_adapter_names(llama, tmp_path):
    unrecorded = shutil.copytree(llama / "mlx", tmp_path / "adapter")
    (unrecorded / "weighbridge.json").unlink()
    words = ("convert", "mlx-to-peft", "--check", "none", unrecorded, tmp_path / "out")
    edited(unrecorded, lambda config: config.update(model=str(llama / "base")))
    invoke(*words)
    same_tensors(
        tmp_path / "out/adapter_model.safetensors", llama / "peft/adapter_model.safetensors"
    )
    edited(unrecorded, lambda config: config.update(model="gone"))
    assert "names gone, which is not here; say which" in invoke(*words, "--force", code=3)
    edited(unrecorded, lambda config: config.pop("model"))
    assert "names no base; say which model it is for: --base" in invoke(*words, "--force", code=3)


def edited(folder, change):
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text())
    change(config)
    file.write_text(json.dumps(config))


def test_the_last_line_is_the_command_to_run_next(llama, tmp_path):
    output = invoke(
        *("convert", "mlx-to-peft", llama / "mlx", tmp_path / "out", "--base", llama / "base"),
        *("--for", "vllm", "--check", "none"),
    )
    assert output.splitlines()[-1] == (
        f"Next: vllm serve {llama / 'base'} --enable-lora --max-lora-rank 8"
        f" --lora-modules adapter={tmp_path / 'out'}"
    )


def test_the_command_line_knows_every_destination():
    assert set(DESTINATIONS) == set(destinations.DESTINATIONS)


def test_a_dry_run_lists_every_update_and_writes_nothing(llama, tmp_path):
    output = invoke(
        *("convert", "mlx-to-peft", llama / "mlx", tmp_path / "out", "--base", llama / "base"),
        "--dry-run",
    )
    assert output.count(": rank 4, scale 1.5") == 6
    assert not (tmp_path / "out").exists()


TENSORS = {"mlx": "adapters.safetensors", "peft": "adapter_model.safetensors"}
WAYS = {"mlx": ("peft-to-mlx", "peft"), "peft": ("mlx-to-peft", "mlx")}


@pytest.mark.parametrize("to", WAYS)
def test_a_fault_in_the_written_file_is_found_by_its_values(llama, tmp_path, monkeypatch, to):
    from weighbridge.jobs import adapters

    write = adapters.write_dialect

    def wrong(carried, request, folder):
        write(carried, request, folder)
        file = folder / TENSORS[to]
        tensors = load_file(file)
        name = next(name for name in tensors if "q_proj.lora_" in name)
        tensors[name] = np.ascontiguousarray(tensors[name][::-1])
        save_file(tensors, file)

    monkeypatch.setattr(adapters, "write_dialect", wrong)
    verb, source = WAYS[to]
    base = ("--base", llama / "base")
    invoke("convert", verb, llama / source, tmp_path / "out", *base, code=1)
    assert not (tmp_path / "out").exists()
    assert stages(tmp_path / "out.rejected")["pairs"] == "fail"


@pytest.mark.parametrize("to", WAYS)
def test_a_fault_of_the_map_itself_is_found_by_the_dialects_own_loader(
    llama, tmp_path, monkeypatch, to
):
    """Reading back goes through the same map, so that only running shows it."""
    from weighbridge.converters.planning.adapter_names import Side

    def turned(carry):
        def wrong(self, updates, saved):
            updates, saved = carry(self, updates, saved)
            if self.framework == ("torch" if to == "peft" else "mlx"):
                updates = {
                    name: replace(it, b=it.b[::-1]) if "q_proj" in name else it
                    for name, it in updates.items()
                }
            return updates, saved

        return wrong

    monkeypatch.setattr(Side, "forth", turned(Side.forth))
    monkeypatch.setattr(Side, "back", turned(Side.back))
    verb, source = WAYS[to]
    base = ("--base", llama / "base")
    invoke("convert", verb, llama / source, tmp_path / "out", *base, code=1)
    found = stages(tmp_path / "out.rejected")
    assert (found["pairs"], found["live"]) == ("pass", "fail")


def test_a_base_with_a_number_that_is_none_proves_nothing(llama, tmp_path):
    base = shutil.copytree(llama / "base", tmp_path / "base")
    tensors = load_file(base / "model.safetensors")
    tensors["model.norm.weight"][0] = np.nan
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    invoke("convert", "peft-to-mlx", llama / "peft", tmp_path / "out", "--base", base, code=4)


def test_a_strong_adapter_is_allowed_the_rounding_that_it_magnifies(llama, tmp_path):
    adapter = shutil.copytree(llama / "peft", tmp_path / "peft")
    config = json.loads((adapter / "adapter_config.json").read_text()) | {"lora_alpha": 80}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    invoke("convert", "peft-to-mlx", adapter, tmp_path / "out", "--base", llama / "base")


def test_one_of_several_checkpoints_of_a_run_is_converted_as_itself(llama, tmp_path):
    run = shutil.copytree(llama / "mlx", tmp_path / "run")
    tensors = load_file(run / "adapters.safetensors")
    halved = {name: array * np.float32(0.5) for name, array in tensors.items()}
    save_file(halved, run / "0000100_adapters.safetensors")
    one = run / "0000100_adapters.safetensors"
    invoke("convert", "mlx-to-peft", one, tmp_path / "out", "--base", llama / "base")
    found = load_file(tmp_path / "out" / "adapter_model.safetensors")
    whole = load_file(llama / "peft" / "adapter_model.safetensors")
    for name, array in whole.items():
        np.testing.assert_array_equal(found[name], array * np.float32(0.5))


def test_an_adapter_of_the_old_examples_is_converted_but_nobody_vouches(llama, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    tensors = load_file(llama / "mlx" / "adapters.safetensors")
    np.savez(folder / "adapters.npz", **tensors)
    output = invoke(
        "convert", "mlx-to-peft", folder, tmp_path / "out", "--base", llama / "base", code=4
    )
    assert "no loader of npz adapters" in " ".join(output.split())
    assert stages(tmp_path / "out")["live"] == "pass"


def test_a_tied_embedding_is_refused_by_name(llama, tmp_path):
    base = shutil.copytree(llama / "base", tmp_path / "base")
    config = json.loads((base / "config.json").read_text()) | {"tie_word_embeddings": True}
    (base / "config.json").write_text(json.dumps(config))
    tensors = load_file(base / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    adapter = shutil.copytree(llama / "mlx", tmp_path / "mlx")
    (adapter / "weighbridge.json").unlink()
    rows = {
        "model.embed_tokens.lora_a": np.ones((64, 4), np.float32),
        "model.embed_tokens.lora_b": np.ones((4, 64), np.float32),
    }
    save_file(rows, adapter / "adapters.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["lora_parameters"]["keys"] = ["model.embed_tokens"]
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    output = invoke(
        *("convert", "mlx-to-peft", adapter, tmp_path / "out", "--base", base, "--check", "none"),
        code=3,
    )
    assert "tied" in output


def to_mlx(source, target):
    invoke("convert", "torch-to-mlx", source, target, "--check", "none")
    return target


def other_base(llama, folder):
    """Return a model like llama's base, of another seed."""
    torch.manual_seed(7)
    config = transformers.CONFIG_MAPPING["llama"](**LLAMA)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_what_was_recorded_in_the_other_framework_counts(llama, tmp_path):
    adapter, right = llama / "mlx", to_mlx(llama / "base", tmp_path / "right")
    wrong = to_mlx(other_base(llama, tmp_path / "other"), tmp_path / "wrong")
    fast = ("--check", "quick")
    invoke("convert", "mlx-to-peft", adapter, tmp_path / "a", "--base", right, *fast)
    assert stages(tmp_path / "a")["base"] == "pass"
    invoke("convert", "mlx-to-peft", adapter, tmp_path / "b", "--base", wrong, *fast, code=3)
    assert not (tmp_path / "b").exists()


def test_a_proven_sibling_does_not_stand_in_for_what_was_recorded(llama, tmp_path):
    other = other_base(llama, tmp_path / "other")
    model, config = quantize_model(*load_model(other), group_size=32, bits=4)
    save_model(tmp_path / "q4", model)
    save_config(config, config_path=tmp_path / "q4" / "config.json")
    invoke(
        *("convert", "mlx-to-peft", llama / "mlx", tmp_path / "out", "--base", other),
        *("--trained-on", tmp_path / "q4"),
        code=3,
    )


def test_live_on_mlx_is_what_mlx_lm_computes(llama):
    """The stage "live" rests on this runner; here mlx-lm alone says what the adapter does."""
    from mlx_lm.tuner.utils import load_adapters

    model, _ = load_model(llama / "base")
    bare = np.array(model(mx.array([[1, 2, 3]])))
    load_adapters(model, str(llama / "mlx"))
    tuned = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(llama / "base"), llama / "peft"
    )
    with torch.no_grad():
        wanted = tuned(torch.tensor([[1, 2, 3]])).logits.numpy()
    found = np.array(model(mx.array([[1, 2, 3]])))
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(bare - wanted) > 1e-2 * np.linalg.norm(wanted)


def test_an_adapter_recorded_for_the_original_merges_into_its_quantized_sibling(llama, tmp_path):
    """The record names the original; naming that one too is proof enough."""
    ways = ("--original", llama / "base")
    plain = ("merge", llama / "q4", llama / "mlx", tmp_path / "out", "--dry-run")
    assert "or another base" not in invoke(*plain, *ways)
    assert "or another base" in invoke(*plain)


@pytest.mark.parametrize("way", [["--promote"], ["--original", "elsewhere"]])
def test_what_is_for_quantized_bases_is_refused_on_a_dense_one(llama, tmp_path, way):
    way = [str(llama / "base") if item == "elsewhere" else item for item in way]
    output = invoke("merge", llama / "base", llama / "mlx", tmp_path / "out", *way, code=3)
    assert "does not apply" in output


def test_a_merge_into_a_quantized_base_that_nobody_recorded_does_not_pass(llama, tmp_path):
    ways = ("--promote",)
    invoke("merge", llama / "q4", llama / "mlx", tmp_path / "out", *ways, code=4)
    assert [name for name, it in stages(tmp_path / "out").items() if it == "unverified"] == ["base"]
