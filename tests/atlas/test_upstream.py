"""Upstream's faults stand, without us, and are what we say they are; red when upstream mends one."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from weighbridge.tests.support.atlas import upstream
from weighbridge.tests.support.atlas.faults import FAULTS
from weighbridge.tests.support.atlas.upstream_page import cases, page

ROOT = Path(__file__).parents[2]
CASES = [pytest.param(f, layout, id=f"{f.kind}-{layout}") for f, layout in cases()]
QUICK = {"gemma-saved", "glm-saved", "gpt_oss-saved", "qwen3_vl_moe-saved"}


def marked(case):
    return (
        case
        if case.id in QUICK
        else pytest.param(*case.values, id=case.id, marks=pytest.mark.heavy)
    )


@pytest.mark.parametrize(("fault", "layout"), [marked(case) for case in CASES])
def test_the_fault_stands_and_its_cause_is_the_one_named(fault, layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = upstream.measure(fault, layout)
    assert found.stands, "upstream has mended it: take it out of faults.py and run the atlas"
    assert found.explained, found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kind}-{fault.layouts[0]}")
def test_a_fault_says_what_would_mend_it_or_what_mlx_lm_says(fault):
    assert bool(fault.raises) != bool(fault.agree or fault.mend)
    assert fault.side in {"mlx-lm", "transformers", "both"}


def test_pixtral_is_no_language_model_in_transformers():
    with pytest.raises(ValueError, match="no language model"):
        upstream.tiny.make("pixtral", "unused")


def test_the_page_is_printed_from_the_result_and_has_every_fault():
    result = json.loads((ROOT / "benchmarks" / "results" / "upstream.json").read_text())
    assert set(result["rows"]) == {f"{fault.kind}-{layout}" for fault, layout in cases()}
    assert (ROOT / "docs" / "upstream.md").read_text() == page(result)
