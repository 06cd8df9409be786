"""How long a run goes on: epochs, and stopping when validations no longer improve."""

from __future__ import annotations

import pytest

from weighbridge.errors import MismatchError
from weighbridge.tests.trainers.runs.test_loop import Killed, kill_after, records, same_run
from weighbridge.trainers.config import dump_config, load_config
from weighbridge.trainers.runs.carried import Carried
from weighbridge.trainers.runs.events import Notice
from weighbridge.trainers.runs.loop import train


def test_epochs_are_counted_in_updates(series_config, series_task, tmp_path):
    config = series_config(epochs=2, steps=None, accumulation=2)
    result = train(config, tmp_path / "run", backend="torch", task=series_task(config))
    assert result.steps == 2 * (50 // 8) // 2
    assert {row["epoch"] for row in records(tmp_path / "run") if "loss" in row} == {0, 1}


def test_steps_and_epochs_together_are_refused(series_config):
    with pytest.raises(MismatchError, match="steps and epochs both"):
        series_config(epochs=2)


def test_batches_are_sized_one_way(series_config):
    with pytest.raises(MismatchError, match="batch_tokens and dynamic_batch both"):
        series_config(batch_tokens=64, dynamic_batch={"min": 4, "max": 8})


def test_a_setting_of_one_replaces_the_other_of_a_recipe(tmp_path):
    config = load_config("examples/timeseries.yaml", ["epochs=3"])
    assert config.epochs == 3
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert load_config(file) == config
    assert load_config(file, ["steps=7"]).epochs is None


def test_a_run_stops_early_and_a_resumed_one_where_it_would_have(
    series_config, series_task, tmp_path
):
    stopping = {"patience": 2, "min_delta": 10.0}
    config = series_config(steps=40, validate_every=2, early_stopping=stopping, checkpoint_every=3)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    said = []
    result = train(
        config, straight, backend="torch", task=series_task(config), progress=said.append
    )
    assert said[-1] == Notice("stopped early: 2 validations in a row were no better")
    assert result.steps == 4  # the first validation sets the mark, two more are no better
    with pytest.raises(Killed):
        train(config, broken, backend="torch", task=series_task(config), progress=kill_after(4))
    for _ in range(2):  # the second finds it done
        train(config, broken, backend="torch", task=series_task(config), resume=True)
        same_run(straight, broken)


@pytest.mark.parametrize(
    ("higher", "figures"), [(True, [1, 2, 2.05, 1.9]), (False, [3, 2, 1.95, 4])]
)
def test_small_improvements_do_not_count(higher, figures, series_config):
    stopping = series_config(early_stopping={"min_delta": 0.1}).early_stopping
    carried = Carried()
    for figure in figures:
        carried.note(figure, stopping, higher_is_better=higher)
    assert carried.mark == 2
    assert carried.waited == 2
