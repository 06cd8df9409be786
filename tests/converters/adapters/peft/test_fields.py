"""Every field of PEFT's own LoraConfig that is set is read, history, or refused."""

from __future__ import annotations

import dataclasses

import pytest
from peft import IA3Config, LoraConfig
from peft.mapping import PEFT_TYPE_TO_TUNER_MAPPING

from weighbridge.converters.adapters.peft.fields import PROMPTS, VARIANTS, refusals, refused

PLAIN = {"peft_type": "LORA", "r": 4, "init_lora_weights": True}
FIELDS = {field.name: field for field in dataclasses.fields(LoraConfig)}


@pytest.mark.parametrize("field", sorted(VARIANTS))
def test_an_empty_configuration_of_a_variant_asks_for_it(field):
    assert getattr(LoraConfig(**{field: {}}), field) is not None
    assert list(refused(PLAIN | {field: {}})) == [field]
    assert not refused(PLAIN | {field: None})


@pytest.mark.parametrize(
    "field", sorted(n for n, it in FIELDS.items() if it.metadata.get("is_lora_variant"))
)
def test_each_variant_that_peft_names_is_refused_where_it_is_set(field):
    if field != "use_dora":  # it is read
        assert field in refused(PLAIN | {field: True})


def test_the_configuration_that_peft_writes_by_default_is_read():
    assert refusals(LoraConfig(r=4).to_dict() | PLAIN) == []


def test_a_field_that_nobody_has_heard_of_must_be_unset():
    assert refusals(PLAIN | {"new_config": {}})[0].startswith("new_config={} (")
    assert refusals(PLAIN | {"new_config": None}) == []


def test_another_method_than_lora_is_refused_by_its_name_alone():
    config = IA3Config(target_modules=["k_proj"], feedforward_modules=[]).to_dict()
    [line] = refusals(config | {"peft_type": "IA3"})
    assert line.startswith("peft_type=IA3 (merge it")


def test_a_merge_is_advised_where_peft_has_one():
    tuners = PEFT_TYPE_TO_TUNER_MAPPING.items()
    assert {kind.value for kind, it in tuners if not hasattr(it, "merge_and_unload")} == PROMPTS
    assert "changes no weight" in refusals({"peft_type": "PREFIX_TUNING", "num_layers": 2})[0]
