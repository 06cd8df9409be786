"""Each class computes what transformers' own does, from the directory that a conversion writes."""

from __future__ import annotations

import pytest

from weighbridge.converters.common.policy import Policy
from weighbridge.converters.planning.opening import open as open_model
from weighbridge.parity.check.candidate import Candidate
from weighbridge.parity.check.check import Check
from weighbridge.parity.goldens.recorder import record

from .conftest import CASES


def layout_of(source, mlx):
    """Run the class on the directory MLX, and judge it as a check does."""
    golden = record(open_model(source), precisions=())
    ran = Candidate(open_model(mlx), "mlx", Policy())
    [stage] = Check(golden, ran, {}, (True, "the class")).layout_stages()
    return stage


@pytest.mark.parametrize("name", CASES)
def test_a_class_errs_no_more_than_transformers_does(directories, name):
    stage = layout_of(*directories(name))
    assert stage.status == "pass", stage.detail
    assert {row["output"] for row in stage.figures["rows"]} == {
        port.name for port in open_model(directories(name)[1]).signature.outputs
    }
