"""On models of transformers, an adapter of PEFT's means here what it means there, both ways."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from weighbridge.converters.adapters import fit, read_adapter, write_peft
from weighbridge.errors import MismatchError

from .models import build, config_in, loaded, run, trained

pytestmark = pytest.mark.filterwarnings("ignore")

GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
CASES = {
    "attention": ("llama", {"target_modules": ["q_proj", "v_proj"]}),
    "patterns": (
        "llama",
        {"target_modules": ["q_proj", "o_proj", "down_proj"], "use_rslora": True}
        | {"rank_pattern": {"o_proj": 2, "layers.1.mlp.down_proj": 5}}
        | {"alpha_pattern": {"layers.0.self_attn.q_proj": 3}},
    ),
    "rank as wide as the weight": ("llama", {"target_modules": ["q_proj", "k_proj"], "r": 16}),
    "DoRA": ("llama", {"target_modules": "all-linear", "use_dora": True}),
    "embedding": ("llama", {"target_modules": ["embed_tokens", "q_proj"]}),
    "embedding as square as can be": (
        "llama",
        {"target_modules": ["embed_tokens", "lm_head"], "vocab": 16},
    ),
    "whole modules": (
        "llama",
        {"target_modules": ["q_proj"], "modules_to_save": ["norm", "lm_head"]},
    ),
    "experts": ("qwen3_moe", {"target_parameters": [DOWN, GATE_UP], "target_modules": []}),
    "half of the experts": ("qwen3_moe", {"target_parameters": [GATE_UP], "target_modules": []}),
    "other half of the experts": (
        "qwen3_moe",
        {"target_parameters": [DOWN], "target_modules": ["q_proj"]},
    ),
    "experts with ranks": (
        "qwen3_moe",
        {"target_parameters": [GATE_UP, DOWN], "target_modules": ["q_proj"]}
        | {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"gate_up_proj": 5}},
    ),
    "square experts": (
        "qwen3_moe",
        {"target_parameters": [DOWN], "target_modules": [], "moe_intermediate_size": 16},
    ),
    "router": ("qwen3_moe", {"target_parameters": ["mlp.gate.weight"], "target_modules": []}),
    "shared experts": (
        "qwen2_moe",
        {"target_parameters": [GATE_UP, DOWN]}
        | {"target_modules": ["q_proj", "shared_expert_gate"]},
    ),
    "experts that lie the other way": (
        "gpt_oss",
        {"target_parameters": [GATE_UP, DOWN], "target_modules": ["q_proj"]},
    ),
    "square experts that lie the other way": (
        "gpt_oss",
        {"target_parameters": [DOWN], "target_modules": [], "intermediate_size": 16},
    ),
    "Conv1D": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "Conv1D beside linear": (
        "gpt2",
        {"target_modules": ["attn.c_proj", "lm_head"], "tie_word_embeddings": False},
    ),
    "BERT": ("bert", {"target_modules": ["query", "dense"], "modules_to_save": ["classifier"]}),
    "classification": ("bert", {"target_modules": ["query"], "task_type": "SEQ_CLS"}),
    "T5": ("t5", {"target_modules": ["q", "wi"]}),
}
MODEL_FIELDS = {"moe_intermediate_size", "intermediate_size", "tie_word_embeddings"}


def case(name: str):
    family, options = CASES[name]
    changes = {key: value for key, value in options.items() if key in MODEL_FIELDS}
    changes |= {"vocab_size": options["vocab"]} if "vocab" in options else {}
    return build(family, **changes), {
        key: value for key, value in options.items() if key not in MODEL_FIELDS | {"vocab"}
    }


HEAVY = {"rank as wide as the weight", "other half of the experts", "classification", "router"}
HEAVY |= {"square experts that lie the other way", "half of the experts", "BERT"}
MARKED = [pytest.param(name, marks=[pytest.mark.heavy] * (name in HEAVY)) for name in CASES]


@pytest.fixture(params=MARKED, scope="module")
def training(request, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("case")
    base, options = case(request.param)
    tuned = trained(base, tmp_path / "peft", **options)
    adapter = fit(read_adapter(tmp_path / "peft"), base.headers, base.kinds)
    return base, tuned, adapter, tmp_path


def merged(base, adapter) -> dict[str, torch.Tensor]:
    """Return the weights of BASE with ADAPTER in, in float64, by nothing but the definition."""
    weights = dict(base.weights)
    weights |= {name: torch.from_numpy(np.array(array)) for name, array in adapter.saved.items()}
    for name, update in adapter.updates.items():
        weights[name] = torch.from_numpy(update.applied_to(weights[name].numpy())).float()
    return weights


def test_the_weights_are_those_that_peft_merges_and_so_are_the_outputs(training):
    base, tuned, adapter, _ = training
    ours = merged(base, adapter)
    model = copy.deepcopy(base.model)
    model.load_state_dict(ours)
    live, before = run(tuned), run(base.model)
    assert (run(model) - live).norm() < 1e-5 * live.norm()
    assert (before - live).norm() > 1e-3 * live.norm()
    theirs = copy.deepcopy(tuned).merge_and_unload().state_dict()
    assert set(theirs) == set(ours)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=5e-6)


def test_what_is_written_is_loaded_by_peft_and_computes_the_same(training):
    base, tuned, adapter, folder = training
    changed = {
        name: array
        for name, array in adapter.saved.items()
        if not np.array_equal(array, base.weights[name].numpy())
    }
    write_peft(folder / "new", adapter.updates, kinds=base.kinds, saved=changed, base="base")
    live = run(tuned)
    assert (run(loaded(base, folder / "new")) - live).norm() < 2e-6 * live.norm()


def test_what_is_written_is_read_back_bit_for_bit(training):
    base, _, adapter, folder = training
    write_peft(folder / "new", adapter.updates, kinds=base.kinds, saved=adapter.saved)
    again = fit(read_adapter(folder / "new"), base.headers, base.kinds)
    assert set(again.updates) == set(adapter.updates)
    for name, update in adapter.updates.items():
        found = again.updates[name]
        assert np.array_equal(found.a, update.a)
        assert np.array_equal(found.b, update.b)
        assert (found.scale, found.rank) == (update.scale, update.rank)
        assert (found.magnitude is None) == (update.magnitude is None)
    old, new = (load_file(folder / at / "adapter_model.safetensors") for at in ("peft", "new"))
    assert set(new) == set(old)
    assert all(torch.equal(new[name], old[name]) for name in old)


def test_the_file_may_list_its_tensors_in_any_order(tmp_path):
    base, options = case("experts with ranks")
    trained(base, tmp_path, **options)
    expected = fit(read_adapter(tmp_path), base.headers, base.kinds).updates
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    renamed = dict(sorted(tensors.items(), key=lambda item: hash(item[0])))
    save_file(renamed, tmp_path / "adapter_model.safetensors")
    shuffled = dict(sorted(base.headers.items()))  # as a checkpoint lists them, down before gate_up
    found = fit(read_adapter(tmp_path), shuffled, base.kinds).updates
    assert all(np.array_equal(found[name].b, update.b) for name, update in expected.items())


def test_a_dense_layer_that_peft_takes_for_experts_is_targeted_by_its_parameter(tmp_path):
    base = build("qwen2_moe")
    names = [
        name
        for name in base.weights
        if "shared_expert." in name and name.removesuffix(".weight") in base.kinds
    ]
    source = build("llama")
    trained(source, tmp_path / "llama", target_modules=["gate_proj"])
    update = next(iter(read_adapter(tmp_path / "llama").updates.values()))
    generator = np.random.default_rng(0)
    updates = {}
    for name in names:
        out, columns = base.weights[name].shape
        a = generator.normal(size=(update.rank, columns)).astype(np.float32)
        b = generator.normal(size=(out, update.rank)).astype(np.float32)
        updates[name] = type(update)(a, b, 0.5)
    write_peft(tmp_path / "new", updates, kinds=base.kinds)
    assert config_in(tmp_path / "new")["target_modules"] == []
    tuned = loaded(base, tmp_path / "new")
    theirs = tuned.merge_and_unload().state_dict()
    for name, it in updates.items():
        wanted = it.applied_to(base.weights[name].numpy())
        np.testing.assert_allclose(theirs[name].numpy(), wanted, rtol=0, atol=1e-5)


def test_a_tied_embedding_is_refused(tmp_path):
    base = build("llama", tie_word_embeddings=True)
    trained(base, tmp_path, target_modules=["embed_tokens", "q_proj"])
    tied = frozenset({"lm_head.weight", "model.embed_tokens.weight"})
    with pytest.raises(MismatchError, match=r"model.embed_tokens.weight is tied"):
        fit(read_adapter(tmp_path), base.headers, base.kinds, tied=tied)


def test_one_missing_tensor_of_any_is_told(tmp_path):
    base, options = case("experts")
    trained(base, tmp_path, **options)
    file = tmp_path / "adapter_model.safetensors"
    tensors = load_file(file)
    for lost in tensors:
        save_file({name: it for name, it in tensors.items() if name != lost}, file)
        with pytest.raises(MismatchError) as caught:
            fit(read_adapter(tmp_path), base.headers, base.kinds)
        assert any(lost.rpartition(".lora")[0] in problem for problem in caught.value.problems)


def test_a_missing_layer_of_experts_is_told_by_its_parameter(tmp_path):
    base, options = case("experts")
    trained(base, tmp_path, **options)
    file = tmp_path / "adapter_model.safetensors"
    save_file({name: it for name, it in load_file(file).items() if "layers.1" not in name}, file)
    with pytest.raises(MismatchError) as caught:
        fit(read_adapter(tmp_path), base.headers, base.kinds)
    assert caught.value.problems == tuple(
        f"model.layers.1.mlp.experts.{leaf} has no update, but adapter_config.json names it"
        for leaf in ("down_proj", "gate_up_proj")
    )
    assert "is partial: 4 updates expected, 2 found" in str(caught.value)


def test_a_missing_whole_module_is_told(tmp_path):
    base, options = case("BERT")
    trained(base, tmp_path, **options)
    file = tmp_path / "adapter_model.safetensors"
    save_file({name: it for name, it in load_file(file).items() if "bias" not in name}, file)
    with pytest.raises(MismatchError) as caught:
        fit(read_adapter(tmp_path), base.headers, base.kinds)
    assert caught.value.problems == (
        "classifier.bias is named in modules_to_save, but not in the file",
    )


def test_a_square_weight_that_could_be_a_conv1d_is_refused_without_its_kind(tmp_path):
    base = build("gpt2")
    trained(base, tmp_path, target_modules=["attn.c_proj"])
    with pytest.raises(MismatchError, match="is square, and nothing says whether it is transposed"):
        fit(read_adapter(tmp_path), base.headers)


def test_shapes_decide_where_nobody_can_tell_the_kinds(tmp_path):
    base = build("gpt2")
    trained(base, tmp_path, target_modules=["c_attn", "c_fc"])
    known = fit(read_adapter(tmp_path), base.headers, base.kinds).updates
    found = fit(read_adapter(tmp_path), base.headers).updates
    assert all(np.array_equal(found[name].b, update.b) for name, update in known.items())


def test_an_adapter_that_is_fitted_is_not_turned_again(tmp_path):
    base = build("llama")
    trained(base, tmp_path, target_modules=["embed_tokens"])
    once = fit(read_adapter(tmp_path), base.headers, base.kinds)
    twice = fit(once, base.headers, base.kinds)
    assert twice.updates["model.embed_tokens.weight"] is once.updates["model.embed_tokens.weight"]


def test_an_adapter_of_an_older_peft_is_laid_as_its_shapes_say(tmp_path):
    base, options = case("experts")
    trained(base, tmp_path, **options)
    fitted = fit(read_adapter(tmp_path), base.headers, base.kinds)
    turned = {name: update.transposed() for name, update in fitted.updates.items()}
    experts = {path: "experts" for path in base.kinds if "experts" in path}
    write_peft(tmp_path / "old", turned, kinds=experts)  # PEFT 0.17: out before in, whatever lies
    config = config_in(tmp_path / "old") | {"peft_version": "0.17.1"}
    (tmp_path / "old" / "adapter_config.json").write_text(json.dumps(config))
    found = fit(read_adapter(tmp_path / "old"), base.headers, base.kinds).updates
    for name, update in fitted.updates.items():
        assert np.array_equal(found[name].delta(), update.delta())
