"""PEFT's adapters mean here what PEFT makes of them; what is not read is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft.tuners.tuners_utils import check_target_module_exists
from peft.utils.other import get_pattern_key

from weighbridge.converters.adapters import fit, merge, read_adapter
from weighbridge.converters.adapters.peft.fields import ADVICE, HISTORY, READ, refused
from weighbridge.converters.adapters.peft.targets import targeted, terms_of
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.common.dtypes import CODE
from weighbridge.errors import BadInputError, MismatchError, UnsupportedError


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.query = torch.nn.Linear(6, 10)
        self.value = torch.nn.Linear(10, 6)


class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.embed = torch.nn.Embedding(9, 6)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer.value(torch.tanh(layer.query(x)))
        return x


def train(folder, **options):
    """Save an adapter as PEFT does, of random numbers; return base weights and merged ones."""
    torch.manual_seed(0)
    model = Tiny().eval()
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    options = {"r": 4, "lora_alpha": 6, "target_modules": ["query", "value"]} | options
    tuned = peft.get_peft_model(model, peft.LoraConfig(**options))
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "lora_" in name:
                noise = torch.randn(parameter.shape)
                parameter.copy_(1 + 0.1 * noise.abs() if "magnitude" in name else 0.3 * noise)
    tuned.save_pretrained(folder)
    return base, copy.deepcopy(tuned).merge_and_unload().state_dict()


READABLE = {
    "plain": {},
    "one target": {"target_modules": ["layers.1.query"]},
    "rsLoRA": {"use_rslora": True},
    "ranks": {"rank_pattern": {"value": 2, "layers.0.query": 3}},
    "alphas": {"alpha_pattern": {"layers.1.value": 1, "query": 32}},
    "all patterns": {
        "rank_pattern": {"query": 2},
        "alpha_pattern": {r"layers\.\d+\.query": 5},
        "use_rslora": True,
    },
    "DoRA": {"use_dora": True},
    "regular expression": {"target_modules": r".*\.1\.(query|value)"},
    "one layer": {"layers_to_transform": [1], "layers_pattern": "layers"},
    "all linear": {"target_modules": "all-linear"},
    "dropout": {"lora_dropout": 0.1},
    "gaussian": {"init_lora_weights": "gaussian"},
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", READABLE)
def test_the_merge_is_the_one_that_peft_makes(case, tmp_path):
    base, expected = train(tmp_path, **READABLE[case])
    adapter = read_adapter(tmp_path)
    arrays = {name: tensor.numpy() for name, tensor in base.items()}
    adapter = fit(adapter, {name: Header(CODE[a.dtype], a.shape) for name, a in arrays.items()})
    assert adapter.dialect == "peft"
    changed = {name for name in base if not torch.equal(base[name], expected[name])}
    assert set(adapter.updates) == changed
    for name, update in adapter.updates.items():
        merged, survival = merge(arrays[name], update)
        np.testing.assert_allclose(merged, expected[name].numpy(), rtol=0, atol=2e-6)
        assert np.abs(merged - arrays[name]).max() > 0.01
        assert survival.cosine > 0.999999


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_adapter_in_a_pickle_of_tensors_is_read_too(tmp_path):
    train(tmp_path)
    expected = read_adapter(tmp_path).updates
    file = tmp_path / "adapter_model.safetensors"
    from safetensors.torch import load_file

    torch.save(load_file(file), tmp_path / "adapter_model.bin")
    file.unlink()
    found = read_adapter(tmp_path).updates
    assert list(found) == list(expected)
    assert all((found[name].b == update.b).all() for name, update in expected.items())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_lost_half_is_told_by_its_name_in_the_file(tmp_path):
    train(tmp_path)
    from safetensors.torch import load_file, save_file

    tensors = load_file(file := tmp_path / "adapter_model.safetensors")
    lost = "base_model.model.layers.0.query.lora_B.weight"
    del tensors[lost]
    save_file(tensors, file)
    with pytest.raises(MismatchError) as caught:
        read_adapter(tmp_path)
    assert caught.value.problems == (f"{lost} is missing",)


PLAIN = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["query"]}
# A value that sets a field; every one of these is refused.
SET = {
    "bias": "all",
    "lora_bias": True,
    "layer_replication": [[0, 2]],
    "trainable_token_indices": [1],
    "alora_invocation_tokens": [1],
    "use_qalora": True,
    "use_bdlora": {"x": 1},
    "arrow_config": {"x": 1},
    "kasa_config": {"x": 1},
    "velora_config": {"x": 1},
    "monteclora_config": {"x": 1},
    "ensure_weight_tying": True,
    "init_lora_weights": "pissa_niter_4",
    "peft_type": "LOHA",
    "a_field_of_the_future": 1,
}
CHANGING = ("pissa", "olora", "loftq", "corda", "lora_ga", "mica")  # initialisations


def refusal(folder, **fields) -> str:
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | fields))
    (folder / "adapter_model.safetensors").touch()
    with pytest.raises(UnsupportedError) as caught:
        read_adapter(folder)
    return str(caught.value)


@pytest.mark.parametrize("field", SET)
def test_every_other_kind_is_refused_by_name_with_what_to_do(field, tmp_path):
    said = refusal(tmp_path, **{field: SET[field]})
    assert f"{field}={SET[field]} (" in said
    assert "merge" in said or "save it again" in said or "only PEFT can run it" in said
    assert "\n" not in said


@pytest.mark.parametrize("value", CHANGING)
def test_an_initialisation_that_moved_the_base_is_refused(value, tmp_path):
    assert f"init_lora_weights={value} (it moved" in refusal(tmp_path, init_lora_weights=value)


def test_several_refused_fields_are_told_together(tmp_path):
    said = refusal(tmp_path, bias="all", use_qalora=True)
    assert "bias=all" in said
    assert "use_qalora=True" in said


def test_every_default_of_peft_is_accepted():
    defaults = json.loads(json.dumps(peft.LoraConfig().to_dict(), default=list))
    assert refused(defaults) == {}


def test_every_field_of_peft_is_read_or_history_or_refused_by_name():
    fields = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert fields >= READ | HISTORY  # none is spelled wrong here
    assert not READ & HISTORY
    for field in fields - READ - HISTORY:
        assert field in SET, f"{field}: new in PEFT; say here what becomes of it"
        assert list(refused(PLAIN | {field: SET[field]})) == [field]
        assert field in ADVICE
    for field in HISTORY:
        assert refused(PLAIN | {field: {"x": 1}}) == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_history_changes_nothing(tmp_path):
    train(tmp_path)
    expected = read_adapter(tmp_path).updates
    path = tmp_path / "adapter_config.json"
    config = json.loads(path.read_text())
    odd = {"lora_dropout": 0.5, "task_type": "CAUSAL_LM", "revision": "x", "inference_mode": True}
    path.write_text(json.dumps(config | odd | {"eva_config": {"rho": 2}}))
    found = read_adapter(tmp_path).updates
    assert all(found[name].scale == update.scale for name, update in expected.items())
    assert all((found[name].b == update.b).all() for name, update in expected.items())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_dora_of_an_embedding_is_refused(tmp_path):
    train(tmp_path, target_modules=["embed", "query"], use_dora=True)
    with pytest.raises(MismatchError) as caught:
        read_adapter(tmp_path)
    assert any("DoRA of embeddings is not read" in problem for problem in caught.value.problems)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_numbers_that_are_not_finite_are_refused_all_together(tmp_path):
    train(tmp_path)
    from safetensors.torch import load_file, save_file

    tensors = load_file(file := tmp_path / "adapter_model.safetensors")
    tensors["base_model.model.layers.0.query.lora_B.weight"][1, 2] = float("nan")
    tensors["base_model.model.layers.1.value.lora_A.weight"][0, 0] = float("inf")
    save_file(tensors, file)
    with pytest.raises(MismatchError) as caught:
        read_adapter(tmp_path)
    assert caught.value.problems == (
        "base_model.model.layers.0.query: 1 NaN and 0 infinite of 40 numbers (b)",
        "base_model.model.layers.1.value: 0 NaN and 1 infinite of 40 numbers (a)",
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_rank_that_the_configuration_denies_is_refused(tmp_path):
    train(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"r": 3}))
    with pytest.raises(MismatchError, match=r"rank 4, but adapter_config\.json says 3"):
        read_adapter(tmp_path)


MALFORMED = {
    "r": (None, "r is None, expected a positive number"),
    "r below one": (0.5, "r is 0.5, expected a whole number"),
    "r between": (4.7, "r is 4.7, expected a whole number"),
    "rank_pattern between": ({"value": 2.5}, "value is 2.5, expected a whole number"),
    "lora_alpha beyond floats": (10**400, "lora_alpha: a number of 401 digits"),
    "lora_alpha": ("x", "lora_alpha is 'x'"),
    "rank_pattern": ([1], r"rank_pattern is \[1\], expected dict"),
    "alpha_pattern": ({"(": 1}, r"'\(' is not a regular expression"),
    "target_modules": ("(", r"'\(' is not a regular expression"),
    "target_modules numbers": ([1, 2], "target_modules has 1, expected names"),
    "exclude_modules numbers": (["a", 2], "exclude_modules has 2, expected names"),
    "modules_to_save": (["("], r"'\(' is not a regular expression"),
    "layers_to_transform names": (["a"], "layers_to_transform has 'a', expected whole numbers"),
    "layers_to_transform truth": ([True], "layers_to_transform has True, expected whole numbers"),
    "layers_pattern numbers": ([3], "layers_pattern has 3, expected names"),
    "layers_pattern": (3, "layers_pattern is 3"),
    "layers_to_transform": ("x", "layers_to_transform is 'x'"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("field", MALFORMED)
def test_a_malformed_field_is_one_line(field, tmp_path):
    train(tmp_path)
    value, message = MALFORMED[field]
    field = field.partition(" ")[0]
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(BadInputError, match=message) as caught:
        read_adapter(tmp_path)
    assert "\n" not in str(caught.value)


PATHS = [f"model.layers.{n}.{kind}" for n in (0, 1, 11) for kind in ("q_proj", "mlp.up", "up")]
PARTS = st.sampled_from(["q_proj", "up", "mlp.up", "layers.1.up", r"layers\.\d+\.up", "proj", "1"])


@given(st.dictionaries(PARTS, st.integers(1, 9)), st.sampled_from(PATHS))
def test_patterns_are_looked_up_as_peft_does(patterns, module):
    config = {"r": 7, "lora_alpha": 14, "rank_pattern": patterns, "alpha_pattern": {}}
    expected = patterns.get(get_pattern_key(patterns.keys(), module), 7)
    assert terms_of(config, module).rank == expected


TARGETS = st.one_of(
    st.lists(st.sampled_from(["q_proj", "up", "mlp.up", "model.layers.1.up", "proj"]), min_size=1),
    st.sampled_from([r".*\.up", r".*(q_proj|mlp\.up)", r"model\.layers\.1\..*"]),
)
LAYERS = st.one_of(st.none(), st.integers(0, 1), st.lists(st.sampled_from([0, 1, 11]), min_size=1))


@given(TARGETS, st.none() | TARGETS, LAYERS, st.sampled_from([None, "layers", ["layers", "h"]]))
def test_targets_are_chosen_as_peft_does(wanted, excluded, layers, pattern):
    if isinstance(wanted, str):  # PEFT refuses the combination
        layers = pattern = None
    if layers is None:
        pattern = None
    config = {
        "target_modules": wanted,
        "exclude_modules": excluded,
        "layers_to_transform": layers,
        "layers_pattern": pattern,
    }
    oracle = peft.LoraConfig(**config)
    assert targeted(config, PATHS) == {m for m in PATHS if check_target_module_exists(oracle, m)}
