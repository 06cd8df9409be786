"""The reference of settings is made from the schema, and what it says is typed is taken."""

from __future__ import annotations

import re
from operator import attrgetter

import pytest
from click.testing import CliRunner

from weighbridge.cli import main
from weighbridge.trainers.config import TrainConfig, load_config, validate
from weighbridge.trainers.configuration.keys import known_keys
from weighbridge.trainers.configuration.reference import settings


def listed(*word):
    result = CliRunner().invoke(main, ["train", "--settings", *word])
    assert result.exit_code == 0, result.output
    return re.findall("^--set (\\S+?)=(.*)$", result.output, re.MULTILINE), result.output


def test_every_setting_is_listed_as_it_is_typed():
    shown, _ = listed()
    keys = [key for key, _ in shown]
    assert keys == [it.key for it in settings(TrainConfig)]
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(known_keys(TrainConfig))


def test_a_word_chooses_settings_and_shows_what_they_are():
    shown, said = listed("early_stopping")
    assert shown == [("early_stopping.patience", "3"), ("early_stopping.min_delta", "0.0")]
    assert "Stop after PATIENCE validations without an improvement" in said


def test_a_word_that_no_setting_has_gets_the_nearest_one():
    result = CliRunner().invoke(main, ["train", "--settings", "leraning_rate"])
    assert result.exit_code == 3
    assert result.output.strip().endswith("did you mean optimizer.learning_rate?")


@pytest.mark.parametrize("word", ["schedule", "prefetch", "_every", "clip_norm", "dtype"])
def test_what_is_listed_is_the_default_and_is_taken(word, tmp_path, monkeypatch):
    monkeypatch.setenv("WEIGHBRIDGE_CACHE", str(tmp_path))  # where bundled data would lie
    shown = [row for row in listed(word)[0] if not row[0].startswith("data.")]
    assert shown
    bare = validate(
        {
            "model": "m",
            "data": {"kind": "pairs", "train": "a.jsonl", "validation": "b.jsonl"},
            "objective": {"name": "contrastive"},
        }
    )
    for key, value in shown:
        taken = load_config("docstrings", [f"{key}={value}"])
        assert attrgetter(key)(taken) == attrgetter(key)(bare)
