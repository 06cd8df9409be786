"""An adapter that is not whole, or for another base, does not pass, and all of it is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weighbridge.converters.adapters import fit, read_adapter, write_adapter
from weighbridge.converters.checkpoints import Header
from weighbridge.converters.values import LowRank
from weighbridge.errors import MismatchError


@pytest.fixture
def adapter(tmp_path, updates):
    write_adapter(tmp_path, updates, config={})
    return read_adapter(tmp_path)


def problems(adapter, headers) -> MismatchError:
    with pytest.raises(MismatchError) as caught:
        fit(adapter, headers)
    return caught.value


def test_a_whole_adapter_fits(adapter, headers):
    fit(adapter, headers)


@pytest.mark.parametrize("keys", [["attention.self.query", "attention.self.value"], None])
def test_ten_of_twelve_are_refused_with_both_names(keys, adapter, headers):
    kept = dict(list(adapter.updates.items())[:10])
    lost = sorted(set(adapter.updates) - set(kept))
    config = adapter.config | {"lora_parameters": {"keys": keys}, "num_layers": 6}
    error = problems(replace(adapter, updates=kept, config=config), headers)
    assert "is partial: 12 updates expected, 10 found: 2 problems" in str(error)
    assert error.problems == tuple(
        f"{name} has no update, but adapter_config.json names it" for name in lost
    )


def test_an_adapter_for_another_model_is_told_as_such(adapter, headers):
    other = {name.replace("encoder.layer", "model.layers"): h for name, h in headers.items()}
    error = problems(adapter, other)
    assert "is for another model, the base has none of its 12 weights" in str(error)
    assert (
        "encoder.layer.0.attention.self.query.weight is not in the base;"
        " nearest is model.layers.0.attention.self.query.weight"
    ) in error.problems


def test_shapes_and_names_are_told_together(adapter, headers):
    names = list(adapter.updates)
    changed = dict(headers)
    changed[names[0]] = Header("F32", (20, 13))
    changed[names[1]] = Header("F32", (12, 21))
    changed[names[2]] = Header("U32", (20, 3))
    changed[names[3].replace("value", "valve")] = changed.pop(names[3])
    found = problems(adapter, changed).problems
    assert f"{names[0]}: expected an update of [20, 13], found [20, 12]" in found
    assert f"{names[1]}: expected an update of [12, 21], found [20, 12]" in found
    assert any(problem.startswith(f"{names[2]} is quantized in the base") for problem in found)
    assert any(
        problem.startswith(f"{names[3]} is not in the base; nearest is encoder")
        for problem in found
    )


def test_a_key_that_the_base_does_not_have_is_told_with_the_nearest(adapter, headers):
    keys = [*adapter.config["lora_parameters"]["keys"], "encoder.layer.0.attention.self.qeury"]
    config = {"lora_parameters": {"keys": keys}}
    found = problems(replace(adapter, config=config), headers).problems
    assert found == (
        (
            "encoder.layer.0.attention.self.qeury is named in adapter_config.json, but not in the"
            " base; nearest is encoder.layer.0.attention.self.query"
        ),
    )


def test_an_update_that_the_configuration_does_not_name_is_told(adapter, headers):
    keys = adapter.config["lora_parameters"]["keys"][:-1]
    config = adapter.config | {"lora_parameters": {"keys": keys}}
    assert problems(replace(adapter, config=config), headers).problems == (
        (
            "encoder.layer.5.attention.self.value.weight has an update, but adapter_config.json does"
            " not name it; mlx-lm would drop or refuse it"
        ),
    )
    peft = {"peft_type": "LORA", "target_modules": ["query"]}
    found = problems(replace(adapter, config=peft, dialect="peft"), headers).problems
    assert len(found) == 6
    assert all(
        "value.weight has an update, but" in it and "PEFT would ignore" in it for it in found
    )
    fit(replace(adapter, config=peft | {"target_modules": ["query", "value"]}), headers)


def under(adapter, change):
    updates = {change(name): update for name, update in adapter.updates.items()}
    config = {"target_modules": ["query", "value"]}
    return replace(adapter, dialect="peft", updates=updates, config=config)


def test_an_adapter_of_the_bare_class_is_told_how_to_get_its_prefix(adapter, headers):
    error = problems(under(adapter, lambda name: name.removeprefix("encoder.")), headers)
    assert "was trained on a bare class (AutoModel)" in error.summary
    assert "all 12 names lack 'encoder.'" in error.summary
    assert "to base_model.model.encoder.X" in error.summary
    fit(under(adapter, lambda name: name), headers)  # what one has after renaming


def test_an_adapter_of_a_class_with_a_head_is_told_how_to_lose_its_prefix(adapter, headers):
    error = problems(under(adapter, lambda name: f"bert.{name}"), headers)
    assert "was trained on a class with a head" in error.summary
    assert "all 12 names begin with 'bert.'" in error.summary
    assert "from base_model.model.bert.X to base_model.model.X" in error.summary


def test_an_adapter_of_another_model_is_not_taken_for_one_of_another_class(adapter, headers):
    names = iter(range(99))
    error = problems(under(adapter, lambda name: f"b{next(names) % 2}.{name}"), headers)
    assert "is for another model" in error.summary


def test_thousands_of_unknown_parameters_are_reported_at_once(adapter, headers):
    update = LowRank(np.zeros((1, 2)), np.zeros((2, 1)))
    many = {f"blocks.{n}.attention.weight": update for n in range(3000)}
    base = headers | {f"layers.{n}.attention.weight": Header("F32", (2, 2)) for n in range(3000)}
    assert len(problems(replace(adapter, updates=many, config={}), base).problems) == 3000
