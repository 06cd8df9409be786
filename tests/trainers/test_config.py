"""Configurations: strict, with the nearest key, saved as they were used."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from weighbridge.errors import BadInputError, MismatchError
from weighbridge.trainers.config import (
    TrainConfig,
    differences,
    dump_config,
    load_config,
    recipes,
    validate,
)
from weighbridge.trainers.configuration.keys import known_keys, sections_in

MINIMAL = """
model: {model}
data: {{kind: pairs, train: t.jsonl, validation: v.jsonl}}
objective: {{name: contrastive}}
"""
TOML = """
model = "m"
steps = 7
[data]
kind = "series"
train = "t.npz"
validation = "v.npz"
[objective]
name = "regression"
"""
REFUSED = {  # override -> what the message must say
    "optimizer.lerning_rate=1": "optimizer.lerning_rate: no such key; did you mean optimizer.learning_rate?",
    "data.lenghts={}": "data.lenghts: no such key; did you mean data.lengths?",
    "data.lengths.query=[0]": "data.lengths.query.0: cannot be 0; give a number more than 0",
    "data.lengths.query=[]": "data.lengths.query: cannot be []; give at least 1 of them",
    "steps=1.5": "steps: cannot be 1.5; give a whole number",
    "steps=many": 'steps: cannot be "many"; give a whole number',
    "steps=0": "steps: cannot be 0; give a number more than 0",
    "compile=1": "compile: cannot be 1; give true or false",
    "schedule.kind=cosinus": 'schedule.kind: cannot be "cosinus"; give cosine, linear or constant',
    "adapter={rank: 4, dropout: 0.1}": "adapter.dropout: cannot be 0.1; give 0",
    "objective.name=mse": "objective: mse is none of causal_lm,",
    "objective=contrastiv": "did you mean contrastive?",
    "objective={}": "objective: has no name",
    "optimizer=lions": "optimizer: lions is none of adamw, adam, sgd, lion, adafactor, muon; did you mean lion?",
    "optimizer.momentum=0.9": "optimizer.momentum: no such key (sgd and muon have it)",
    "data.lengths=[16]": "data.lengths: cannot be [16]; give its settings, of query, document",
    "data.length=[16]": "data.length: no such key (text and labelled and preferences have it); did you mean data.lengths?",
    "data={kind: text, train: a, length: 16}": "data.length: cannot be 16; give a list, such as [16]",
    "data={kind: series, train: a, columns: {x:price}}": "data.columns.x:price: YAML takes it for a name"
    " without a value; write a space after the colon, {x: price}",
    "optimizer.groups=[{match: [bias], learning_rate:1}]": "optimizer.groups.0.learning_rate:1: YAML takes it"
    " for a name without a value; write a space after the colon, {learning_rate: 1}",
    "data.window=3": "data.window: no such key (bars have it)",
    "data.columns.text=a": "data.columns.text: no such key (text and labelled have it)",
    "data=3": "data: cannot be 3; give its kind, of pairs, series,",
    "data.train=[a]": 'data.train: cannot be ["a"]; give a path',
    "data.validation=1.5": "data.validation: cannot be 1.5; give a path or a number less than 1",
    "adapter.quantize_aware=3": "adapter.quantize_aware: cannot be 3; give true or false or a path",
    "adapter.targets=q": 'adapter.targets: cannot be "q"; give a list, such as ["q"]',
    "freeze=3": 'freeze: cannot be 3; give a list, such as ["3"]',
    "optimizer.betas=0.9": "optimizer.betas: cannot be 0.9; give a list, such as [0.9, 0.9]",
    "optimizer=[adam]": 'optimizer: cannot be ["adam"]; give its name, of adamw,',
    "optimizer.groups=[{match: 3}]": 'optimizer.groups.0.match: cannot be 3; give a list, such as ["3"]',
    "model_options=3": "model_options: cannot be 3; give names with a value each",
    "dynamic_batch={min: 8, max: 4}": "dynamic_batch: ",
    "data={kind: pairs}": "data.train: is missing",
}


NO_VALUES = {
    "optimizer.learning_rate=.inf": "--set optimizer.learning_rate: inf is not a number",
    f"steps={'1' * 5_000}": "--set steps: a number of 5,000 digits",
    f"steps={'[' * 20_000}": "--set steps: nested more than 64 levels deep",
    "data.lengths={a: 1, a: 2}": "--set data.lengths: a is named twice, for 1 and 2",
    "steps=[1": "--set steps: not YAML, ",
}


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """Let the bundled recipes name files in a cache; none is made here."""
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def minimal(tmp_path):
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL.format(model="m"))
    return path


@pytest.mark.parametrize("override", NO_VALUES, ids=lambda it: it[:20])
def test_what_is_no_value_is_refused_by_its_key(minimal, override):
    with pytest.raises(BadInputError, match=re.escape(NO_VALUES[override])):
        load_config(minimal, [override])


def test_a_key_of_thousands_of_sections_is_none_of_ours(minimal):
    with pytest.raises(MismatchError, match="no such key"):
        load_config(minimal, [f"{'a.' * 5_000}b=1"])


@pytest.mark.parametrize("recipe", [None, "docstrings", "minilm-lora", "examples/timeseries.yaml"])
def test_a_recipe_is_a_complete_configuration(recipe):
    assert load_config(recipe).steps > 0


def test_a_saved_configuration_reads_back_equal(minimal, tmp_path):
    config = load_config(
        minimal, ["optimizer.eps=1e-6", "clip_norm=null", "freeze=[a.b, '*.bias']"]
    )
    saved = tmp_path / "saved.yaml"
    saved.write_text(dump_config(config))
    assert load_config(saved) == config
    assert config.clip_norm is None
    assert config.freeze == ("a.b", "*.bias")


def test_toml_is_read_too(tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(TOML)
    assert load_config(path).steps == 7


def test_an_exponent_without_a_point_is_a_number(minimal):
    assert load_config(minimal, ["optimizer.learning_rate=3e-4"]).optimizer.learning_rate == 3e-4


def test_an_override_makes_the_sections_it_needs(minimal):
    config = load_config(minimal, ["adapter.rank=3", "adapter.targets=[key]"])
    assert config.adapter is not None
    assert (config.adapter.rank, config.adapter.targets) == (3, ("key",))


def test_paths_do_not_depend_on_the_working_directory(minimal, tmp_path, monkeypatch):
    (tmp_path / "m").mkdir()
    monkeypatch.chdir(tmp_path)
    config = load_config(minimal)
    assert config.data.train == tmp_path / "t.jsonl"
    assert config.model == str(tmp_path / "m")


@pytest.mark.parametrize(("override", "message"), REFUSED.items())
def test_a_wrong_value_is_refused_by_key(minimal, override, message):
    with pytest.raises(MismatchError, match=re.escape(message)):
        load_config(minimal, [override])


def test_a_list_whose_items_are_wrong_is_not_called_too_short(minimal):
    with pytest.raises(MismatchError) as caught:
        load_config(minimal, ["data.lengths.query=[0]"])
    assert len(caught.value.problems) == 1


def test_all_problems_come_together(minimal):
    with pytest.raises(MismatchError) as caught:
        load_config(minimal, ["stepz=1", "batch_size=0", "seed=-1"])
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("override", ["steps", "=3", "steps=[1"])
def test_an_override_that_is_none_is_refused(minimal, override):
    with pytest.raises(BadInputError, match="--set"):
        load_config(minimal, [override])


@pytest.mark.parametrize("text", ["- 1", "a: [", "\x00"])
def test_a_file_that_is_no_configuration_is_refused(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError, match=re.escape(str(path))):
        load_config(path)


def test_a_missing_file_names_the_recipes():
    with pytest.raises(BadInputError, match=f"recipes are {', '.join(recipes())}"):
        load_config("nothing.yaml")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("docstring", "docstrings"),
        ("minilm-lroa", "minilm-lora"),
        ("timeseries-ml", "timeseries-lm"),
    ],
)
def test_a_recipe_that_is_nearly_named_is_suggested(name, near):
    with pytest.raises(BadInputError, match=f"did you mean {near}"):
        load_config(name)


def test_without_a_recipe_the_default_stands_in_unless_model_and_data_are_given(minimal):
    assert load_config(None) == load_config("docstrings")
    assert load_config(None, ["model=m"]).freeze == load_config("docstrings").freeze
    given = ["model=m", "data.kind=pairs", "data.train=t", "data.validation=v"]
    config = load_config(None, [*given, "objective.name=contrastive"])
    assert (config.freeze, config.data.test) == ((), None)


def test_differences_name_each_key_and_both_values(minimal):
    old, new = load_config(minimal), load_config(minimal, ["steps=3", "optimizer.eps=1e-6"])
    assert differences(old, old) == []
    assert differences(old, new) == [
        "optimizer.eps: 1e-08 in the run, 1e-06 asked for",
        "steps: 100 in the run, 3 asked for",
    ]


def test_of_another_recipe_what_it_trains_is_said_and_not_every_setting():
    found = differences(load_config("gated-lm"), load_config("indicators"))
    assert [line.partition(":")[0] for line in found] == ["model", "data.kind", "objective.name"]


def names_of(section):
    """Return what a name alone may be in SECTION, ``module:Class`` among them."""
    return [
        get_args(field.annotation)[0] if get_args(field.annotation) else "a:B"
        for kind in sections_in(TrainConfig.model_fields[section].annotation)
        for field in [kind.model_fields["kind" if section == "data" else "name"]]
    ]


CHOICES = [
    [f"data.kind={kind}", f"objective.name={objective}"]
    for kind in names_of("data")
    for objective in names_of("objective")
] + [[f"optimizer.name={name}"] for name in names_of("optimizer")]


def refused(choice, key):
    """Return whether KEY is none that the configuration of CHOICE knows, whatever its value."""
    try:
        load_config("examples/timeseries.yaml", [*choice, f"{key}={{}}"])
    except MismatchError as error:
        return f"{key}: no such key" in str(error)
    return False


@pytest.mark.parametrize("key", sorted(set(known_keys(TrainConfig))))
def test_every_known_key_is_accepted_somewhere(key):
    """A key of another kind of data or objective is the only one that a configuration refuses."""
    assert not all(refused(choice, key) for choice in CHOICES)


def test_a_name_alone_stands_for_its_section(minimal):
    config = load_config(minimal, ["objective=contrastive"])
    assert config.objective.temperature == 0.05
    again = load_config(minimal, ["objective=contrastive", "objective.temperature=0.1"])
    assert again.objective.temperature == 0.1
    named = validate({"model": "m", "data": "my_data:Rows", "objective": "my_loss:Loss"})
    assert (named.data.kind, named.objective.name) == ("my_data:Rows", "my_loss:Loss")


def test_texts_of_ones_own_leave_no_split_of_the_recipe():
    own = load_config("minilm-lora", ["data.test=t", "data.train=mine.jsonl"]).data
    assert (own.validation, own.test) == (0.1, Path("t").absolute())
    assert load_config("minilm-lora", ["data.train=mine.jsonl"]).data.test is None
    with pytest.raises(MismatchError, match="not valid") as caught:
        load_config("indicators", ["data.train=prices.npz"])
    [problem] = caught.value.problems
    assert problem.startswith(
        "data.validation: is missing; bars hold nothing out of the training file"
    )
    assert "--set data.validation=FILE" in problem


def test_what_is_missing_is_said_with_what_to_give():
    with pytest.raises(MismatchError, match="3 problems") as caught:
        validate({})
    model, data, objective = caught.value.problems
    assert "--set model=DIRECTORY" in model
    assert "--set data=FILE" in data
    assert "causal_lm, classification, " in objective
    with pytest.raises(MismatchError, match="2 problems") as caught:
        validate({"model": "m", "data": {"train": "t"}, "objective": {"name": "distillation"}})
    assert "data.kind=NAME, of pairs, series, " in caught.value.problems[0]
    assert "--set objective.teacher=DIRECTORY" in caught.value.problems[1]


def test_a_folders_own_validation_split_is_named_and_no_share_is_taken_in_its_place(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_text('{"text": "a", "label": 0}\n')
    given = ["model=m", "data.kind=labelled", f"data.train={tmp_path}", "objective=classification"]
    config = load_config(None, given)
    assert config.data.validation == tmp_path / "valid.jsonl"
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert load_config(file) == config
    with pytest.raises(MismatchError, match="not valid") as caught:
        load_config(None, [*given, "data.validation=0.2"])
    assert "data.validation: 0.2 asks for a share, and" in caught.value.problems[0]


def test_no_lengths_are_chosen_for_both_texts_as_a_page_of_the_recipes_says(tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path))  # where bundled data would lie
    assert load_config("docstrings").data.lengths.query == (16,)
    chosen = load_config("docstrings", ["data.lengths={}"]).data.lengths
    assert (chosen.query, chosen.document) == (None, None)
