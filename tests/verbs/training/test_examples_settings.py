"""The examples in the help of verbs that take a recipe, held against the schema of its settings."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from tests.test_examples import EXAMPLE
from weighbridge.cli import main
from weighbridge.errors import MismatchError
from weighbridge.trainers.bench.sweep import combinations
from weighbridge.trainers.config import TrainConfig, load_config

VERBS = ("train", "preflight", "bench")


def examples(verb: str) -> list[str]:
    """Return what stands after ``Example:`` in the help of VERB."""
    text = main.get_command(click.Context(main), verb).help or ""
    found = map(EXAMPLE.match, map(str.strip, re.split(r"\n\s*\n", text)))
    return [" ".join(match[1].split()) for match in found if match]


def configurations(line: str) -> list[TrainConfig]:
    """Return the configurations that LINE asks for, read as the command line reads it."""
    verb, *words = shlex.split(line)
    command = main.get_command(click.Context(main), verb)
    given = command.make_context(verb, words).params
    swept = combinations(given.get("texts") or ())
    changes = [[f"{key}={value}" for key, value in each.items()] for each in swept] or [[]]
    return [load_config(given["recipe"], [*given["overrides"], *each]) for each in changes]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Let bundled data have a place to lie in."""
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("line", [line for verb in VERBS for line in examples(verb)])
def test_every_example_is_one_that_the_schema_takes(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert configurations(line)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_that_takes_a_recipe_has_an_example(verb):
    assert examples(verb)


@pytest.mark.parametrize(
    "line",
    [
        "train run --recipe minilm-lora --set modle=minilm-mlx",
        "bench gated-lm sweep --sweep seed=0,one",
        "preflight --recipe minilm-lora --set batch_size=none",
    ],
)
def test_an_example_that_the_schema_refuses_is_found(line):
    with pytest.raises(MismatchError):
        configurations(line)
