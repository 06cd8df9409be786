"""The atlas is true: rows measured anew come to what the committed result says."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from weighbridge.tests.support.atlas import row, rows, tiny, verdicts

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "benchmarks" / "results" / "atlas.json").read_text())
ROWS = {f"{found['kind']}:{found['layout']}": found for found in RESULT["rows"]}
QUICK = ["qwen3_moe:saved", "qwen3_vl_moe:hub"]
MEASURED = [name for name, found in ROWS.items() if found["status"] != "unpaired"]


def measure(name, folder):
    kind, layout = name.split(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rows.judged(vars(row.measure(kind, layout, folder)))


@pytest.mark.parametrize("name", QUICK)
def test_a_type_goes_both_ways(name, tmp_path):
    found = measure(name, tmp_path)
    assert (found["status"], found["why"]) == ("pass", "")


@pytest.mark.heavy
@pytest.mark.parametrize("name", [name for name in MEASURED if name not in QUICK])
def test_a_row_comes_to_what_the_atlas_says(name, tmp_path):
    found, wanted = measure(name, tmp_path), ROWS[name]
    assert found["status"] == wanted["status"], found["why"]
    if wanted["status"] == "upstream":
        assert found["why"] == wanted["why"]


def test_every_type_and_layout_has_a_row():
    assert set(rows.names([])) | {f"{kind}:saved" for kind in verdicts.UNPAIRED["mlx-lm"]} == set(
        ROWS
    )


def test_the_result_is_of_the_installed_libraries():
    from importlib.metadata import version

    libraries = ("mlx-lm", "transformers")
    assert {name: RESULT["versions"][name] for name in libraries} == {
        name: version(name) for name in libraries
    }


def test_both_layouts_are_measured_where_they_differ():
    assert [kind for kind in tiny.types() if tiny.layouts(kind) == ("saved", "hub")] == sorted(
        {found["kind"] for found in RESULT["rows"] if found["layout"] == "hub"}
    )
