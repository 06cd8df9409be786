"""What a row comes to: nothing is called upstream's that is not proved to be."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from weighbridge.tests.support.atlas.row import Row
from weighbridge.tests.support.atlas.table import page
from weighbridge.tests.support.atlas.verdicts import verdict

ROOT = Path(__file__).parents[2]
EXACT = dict.fromkeys(("forward", "inverse", "trained", "config", "accepted"), "exact")


def row(kind="llama", layout="saved", **values):
    figures = {"error": 1e-7, "bar": 2e-6, "long_error": 1e-7, "long_bar": 2e-6, "check": ""}
    return asdict(Row(kind, layout, **{**EXACT, **figures, **values}))


def test_a_row_passes_when_all_of_it_is_exact_and_the_logits_agree():
    assert verdict(row()) == ("pass", "")


def test_a_text_past_a_threshold_counts_too():
    assert verdict(row(long_error=1.0, control="same weights"))[0] == "gap"


def test_a_token_that_rounding_does_not_explain_is_a_gap():
    assert verdict(row(greedy=1e-6))[0] == "pass"
    assert verdict(row(greedy=1e-3))[0] == "gap"


@pytest.mark.parametrize(("check", "errors"), [("PASS", {"long_error": 1.0}), ("DIFFERS", {})])
def test_a_check_that_contradicts_the_two_forwards_is_a_gap(check, errors):
    status, why = verdict(row("mistral", check=check, control="same weights", **errors))
    assert (status, why.startswith(f"the check says {check}")) == ("gap", True)


@pytest.mark.parametrize("step", ["forward", "inverse", "trained", "config"])
def test_our_own_faults_are_gaps_even_where_upstream_has_one(step):
    broken = {step: "1 differ: a", "error": 1.0, "control": "same weights"}
    assert verdict(row("jamba", **broken))[0] == "gap"


def test_other_weights_than_upstream_s_are_ours():
    assert verdict(row("jamba", error=1.0, control="other weights: 1 differ"))[0] == "gap"


def test_upstream_s_weights_without_a_known_cause_are_a_gap():
    assert verdict(row("llama", error=1.0, control="same weights"))[0] == "gap"


def test_upstream_s_own_weights_with_a_known_cause_are_upstream_s():
    assert verdict(row("jamba", error=1.0, control="same weights"))[0] == "upstream"


def test_a_refusal_is_upstream_s_only_in_the_words_that_the_repro_checks():
    said = "ValueError: Received 12 parameters not in model: a"
    refused = {"accepted": said, "control": said, "error": None}
    assert verdict(row("gpt_oss", **refused))[0] == "upstream"
    assert verdict(row("llama", **refused))[0] == "gap"


def test_the_page_is_printed_from_the_result():
    result = json.loads((ROOT / "benchmarks" / "results" / "atlas.json").read_text())
    assert (ROOT / "docs" / "atlas.md").read_text() == page(result)


def test_what_a_library_says_of_our_directory_counts_where_we_put_its_layout_right():
    met = {"accepted": "ValueError: (1,8,8,256) and (1,72,72,256) cannot be broadcast"}
    video = row("sam3_video", library="mlx-vlm", control="ValueError: others", **met)
    assert verdict(video)[0] == "upstream"
    assert verdict({**video, "accepted": "exact", "error": 1.0})[0] == "gap"
