"""The terminal report: the answer first, within any width, nothing claimed that was not seen."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from weighbridge.parity.blame.blame import Fault
from weighbridge.parity.check.verdict import STAGES, STATUSES, Stage, Verdict
from weighbridge.parity.report import render
from weighbridge.parity.report.terminal import QUESTIONS

ROW = {
    "probe": "beyond-half",
    "output": "last_hidden_state",
    "ratio": 1.148,
    "ratio_worst_token": 1.069,
    "allowed": 0.55,
    "error": 8.1e-7,
    "source_error": 7.1e-7,
    "cosine": 0.9999999,
}
FIGURES = {
    "dtype": "float32",
    "k": 2.09,
    "k_token": 3.4,
    "c": 0.25,
    "null_99_9": 2.08,
    "cases": 412,
    "rows": [ROW],
}
FAULT = Fault("encoder.layer.3.output.dense", "transposed", "equals the source transposed", 3.2e5)


def test_every_stage_has_the_question_that_it_asks():
    assert {*STAGES} <= {*QUESTIONS}


def verdict_of(status, **changes):
    answer = {"DIFFERS": "fail", "UNVERIFIED": "unverified"}.get(status, "pass")
    figures = FIGURES | {"rows": [ROW | changes]}
    stages = (
        Stage("text", "skipped", "neither side has a tokenizer"),
        Stage("fingerprints", "pass", "101 weights explained: 101 equal"),
        Stage("structure", answer, "errs 1.15 times as much as the source's own float32", figures),
    )
    provenance = {
        "reference": {"spec": "/models/all-MiniLM-L6-v2", "libraries": {"torch": "2.13.0"}},
        "candidate": {
            "spec": "out-mlx+/runs/adapter",
            "runner": {"runtime": "mlx", "version": "0.32.4", "device": "cpu", "blas": "torch"},
        },
        "platform": "Linux x86_64",
        "not_checked": ["outputs at positions 305 to 511"],
    }
    return Verdict(status, stages, (FAULT,) if status == "DIFFERS" else (), provenance)


def text_of(verdict, width=80):
    stream = io.StringIO()
    render(verdict, Console(file=stream, width=width, no_color=True, force_terminal=False))
    return stream.getvalue()


@pytest.mark.parametrize("status", STATUSES)
def test_the_first_line_is_the_answer(status):
    assert f" {status} " in text_of(verdict_of(status)).splitlines()[0]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("status", STATUSES)
def test_no_line_is_wider_than_the_terminal(status, width):
    lines = text_of(verdict_of(status, allowed=1e9, ratio=3e11), width).splitlines()
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [40, 60, 71, 80])
def test_no_figure_is_cut_and_no_probe_broken_into_letters(width):
    verdict = verdict_of("PASS")
    [row] = next(it for it in verdict.stages if it.figures.get("rows")).figures["rows"]
    row["probe"] = "from position 131,056 on"
    text = text_of(verdict, width)
    lines = [line.strip() for line in text.splitlines()]
    for figure in (f"{row['error']:.2e}", f"{row['source_error']:.2e}", f"{row['ratio']:.2f}x"):
        assert figure in text
    assert any(line.startswith("from position") for line in lines)


def test_figures_are_shares_of_what_is_allowed():
    text = text_of(verdict_of("PASS"))
    assert "1.15x" in text
    assert "0.55" in text
    assert "2.08" in text
    assert "412" in text


def test_a_difference_names_its_culprit_and_the_stage_that_explains():
    text = text_of(verdict_of("DIFFERS", allowed=160000.0), 120)
    assert "encoder.layer.3.output.dense" in text
    assert "transposed" in text
    assert text.index("structure:") < text.index("fingerprints")


def test_what_was_not_checked_is_said():
    assert "outputs at positions 305 to 511" in text_of(verdict_of("PASS"))


def test_both_sides_are_called_by_their_names():
    assert "out-mlx+adapter computes what all-MiniLM-L6-v2 computes" in text_of(verdict_of("PASS"))


def test_a_verdict_without_provenance_can_be_shown():
    assert "UNVERIFIED" in text_of(Verdict("UNVERIFIED", ()))


def test_json_has_no_number_that_readers_refuse():
    text = json.dumps(verdict_of("DIFFERS", ratio=float("inf"), error=float("nan")).to_json())
    row = json.loads(text, parse_constant=pytest.fail)["stages"][2]["figures"]["rows"][0]
    assert (row["ratio"], row["error"]) == ("inf", "nan")
