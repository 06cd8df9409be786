"""Sweeps: every combination once, resumable, failures told."""

from __future__ import annotations

import json

import pytest

from weighbridge.errors import BadInputError, WeighbridgeError
from weighbridge.trainers.bench.sweep import cells, combinations, folder_name, sweep


def trainer(done):
    """Return a stand-in for a training that leaves what a run leaves."""

    def train(out, overrides, resume):
        done.append((out.name, resume))
        if "seed=2" in overrides:
            raise WeighbridgeError("diverged")
        out.mkdir(exist_ok=True)
        figures = {"metric": "mrr", "before": {"mrr": 0.1}, "best": {"mrr": 0.5}, "test": {}}
        (out / "result.json").write_text(json.dumps(figures | {"steps": 3, "seconds": 1.5}))

    return train


def test_a_sweep_trains_the_product_once_and_goes_on_with_what_was_begun(tmp_path):
    settings = [*combinations(["seed=0,1", "model_options.unit=glu,gelu"])]
    begun = tmp_path / folder_name(settings[3])
    begun.mkdir()
    (begun / "config.yaml").touch()
    done = []
    rows = sweep(tmp_path, settings, trainer(done))
    assert done == [
        ("seed=0,unit=glu", False),
        ("seed=0,unit=gelu", False),
        ("seed=1,unit=glu", False),
        ("seed=1,unit=gelu", True),
    ]
    again = []
    assert sweep(tmp_path, settings, trainer(again)) == rows
    assert again == []
    assert json.loads((tmp_path / "sweep.json").read_text()) == rows


def test_a_run_that_fails_is_a_row(tmp_path):
    rows = sweep(tmp_path, [*combinations(["seed=1,2,3"])], trainer([]))
    assert [row[1] for row in cells(rows)] == ["0.1000", "failed: diverged", "0.1000"]


@pytest.mark.parametrize("text", ["seed", "=1", "seed="])
def test_what_is_no_sweep_is_refused(text):
    with pytest.raises(BadInputError, match="key=a,b,c"):
        [*combinations([text])]
    with pytest.raises(BadInputError, match="every key once"):
        [*combinations(["seed=1", "seed=2"])]
