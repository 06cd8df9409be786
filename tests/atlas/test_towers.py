"""The atlases of the other libraries are true: rows measured anew come to what the results say."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from weighbridge.converters.libraries.repairs.catalogue import LINEAR_DECAY, OF_LIBRARY
from weighbridge.tests.support.atlas import pictures, row, rows, tower_upstream
from weighbridge.tests.support.atlas.table import file_name, page_of
from weighbridge.tests.support.atlas.tower_faults import OTHERS

ROOT = Path(__file__).parents[2]
LIBRARIES = ("mlx-embeddings", "mlx-vlm")


def result(library):
    name = file_name(library).replace("-", "_")
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


ROWS = [(library, found) for library in LIBRARIES for found in result(library)["rows"]]


def hidden(library, measured):
    """Say whether rounding hides the floor of decays, all that is wrong with some classes off Metal."""
    alone = OF_LIBRARY[library].get(measured["kind"]) == (LINEAR_DECAY,)
    return alone and measured["status"] == "pass"


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("library", "wanted"), ROWS, ids=[f"{library}-{it['kind']}" for library, it in ROWS]
)
def test_a_row_comes_to_what_the_atlas_says(library, wanted, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = row.measure(wanted["kind"], "saved", tmp_path, library)
    found = rows.judged(vars(measured))
    assert found["status"] == wanted["status"] or hidden(library, found), found["why"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_page_counts_every_shared_type_measured_or_not(library):
    assert [f"{kind}:saved" for kind in result(library)["types"]] == rows.names([], library)
    assert {it["kind"] for it in result(library)["rows"]} <= set(result(library)["types"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_page_is_printed_from_the_result(library):
    page = ROOT / "docs" / f"{file_name(library)}.md"
    assert page.read_text() == page_of(result(library))


@pytest.mark.parametrize(("library", "found"), ROWS, ids=[f"{a}-{b['kind']}" for a, b in ROWS])
def test_a_picture_that_counts_as_seen_moves_the_source_s_own_output(library, found):
    if found["status"] == "pass" and found["seen_bar"] is not None:
        assert found["moved"] > 1000 * found["seen_bar"]


def test_another_picture_is_another_one():
    given = {"pixel_values": pictures.drawn(1, 3, 28, 28), "input_ids": None}
    assert (pictures.another(given)["pixel_values"] != given["pixel_values"]).mean() > 0.9


@pytest.mark.heavy
@pytest.mark.parametrize("fault", OTHERS, ids=[f"{it.library}-{it.kind}" for it in OTHERS])
def test_a_fault_of_another_library_stands_and_its_cause_is_the_one_named(fault):
    assert fault.raises in tower_upstream.words(fault)


@pytest.mark.heavy
def test_the_command_of_the_page_says_what_a_refused_type_meets(capsys):
    [line] = tower_upstream.shown("unlimited_ocr")
    assert line == "unlimited_ocr, as transformers saves it: KeyError: 'projector_config'"
