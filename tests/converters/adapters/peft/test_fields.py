"""Every field of PEFT's own LoraConfig that is set is read, history, or refused."""

from __future__ import annotations

import dataclasses

import pytest
from peft import LoraConfig

from weighbridge.converters.adapters.peft.fields import VARIANTS, refusals, refused

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
