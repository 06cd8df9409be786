"""A status never claims more than the stages saw."""

from __future__ import annotations

import json

import pytest

from weighbridge.parity.blame.blame import Fault
from weighbridge.parity.check.verdict import STATUSES, Stage, Verdict, decide

ANSWERED = dict.fromkeys(("text", "fingerprints", "auxiliary", "outputs", "structure"), "pass")
DECISIONS = {
    "all pass": ({}, "mlx", "PASS"),
    "on our evaluator": ({}, "reference", "PASS-REFERENCE"),
    "nothing to ask": ({"text": "skipped", "precision": "skipped"}, "mlx", "PASS"),
    "a weight unexplained": ({"fingerprints": "fail"}, "mlx", "DIFFERS"),
    "a failure beats an open question": (
        {"text": "fail", "structure": "unverified"},
        "mlx",
        "DIFFERS",
    ),
    "no float32 run": (
        {"structure": "unverified", "precision": "pass"},
        "coreml",
        "PASS-PRECISION-ONLY",
    ),
    "no run at all": ({"structure": "unverified"}, "mlx", "UNVERIFIED"),
    "structure skipped": ({"structure": "skipped"}, "mlx", "UNVERIFIED"),
    "precision open": ({"precision": "unverified"}, "mlx", "UNVERIFIED"),
    "weights unseen": ({"fingerprints": "unverified"}, "mlx", "UNVERIFIED"),
    "weights unseen, precision only": (
        {"fingerprints": "unverified", "structure": "unverified", "precision": "pass"},
        "mlx",
        "UNVERIFIED",
    ),
}
EXITS = {
    "PASS": 0,
    "PASS-REFERENCE": 0,
    "DIFFERS": 1,
    "UNVERIFIED": 4,
    "PASS-PRECISION-ONLY": 4,
}


@pytest.mark.parametrize(("changes", "runtime", "status"), DECISIONS.values(), ids=DECISIONS)
def test_the_stages_decide(changes, runtime, status):
    stages = [Stage(name, answer, "") for name, answer in (ANSWERED | changes).items()]
    assert decide(stages, runtime) == status


def test_no_stage_is_no_pass():
    assert decide([], "mlx") == "UNVERIFIED"


def test_every_status_has_its_exit_code():
    assert {status: Verdict(status, ()).exit_code() for status in STATUSES} == EXITS


@pytest.mark.parametrize("status", STATUSES)
def test_accepting_a_level_never_accepts_a_difference(status):
    accepted = Verdict(status, ()).exit_code(STATUSES)
    assert accepted == (1 if status == "DIFFERS" else 0)


def test_accepting_one_level_does_not_accept_another():
    assert Verdict("UNVERIFIED", ()).exit_code("PASS-PRECISION-ONLY") == 4


def test_json_has_everything_and_no_number_that_readers_refuse():
    verdict = Verdict(
        "DIFFERS",
        (Stage("structure", "fail", "far", {"k": 2.0, "rows": ({"ratio": float("inf")},)}),),
        (Fault("encoder.layer.0", "activation", "gelu (tanh)", 370.0),),
        {"level": "full"},
    )
    content = json.loads(json.dumps(verdict.to_json()), parse_constant=pytest.fail)
    (stage,), (fault,) = content["stages"], content["faults"]
    assert stage["figures"] == {"k": 2.0, "rows": [{"ratio": "inf"}]}
    assert Fault(**fault) == verdict.faults[0]
    assert (content["status"], content["provenance"]) == ("DIFFERS", {"level": "full"})
